"""Read the members of tar archives. Strict: an archive without its end-of-archive blocks is an error.

The formats are POSIX ustar and pax, GNU, and v7. (Python's ``tarfile`` takes a damaged header for the end of the
archive.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, cast

from ..position import ReadPosition
from .fast_path import FastPath
from .header import BLOCK, padding
from .parser import TarOptions, TarParser

Data = bytes | memoryview
MemberBatch = tuple[list[str], Iterable[Data]]

_ONE = (0,)


def read_members(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of each regular file in an archive, in order; the data are copied.

    Directories, links and devices are skipped.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        options: limits.

    Raises:
        ShardReadError: for a damaged header, an unsupported type of member (sparse files, volumes), an archive that
            ends early, or data after its end. The message has the offset.
    """
    for names, values in read_member_batches(parts, url=url, options=replace(options or TarOptions(), copy=True)):
        yield from zip(names, cast(Iterable[bytes], values), strict=True)


def read_member_batches(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions, position: ReadPosition | None = None
) -> Iterator[MemberBatch]:
    """Like :func:`read_members`, in batches: the names of many members, and an iterable of their data.

    The data of a batch are slices until they are taken, in order. ``position`` is set to where its members begin.
    """
    position = position or ReadPosition()
    parser, fast_path = TarParser(parts, url, options), FastPath(options.max_member_bytes)
    cursor = parser.cursor
    while True:
        found = fast_path.members_from(cursor.view, cursor.position)
        if found is not None:
            position.batch_offset, position.batch_starts = cursor.part_offset - BLOCK, found.starts
            view, cursor.position = cursor.view, found.after
            slices = map(view.__getitem__, map(slice, found.starts, found.ends))
            yield found.names, map(memoryview.tobytes, slices) if options.copy else slices
            del view, slices  # or they would keep the part in memory until the next one arrives
            continue
        member = parser.next_member()
        if member is None:
            position.archive_end = parser.member_start
            return
        name, size = member
        position.batch_offset, position.batch_starts = parser.member_start, _ONE
        yield [name], [_data(parser, name, size, options.copy)]


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
        ShardReadError: as :func:`read_members`. ``max_member_bytes`` does not apply: nothing is held in memory.
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
