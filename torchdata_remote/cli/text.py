"""Lines, aligned columns and horizontal bars on standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from ..core.notices.progress_bar import above_bars

_MEASURED_ROWS = 1_000  # a page of a listing, which arrives at once
_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉█"


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
