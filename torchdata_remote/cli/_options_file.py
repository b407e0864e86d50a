"""Options of the command line or of a file, with the same checks."""

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
        read: converts the value, a ``str`` from the command line; raises ``ArgumentTypeError``.
        metavar: name of the value in the help; ``None`` for a flag.
        help: for the command line. For a flag that is on by default it describes the ``--no-`` form.
    """

    name: str
    read: Callable[[Any], Any]
    metavar: str | None
    help: str

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the option to a parser."""
        name = self.name.replace("_", "-")
        if self.read is not flag:
            parser.add_argument(f"--{name}", type=self.read, metavar=self.metavar, help=self.help)
            return
        shown = name != "resume"  # on by default
        for prefix, value in (("--", True), ("--no-", False)):
            text_of_help = self.help if value == shown else argparse.SUPPRESS
            parser.add_argument(prefix + name, dest=self.name, action="store_const", const=value, help=text_of_help)


def read_options(path: str, known: Sequence[Option]) -> dict[str, Any]:
    """Read options from a TOML file, or from a file ``*.json``. ``no_x = true`` is ``x = false``.

    Raises:
        RemoteDataError: if the file cannot be read or parsed, or has an unknown option or an invalid value.
    """
    try:
        with open(path, "rb") as file:
            content = json.load(file) if path.endswith(".json") else tomllib.load(file)
    except (OSError, ValueError) as error:  # those of JSON and TOML are ValueErrors
        raise RemoteDataError(f"{path}: the options cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RemoteDataError(f"{path}: expected a table of options, got a {type(content).__name__}.")
    by_name = {option.name: option for option in known}
    options: dict[str, Any] = {}
    for name, value in content.items():
        option, setting = by_name.get(name), value
        if option is None and name.startswith("no_") and isinstance(value, bool):
            option, setting = by_name.get(name.removeprefix("no_")), not value
            option = option if option is not None and option.read is flag else None
        if option is None:
            raise RemoteDataError(f"{path}: no option {name!r}; known options are {', '.join(sorted(by_name))}.")
        try:
            options[option.name] = option.read(setting)
        except _Wrong as error:
            raise RemoteDataError(f"{path}: {name}: {error}.") from error
    return options


def text(value: Any) -> str:
    """Check a ``str``."""
    if not isinstance(value, str):
        raise _Wrong(f"expected a string, got {value!r}")
    return value


def flag(value: Any) -> bool:
    """Check a ``bool`` of a file."""
    if not isinstance(value, bool):
        raise _Wrong(f"expected true or false, got {value!r}")
    return value


def integer(least: int) -> Callable[[Any], int]:
    """Make a parser of integers of at least ``least``."""

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
    """Parse an integer or ``none``; in JSON also ``null``."""
    return None if value in (None, "none", "None") else integer(0)(value)


def mapping(value: Any) -> dict[str, Any]:
    """Check a table of a file, or parse JSON."""
    if isinstance(value, str):
        return json_object(value)
    if not isinstance(value, dict):
        raise _Wrong(f"expected a table of options, got {value!r}")
    return value


def imported(name: str) -> Any:
    """Import the function that ``module:function`` names; the module may be in the working directory."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise _Wrong(f"{name!r} is not of the form module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        imported_object: Any = import_module(module)
        for attribute in function.split("."):
            imported_object = getattr(imported_object, attribute)
    except (ImportError, AttributeError) as error:
        raise _Wrong(f"{name!r} cannot be imported: {error}") from error
    if not callable(imported_object):
        raise _Wrong(f"{name!r} is a {type(imported_object).__name__}, expected a function")
    return imported_object
