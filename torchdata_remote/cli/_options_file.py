"""Options that may come from the command line or from a file, checked alike."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from ..errors import RemoteDataError
from ._shared import json_object

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_Wrong = argparse.ArgumentTypeError


class Option(NamedTuple):
    """An option of a command.

    Args:
        name: in a file; with hyphens on the command line.
        read: what comes, a ``str`` from the command line, to the option's value; raises ``ArgumentTypeError``.
        metavar: what help calls the value; ``None`` for a flag.
        help: for the command line. A flag that is on unless it is told otherwise is described by what ``--no-`` does.
    """

    name: str
    read: Callable[[Any], Any]
    metavar: str | None
    help: str

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Tell the command line."""
        name = self.name.replace("_", "-")
        if self.read is not flag:
            parser.add_argument(f"--{name}", type=self.read, metavar=self.metavar, help=self.help)
            return
        shown = name != "resume"  # which is on
        for prefix, value in (("--", True), ("--no-", False)):
            text_of_help = self.help if value == shown else argparse.SUPPRESS
            parser.add_argument(prefix + name, dest=self.name, action="store_const", const=value, help=text_of_help)


def read_options(path: str, known: Sequence[Option]) -> dict[str, Any]:
    """The options of a TOML file, or a JSON file if its name ends so. ``no_x = true`` is ``x = false``.

    Raises:
        RemoteDataError: if it cannot be read, is neither, or has an option that is not known; that is named.
    """
    try:
        with open(path, "rb") as file:
            given = json.load(file) if path.endswith(".json") else tomllib.load(file)
    except (OSError, ValueError) as error:  # those of JSON and TOML are ValueErrors
        raise RemoteDataError(f"{path}: the options cannot be read: {error}") from error
    if not isinstance(given, dict):
        raise RemoteDataError(f"{path}: expected options by their names, got a {type(given).__name__}.")
    by_name = {option.name: option for option in known}
    options: dict[str, Any] = {}
    for name, value in given.items():
        option, said = by_name.get(name), value
        if option is None and name.startswith("no_") and isinstance(value, bool):
            option, said = by_name.get(name.removeprefix("no_")), not value
            option = option if option is not None and option.read is flag else None
        if option is None:
            raise RemoteDataError(f"{path}: no option is called {name!r}; there are {', '.join(sorted(by_name))}.")
        try:
            options[option.name] = option.read(said)
        except _Wrong as error:
            raise RemoteDataError(f"{path}: {name}: {error}.") from error
    return options


def text(value: Any) -> str:
    """A ``str``."""
    if not isinstance(value, str):
        raise _Wrong(f"expected a text, got {value!r}")
    return value


def flag(value: Any) -> bool:
    """A ``bool``, from a file."""
    if not isinstance(value, bool):
        raise _Wrong(f"expected true or false, got {value!r}")
    return value


def integer(least: int) -> Callable[[Any], int]:
    """An ``int`` of at least ``least``."""

    def read(value: Any) -> int:
        number = value
        if isinstance(value, str):
            try:
                number = int(value)
            except ValueError:
                number = None
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise _Wrong(f"expected a number of at least {least}, got {value!r}")
        return number

    return read


def seed_number(value: Any) -> int | None:
    """An ``int``, or ``none``; in JSON ``null`` too."""
    return None if value in (None, "none", "None") else integer(0)(value)


def mapping(value: Any) -> dict[str, Any]:
    """A table of a file, or JSON."""
    if isinstance(value, str):
        return json_object(value)
    if not isinstance(value, dict):
        raise _Wrong(f"expected a table of options, got {value!r}")
    return value


def imported(name: str) -> Any:
    """The function that ``module:function`` names; the module may lie in the working directory."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise _Wrong(f"{name!r} is not of the form module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise _Wrong(f"{name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise _Wrong(f"{name!r} is a {type(found).__name__}, expected a function")
    return found
