"""Parser and summary of ``push`` and ``pull``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import AccessDeniedError
from ..service.transfer import Transferred
from ._shared import Commands, add_command, add_quiet, add_storage_options, count


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
    add_quiet(parser)
    add_storage_options(parser)


def run_transfer(
    args: argparse.Namespace, transfer: Callable[..., Transferred], source: str, target: str, *, verb: str
) -> str:
    """Run a transfer; returns a line about the result.

    Raises:
        AccessDeniedError: if the token cannot be read, or the service refuses it.
    """
    done = transfer(
        source,
        target,
        storage_options=_storage_options(args),
        max_in_flight=args.max_in_flight,
        progress=not args.quiet,
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
