"""Parser, progress bar and summary of ``push`` and ``pull``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..errors import AccessDeniedError
from ..service.transfer import TransferProgress, Transferred
from ..service.transfer.progress import OnProgress
from ._shared import Commands, add_command, add_storage_options, count


def add_transfer_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    description: str,
    example: str,
    positional: Mapping[str, str],
    delete: str,
) -> None:
    """Add the parser of ``push`` or ``pull``.

    Args:
        commands: of the command line.
        name: of the command.
        run: runs it.
        description: for the help.
        example: for the help.
        positional: name -> help, in order.
        delete: help of ``--delete``.
    """
    parser = add_command(commands, name, run, description=description, example=example)
    for argument, text in positional.items():
        parser.add_argument(argument, help=text)
    parser.add_argument("--delete", action="store_true", help=delete)
    parser.add_argument("--token-file", metavar="FILE", help="file with the service's token")
    parser.add_argument(
        "--max-in-flight", type=count, default=16, metavar="N", help="concurrent requests (default: %(default)s)"
    )
    add_storage_options(parser)


def run_transfer(
    args: argparse.Namespace, transfer: Callable[..., Transferred], source: str, target: str, *, verb: str
) -> str:
    """Run a transfer under a progress bar; returns a line about the result.

    Raises:
        AccessDeniedError: if the token cannot be read, or the service refuses it.
    """
    with _progress_bar(args.command) as on_progress:
        done = transfer(
            source,
            target,
            storage_options=_storage_options(args),
            max_in_flight=args.max_in_flight,
            on_progress=on_progress,
            delete=args.delete,
        )
    return _summary(done, verb)


def _storage_options(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = dict(args.storage_options)
    if args.token_file is not None:
        try:
            token = Path(args.token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AccessDeniedError(f"{args.token_file}: the token cannot be read: {error}.") from error
        if not token:
            raise AccessDeniedError(f"{args.token_file} is empty, where the service's token was expected.")
        options["token"] = token
    return options


@contextmanager
def _progress_bar(title: str) -> Iterator[OnProgress]:
    # disable=None: no bar unless standard error is a terminal
    bar: Any = tqdm(desc=title, unit="B", unit_scale=True, disable=None, mininterval=0.2)

    def on_progress(now: TransferProgress) -> None:
        bar.total = now.total_bytes
        bar.set_postfix_str(f"{now.num_files:,}/{now.total_files:,} files", refresh=False)
        bar.update(now.num_bytes - bar.n)

    with bar:
        yield on_progress


def _summary(done: Transferred, verb: str) -> str:
    rate = done.num_bytes / 1e6 / max(done.elapsed_s, 1e-3)
    parts = [f"{done.num_files:,} files, {done.num_bytes:,} bytes {verb} in {done.elapsed_s:.1f} s ({rate:,.1f} MB/s)"]
    for number, state in (
        (done.num_unchanged, "unchanged"),
        (done.num_removed, "removed"),
        (done.num_foreign, "others left alone (--delete removes them)"),
    ):
        if number:
            parts.append(f"{number:,} {state}")
    return ", ".join(parts)
