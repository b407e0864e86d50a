"""The commands of ``torchdata-remote``, their parsers, and how errors are reported."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, TextIO

from .. import __version__
from ..core.arguments import MESSAGE
from ..core.progress import hidden_unless
from ..errors import RemoteDataError
from ._shared import suggestion

_SIGPIPE_STATUS = 141  # as shells report it

# Command -> its line in --help. Its module, which is named after it, is imported when the command is called.
COMMANDS = {
    "shard": "write a dataset to tar shards, in a random order of all its samples",
    "manifest": "write the manifest, the indexes and the keys of tar shards",
    "index": "write the paths of all objects below a URL as a JSON array",
    "ls": "list objects: bytes, number of samples if the URL is that of a manifest, URL",
    "inspect": "inspect a tar shard: members, keys, sizes, classes, first samples",
    "verify": "compare every shard of a folder with the manifest, its index and its keys",
    "show": "draw a contact sheet of images with their labels",
    "bench": "read a dataset for some seconds and report where the time is spent: shards or loose files, in one "
    "process, as stream_shards() and stream_files() read them",
    "cost": "count the requests and bytes of an epoch, of all ranks and workers together, and what they cost",
    "top": "show what the ranks and workers of a running training do, and what they wait for",
    "serve": "host datasets over HTTP: the folders of a local folder, or of any writable URL",
    "render": "render a TrainingJob as Kubernetes manifests",
    "push": "copy a folder into a dataset of a service",
    "pull": "copy a dataset of a service into a folder",
}


def build_parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Build the parser of the command that a command line calls; other commands have their line in the help only.

    Args:
        arguments: the command line. With ``--options FILE`` in it, arguments that the file may hold are optional.
            ``None`` builds the parsers of all commands.
    """
    parser = argparse.ArgumentParser(prog="torchdata-remote", description="Datasets in object stores.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    called = None if arguments is None else next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        if arguments is not None and name != called:
            commands.add_parser(name, help=summary)
            continue
        module: Any = import_module(f"._{name}", __package__)
        if name == "shard":
            module.add(commands, arguments or ())
        else:
            module.add(commands)
    return parser


def run(arguments: Sequence[str] | None) -> int:
    """Run a command, and report errors in one line; returns the exit status.

    Args:
        arguments: the command line; ``None`` for that of the process.
    """
    if sys.stdout is None:
        print("torchdata-remote: standard output is closed: redirect it, such as to /dev/null.", file=sys.stderr)
        return 1
    output = _Output(sys.stdout)
    try:
        with contextlib.redirect_stdout(output):
            try:
                return _status(sys.argv[1:] if arguments is None else list(arguments))
            finally:
                output.flush()  # also of --help, which ends by SystemExit
    except BrokenPipeError:  # such as: torchdata-remote ls ... | head
        output.discard()
        return _SIGPIPE_STATUS
    except OSError as error:
        if error is not output.error:
            raise
        output.discard()
        print(f"torchdata-remote: standard output: {error.strerror or error}.", file=sys.stderr)
        return 1


class _Output:
    """Standard output, which remembers why it takes no more, such as because a disk is full.

    Args:
        stream: that is written to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        self._raise_again()
        try:
            return self._stream.write(text)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._raise_again()
        try:
            self._stream.flush()
        except OSError as error:
            self.error = error
            raise

    def _raise_again(self) -> None:
        """Fail as before: argparse ignores that its help was not written."""
        if self.error is not None:
            raise self.error

    def discard(self) -> None:
        """Discard what is written from now on. Else the interpreter complains when it flushes at exit."""
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _status(command_line: list[str]) -> int:
    args, unknown = build_parser(command_line).parse_known_args(command_line)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}{suggestion(args.parser, unknown)}")
    try:
        with hidden_unless(not getattr(args, "quiet", False)):
            status: int = args.run(args)
    except RemoteDataError as error:
        print(f"torchdata-remote: {error}", file=sys.stderr)
        return 1
    except (TypeError, ValueError) as error:
        if MESSAGE not in vars(error):  # of an argument of a public function
            raise
        print(f"torchdata-remote: {vars(error)[MESSAGE]}", file=sys.stderr)
        return 2
    return status
