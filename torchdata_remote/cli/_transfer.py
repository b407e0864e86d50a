"""What ``push`` and ``pull`` have in common on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import AccessDeniedError
from ..service.transfer import TransferProgress, Transferred
from ..service.transfer.progress import OnProgress
from ._shared import add_storage_options, count


def add_transfer_options(parser: argparse.ArgumentParser) -> None:
    """The options that both have."""
    parser.add_argument("--token-file", metavar="FILE", help="holds the service's token")
    parser.add_argument(
        "--max-in-flight", type=count, default=16, metavar="N", help="requests under way at once (default: 16)"
    )
    add_storage_options(parser)


def store_options(chosen: argparse.Namespace) -> dict[str, Any]:
    """The options for the store, with the token.

    Raises:
        AccessDeniedError: if the token cannot be read.
    """
    options: dict[str, Any] = dict(chosen.storage_options)
    if chosen.token_file is not None:
        try:
            token = Path(chosen.token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AccessDeniedError(f"{chosen.token_file}: the token cannot be read: {error}.") from error
        if not token:
            raise AccessDeniedError(f"{chosen.token_file} is empty, where the service's token was expected.")
        options["token"] = token
    return options


@contextmanager
def shown_progress(title: str) -> Iterator[OnProgress]:
    """A bar of bytes with rate and time left, where standard error is a terminal."""
    # disable=None: nothing is shown where it is not one
    bar: Any = tqdm(desc=title, unit="B", unit_scale=True, disable=None, mininterval=0.2)

    def on_progress(now: TransferProgress) -> None:
        bar.total = now.total_bytes
        bar.set_postfix_str(f"{now.num_files:,}/{now.total_files:,} files", refresh=False)
        bar.update(now.num_bytes - bar.n)

    with bar:
        yield on_progress


def summary(done: Transferred, verb: str) -> str:
    """What was done, in a line."""
    rate = done.num_bytes / 1e6 / max(done.elapsed_s, 1e-3)
    parts = [f"{done.num_files:,} files, {done.num_bytes:,} bytes {verb} in {done.elapsed_s:.1f} s ({rate:,.1f} MB/s)"]
    for number, what in (
        (done.num_unchanged, "were there"),
        (done.num_removed, "removed"),
        (done.num_foreign, "others left alone (--delete removes them)"),
    ):
        if number:
            parts.append(f"{number:,} {what}")
    return ", ".join(parts)
