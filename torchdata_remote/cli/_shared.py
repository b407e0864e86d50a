"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..core.arguments import did_you_mean
from ..core.progress import above_bars

Commands = Any  # argparse gives its type no public name


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    description: str,
    example: str,
    **settings: Any,
) -> argparse.ArgumentParser:
    """Add a command's parser; its help ends with an example."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=description.partition(".")[0].partition(";")[0],
        description=description[0].upper() + description[1:],
        epilog=f"example: torchdata-remote {example}",
        **settings,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def suggestion(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """Return the option of a command that was probably meant."""
    misspelt = next((text.partition("=")[0] for text in unknown if text.startswith("--")), "")
    return did_you_mean(misspelt, re.findall(r"--[a-z-]+", parser.format_usage())) if misspelt else ""


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got a {type(options).__name__}")
    return options


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return number


def count_or_none(text: str) -> int:
    """Parse an integer of at least 0."""
    return 0 if text.strip() == "0" else count(text)


def port(text: str) -> int:
    """Parse the number of a port."""
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def positive_seconds(text: str, *, at_most: float = math.inf) -> float:
    """Parse a number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= at_most or seconds == math.inf:
        limit = "" if at_most == math.inf else f", at most {at_most:g}"
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds{limit}, got {text!r}")
    return seconds


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--storage-options``."""
    parser.add_argument(
        "--storage-options",
        type=json_object,
        default={},
        metavar="JSON",
        help='for the store, in fsspec\'s vocabulary, such as {"endpoint_url": "http://host:9000"}',
    )


def add_quiet(parser: argparse.ArgumentParser, what: str = "no progress bar") -> None:
    """Add the option ``--quiet``."""
    parser.add_argument("--quiet", action="store_true", help=what)


def printable(text: str) -> str:
    r"""Escape unprintable characters, which a terminal may take for commands, in a text such as a member's name.

    >>> print(printable("a\x1b[2Jb é"))
    a\x1b[2Jb é
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def print_line(text: str = "") -> None:
    """Print a line; escape characters that standard output cannot encode."""
    with above_bars():
        try:
            print(text)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding or "ascii"
            print(text.encode(encoding, "backslashreplace").decode(encoding))
