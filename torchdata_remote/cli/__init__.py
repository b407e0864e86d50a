"""Command line ``torchdata-remote``, with one module for each command.

Exit status: 0 for success, 1 for a fault of the data or the store, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from ..errors import RemoteDataError
from . import _bench, _index, _inspect, _ls, _manifest, _pull, _push, _render, _serve, _shard, _show, _top, _verify

_SIGINT_STATUS, _SIGPIPE_STATUS = 130, 141  # as shells report them


def build_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Build the parser of all commands.

    Args:
        arguments: the command line. With ``--options FILE`` in it, arguments that the file may hold are optional.
    """
    parser = argparse.ArgumentParser(prog="torchdata-remote", description="Datasets in object stores.")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    _shard.add(commands, arguments)
    for command in (_manifest, _index, _ls, _inspect, _verify, _show, _bench, _top, _serve, _render, _push, _pull):
        command.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    args = build_parser(command_line).parse_args(command_line)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except RemoteDataError as error:
        print(f"torchdata-remote: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # such as: torchdata-remote ls ... | head
        with contextlib.suppress(OSError, ValueError):  # else the interpreter complains when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGPIPE_STATUS
    except KeyboardInterrupt:
        return _SIGINT_STATUS
    return status
