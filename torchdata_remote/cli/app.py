"""The parser, which cyclopts makes of the commands' signatures and docstrings, files of options, and exit statuses."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict

from .. import __version__
from ..core.arguments import MESSAGE
from ..core.progress import hidden_unless
from ..errors import RemoteDataError
from .look import inspect, ls, show, verify
from .measure import bench, cost
from .prepare import index, manifest, shard
from .service import pull, push, render, serve
from .top import top

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SIGPIPE_STATUS = 141  # as shells report it

COMMANDS = (shard, manifest, index, ls, inspect, verify, show, bench, cost, top, serve, render, push, pull)
app = App(name="torchdata-remote", help="Datasets in object stores.", version=__version__)
for _command in COMMANDS:
    app.command(_command)


@app.meta.default
def _with_files(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    conf: Annotated[tuple[str, ...], Parameter(("--conf", "-c"), negative=(), show_default=False)] = (),
) -> int | None:
    """Run a command with options of files.

    Args:
        tokens: the command line.
        conf: TOML or JSON file with arguments of the command, such as max_shard_bytes = 100_000_000. Of several files
            the last one takes precedence, and the command line over all.
    """
    app.config = [Dict(_options_of(path), source=path, use_commands_as_keys=False) for path in reversed(conf)]
    command, bound, _ = app.parse_args(tokens, print_error=False, exit_on_error=False)
    with hidden_unless(not bound.arguments.get("quiet", False)):
        status: int | None = command(*bound.args, **bound.kwargs)
    return status


def _options_of(path: str) -> dict[str, Any]:
    """Read a file of options.

    Raises:
        RemoteDataError: if it cannot be read, or is no table.
    """
    try:
        with open(path, "rb") as file:
            content = json.load(file) if path.endswith(".json") else tomllib.load(file)
    except (OSError, ValueError) as error:  # those of JSON and TOML are ValueErrors
        raise RemoteDataError(f"{path}: the options cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RemoteDataError(f"{path}: expected a table of options, got a {type(content).__name__}.")
    # A table is one value, as on the command line
    return {name: json.dumps(value) if isinstance(value, dict) else value for name, value in content.items()}


def run(arguments: Sequence[str] | None) -> int:
    """Run a command, and report errors in one line; returns the exit status.

    Args:
        arguments: the command line; ``None`` for that of the process.
    """
    if sys.stdout is None:
        print("torchdata-remote: standard output is closed: redirect it, such as to /dev/null.", file=sys.stderr)
        return 1
    try:
        try:
            return _status(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # such as: torchdata-remote ls ... | head
        status = _SIGPIPE_STATUS
    except OSError as error:  # such as that of a full disk
        print(f"torchdata-remote: {error}", file=sys.stderr)
        status = 1
    # Else the interpreter complains when it flushes at exit
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _status(arguments: Sequence[str] | None) -> int:
    try:
        command, bound, _ = app.meta.parse_args(arguments, print_error=False, exit_on_error=False)
        return command(*bound.args, **bound.kwargs) or 0
    except RemoteDataError as error:
        message, status = str(error), 1
    except CycloptsError as error:
        message, status = str(error), 2
    except (TypeError, ValueError) as error:
        if MESSAGE not in vars(error):  # of an argument of a public function
            raise
        message, status = vars(error)[MESSAGE], 2
    print(f"torchdata-remote: {message}", file=sys.stderr)
    return status
