"""``torchdata-remote``: what is done with data sets from a shell. One module a command.

The exit status is 0 if all went well, 1 if something is wrong with the data or the store, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from ..errors import RemoteDataError
from . import _bench, _index, _inspect, _ls, _manifest, _pull, _push, _render, _serve, _shard, _show, _verify

_INTERRUPTED = 130  # as shells tell of SIGINT
_NOBODY_READS = 141  # and of SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the process' exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="torchdata-remote", description="Data sets in object stores.")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    _shard.add(commands, given)
    for command in (_manifest, _index, _ls, _inspect, _verify, _show, _bench, _serve, _render, _push, _pull):
        command.add(commands)
    chosen = parser.parse_args(given)
    try:
        status: int = chosen.run(chosen)
        sys.stdout.flush()
    except RemoteDataError as error:
        print(f"torchdata-remote: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # such as: torchdata-remote ls ... | head
        with contextlib.suppress(OSError, ValueError):  # or the interpreter complains when it flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _NOBODY_READS
    except KeyboardInterrupt:
        return _INTERRUPTED
    return status
