"""Read the members of tar archives. Strict: an archive without its end-of-archive blocks is an error.

The formats are POSIX ustar and pax, GNU, and v7. (Python's ``tarfile`` takes a damaged header for the end of the
archive.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ..position import ReadPosition
from .fast_path import FastPath
from .header import BLOCK, padding
from .parser import TarOptions, TarParser
from .vector_scan import Found

Data = bytes | memoryview
MemberBatch = tuple[list[str], list[Data]]

_ONE = (0,)

# Members are copied in batches that fit into a processor's cache; 60 is a multiple of 2 to 6 members of a sample
_BATCH_MEMBERS, _BATCH_BYTES = 60, 256 << 10


def read_member_batches(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions, position: ReadPosition | None = None
) -> Iterator[MemberBatch]:
    """Yield names and data of the regular files in an archive, in order and in batches. Others are skipped.

    A batch has at most 60 members, and about 256 KiB if data are copied.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        options: limits.
        position: is set to where the members of a batch begin.

    Raises:
        ShardReadError: for a damaged header, an unsupported type of member (sparse files, volumes), an archive that
            ends early, or data after its end. The message has the offset.
    """
    position = position or ReadPosition()
    parser, fast_path = TarParser(parts, url, options), FastPath(options.max_member_bytes)
    cursor = parser.cursor
    while True:
        found = fast_path.members_from(cursor.view, cursor.position)
        if found is not None:
            view, cursor.position = cursor.view, found.after
            for names, starts, ends in _in_batches(found, _BATCH_BYTES if options.copy else sys.maxsize):
                position.batch_offset, position.batch_starts = cursor.part_offset - BLOCK, starts
                slices = map(view.__getitem__, map(slice, starts, ends))
                yield names, list(map(memoryview.tobytes, slices) if options.copy else slices)
                del slices
            del view  # or it would keep the part in memory until the next one arrives
            continue
        member = parser.next_member()
        if member is None:
            position.archive_end = parser.member_start
            return
        name, size = member
        position.batch_offset, position.batch_starts = parser.member_start, _ONE
        yield [name], [_data(parser, name, size, options.copy)]


def _in_batches(found: Found, max_bytes: int) -> Iterator[tuple[list[str], list[int], list[int]]]:
    names, starts, ends = found.names, found.starts, found.ends
    step = max(1, min(_BATCH_MEMBERS, len(names) * max_bytes // (found.after - starts[0] + BLOCK)))
    for first in range(0, len(names), step):
        after = first + step
        yield names[first:after], starts[first:after], ends[first:after]


def _data(parser: TarParser, name: str, size: int, copy: bool) -> Data:
    view, position = parser.cursor.view, parser.cursor.position
    after = position + size + padding(size)
    if after <= len(view):
        parser.cursor.position = after
        data = view[position : position + size]
        return data.tobytes() if copy else data
    whole = parser.take(size, f"member {name!r:.200}")
    return whole if copy else memoryview(whole)


class NestedArchive(NamedTuple):
    """An archive inside an archive: its name, first byte and size."""

    name: str
    start: int
    num_bytes: int

    def after(self) -> int:
        """Return the first byte of the next member's header."""
        return self.start + self.num_bytes + padding(self.num_bytes)


def read_archives(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions, begun: NestedArchive | None = None
) -> Iterator[tuple[NestedArchive, Iterator[memoryview]]]:
    """Yield each archive inside an archive, with its bytes as they arrive.

    Bytes that were not read when the next one is requested are skipped.

    Args:
        parts: the outer archive's bytes.
        url: for error messages.
        options: limits.
        begun: the nested archive in which ``parts`` begin; ``None`` if they begin at a header.

    Raises:
        ShardReadError: as :func:`read_member_batches`. ``max_member_bytes`` does not apply: nothing is held in memory.
    """
    parser = TarParser(parts, url, replace(options, max_member_bytes=sys.maxsize))
    while True:
        inner, begun = begun, None
        if inner is None:
            member = parser.next_member()
            if member is None:
                return
            inner = NestedArchive(member[0], parser.cursor.offset, member[1])
        taken = parser.cursor.offset - inner.start
        pieces = parser.pieces(inner.num_bytes, f"member {inner.name!r:.200}", taken=taken)
        yield inner, pieces
        for _ in pieces:
            pass
