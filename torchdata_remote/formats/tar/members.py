"""Tar bytes to members. Strict: an archive ends at its end-of-archive blocks, or it is an error.

Read are POSIX ustar and pax, GNU, and v7. (Python's ``tarfile`` takes a damaged header for the end of the archive.)
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
Run = tuple[list[str], Iterable[Data]]

_ONE = (0,)


def read_members(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions | None = None
) -> Iterator[tuple[str, bytes]]:
    """Name and data of each regular file in an archive, in order; always copied.

    Directories, links and devices are passed over.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        options: limits.

    Raises:
        ShardReadError: for a header that is damaged, a member type that cannot be read rightly (sparse files,
            volumes), an archive that ends early, or data after its end. Says where.
    """
    for names, values in read_member_batches(parts, url=url, options=replace(options or TarOptions(), copy=True)):
        yield from zip(names, cast(Iterable[bytes], values), strict=True)


def read_member_batches(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions, position: ReadPosition | None = None
) -> Iterator[Run]:
    """Like :func:`read_members`, many members at a time: their names, and their data as they are asked for.

    The data of a batch are slices until they are taken, in order. ``position`` is set to where its members begin.
    """
    position = position or ReadPosition()
    walk, plain = TarParser(parts, url, options), FastPath(options.max_member_bytes)
    cursor = walk.cursor
    while True:
        found = plain.members_from(cursor.view, cursor.position)
        if found is not None:
            position.batch_offset, position.batch_starts = cursor.part_offset - BLOCK, found.starts
            view, cursor.position = cursor.view, found.after
            slices = map(view.__getitem__, map(slice, found.starts, found.ends))
            yield found.names, map(memoryview.tobytes, slices) if options.copy else slices
            del view, slices  # or they would keep the part in memory until the next one has come
            continue
        member = walk.next_member()
        if member is None:
            position.archive_end = walk.member_start
            return
        name, size = member
        position.batch_offset, position.batch_starts = walk.member_start, _ONE
        yield [name], [_data(walk, name, size, options.copy)]


def _data(walk: TarParser, name: str, size: int, copy: bool) -> Data:
    view, position = walk.cursor.view, walk.cursor.position
    after = position + size + padding(size)
    if after <= len(view):
        walk.cursor.position = after
        data = view[position : position + size]
        return data.tobytes() if copy else data
    whole = walk.take(size, f"member {name!r:.200}")
    return whole if copy else memoryview(whole)


class NestedArchive(NamedTuple):
    """An archive inside an archive: its name, where it begins and how long it is, in bytes."""

    name: str
    start: int
    num_bytes: int

    def after(self) -> int:
        """Where the header of the next one begins."""
        return self.start + self.num_bytes + padding(self.num_bytes)


def read_archives(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions, begun: NestedArchive | None = None
) -> Iterator[tuple[NestedArchive, Iterator[memoryview]]]:
    """Each archive inside an archive with its bytes, while they stream by.

    What is left of one when the next is asked for is passed over.

    Args:
        parts: the outer archive's bytes.
        url: for error messages.
        options: limits.
        begun: an inner archive in which ``parts`` begin, rather than at a header.

    Raises:
        ShardReadError: as :func:`read_members`. ``max_member_bytes`` is not compared: nothing is held in memory.
    """
    walk = TarParser(parts, url, replace(options, max_member_bytes=sys.maxsize))
    while True:
        inner, begun = begun, None
        if inner is None:
            member = walk.next_member()
            if member is None:
                return
            inner = NestedArchive(member[0], walk.cursor.offset, member[1])
        taken = walk.cursor.offset - inner.start
        pieces = walk.pieces(inner.num_bytes, f"member {inner.name!r:.200}", taken=taken)
        yield inner, pieces
        for _ in pieces:
            pass
