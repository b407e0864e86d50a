"""Types of options, and lines, columns and bars on standard output, which several commands have."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from ..core.options import RetryPolicy, StorageOptions
from ..core.progress import above_bars

if TYPE_CHECKING:
    from ..core.urls import RemoteUrl

_MEASURED_ROWS = 1_000  # a page of a listing, which arrives at once
_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _json_object(_: object, tokens: Sequence[Token]) -> dict[str, Any]:
    try:
        options = json.loads(tokens[0].value)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"expected a JSON object, got a {type(options).__name__}")
    return options


def _whole(_: object, tokens: Sequence[Token]) -> int:
    return int(tokens[0].value)  # cyclopts would round 1.5


def _seed(_: object, tokens: Sequence[Token]) -> int | None:
    return None if tokens[0].value == "none" else int(tokens[0].value)


Count = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1))]
CountOrNone = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0))]
Port = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0, lte=65535))]
Seed = Annotated[int | None, Parameter(converter=_seed)]
Seconds = Annotated[float, Parameter(validator=Number(gt=0, lt=math.inf))]
Price = Annotated[float, Parameter(validator=Number(gte=0, lt=math.inf))]
Json = Annotated[dict[str, Any] | None, Parameter(converter=_json_object, n_tokens=1, accepts_keys=False)]
OnBadMember = Literal["raise", "skip"]
AsJson = Annotated[bool, Parameter("--json")]


def list_objects(
    url: str, storage_options: dict[str, Any] | None, *, pattern: str | None = None, recursive: bool = True
) -> Iterator[RemoteUrl]:
    """List the objects that a URL names."""
    from ..fetch.listing.sources import list_source

    options = StorageOptions(storage_options)
    return list_source(url, pattern=pattern, recursive=recursive, options=options, retry=RetryPolicy())


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
    encoding = sys.stdout.encoding or "ascii"
    with above_bars():
        print(text.encode(encoding, "backslashreplace").decode(encoding))


def aligned(rows: Iterable[Sequence[str]], alignment: str, *, gap: str = "  ") -> Iterator[str]:
    """Align columns, in a stream: the first 1,000 rows determine the widths, and longer texts after them widen theirs.

    Args:
        rows: texts, as many in each row as there are columns.
        alignment: ``<`` or ``>`` for each column.
        gap: between columns.

    Example:
        >>> list(aligned([("bytes", "url"), ("7,168", "a"), ("12", "b")], "><"))
        ['bytes  url', '7,168  a', '   12  b']
    """
    rows = iter(rows)
    first = list(islice(rows, _MEASURED_ROWS))
    widths = [max(map(len, column)) for column in zip(*first, strict=True)]
    for row in chain(first, rows):
        widths = list(map(max, widths, map(len, row)))
        cells = (f"{text:{side}{width}}" for text, side, width in zip(row, alignment, widths, strict=True))
        yield gap.join(cells).rstrip()


def bar(number: int, largest: int) -> str:
    """Draw a bar of up to 40 characters, by eighths of one where the terminal has such characters.

    Anything above zero is visible.
    """
    eighths = max(number * _BAR_WIDTH * 8 // max(1, largest), min(number, 1))
    try:
        _EIGHTHS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return "#" * -(-eighths // 8)
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
