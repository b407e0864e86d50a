"""Read the offsets of an archive's members, without their data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from ..position import ReadPosition
from .fast_path import FastPath
from .header import BLOCK
from .parser import TarOptions, TarParser

# They are kept in memory
_MAX_SKIPPED_BYTES = 1 << 20


class MemberOffsets(NamedTuple):
    """A batch of members, in order.

    Args:
        names: of the members.
        starts: the first byte of the data of each in the archive.
        sizes: bytes of the data of each.
        header_bytes: of each member, extended headers included.
    """

    names: Sequence[str]
    starts: Sequence[int]
    sizes: Sequence[int]
    header_bytes: int


def read_member_offsets(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions, position: ReadPosition | None = None
) -> Iterator[MemberOffsets]:
    """Like :func:`read_member_batches`, with offsets instead of data, of which nothing is held in memory.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        options: limits.
        position: its ``archive_end`` is set after the last member.

    Raises:
        ShardReadError: as :func:`read_member_batches`.
    """
    parser, fast_path = TarParser(parts, url, options), FastPath(options.max_member_bytes)
    cursor = parser.cursor
    while True:
        found = fast_path.members_from(cursor.view, cursor.position)
        if found is not None:
            offset, cursor.position = cursor.part_offset, found.after
            sizes = [end - start for start, end in zip(found.starts, found.ends, strict=True)]
            starts = [offset + start for start in found.starts] if offset else found.starts
            yield MemberOffsets(found.names, starts, sizes, BLOCK)
            continue
        member = parser.next_member()
        if member is None:
            if position is not None:
                position.archive_end = parser.member_start
            return
        name, size = member
        start, header_bytes = cursor.offset, cursor.offset - parser.member_start
        parser.pass_over(size, f"member {name!r:.200}")
        yield MemberOffsets([name], [start], [size], header_bytes)


def first_name(
    parts: Iterable[bytes | memoryview], *, url: str, counts: Callable[[str], bool] = lambda name: True
) -> tuple[str | None, Iterator[bytes | memoryview]]:
    """Return the name of an archive's first regular file (``None`` if it has none), and all bytes of the archive.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        counts: returns whether a name counts as the first. Up to 1 MiB of other members may come before it.

    Raises:
        ShardReadError: if the bytes do not begin as an archive.
    """
    taken: list[bytes | memoryview] = []
    source = iter(parts)

    def keeping() -> Iterator[bytes | memoryview]:
        for part in source:
            taken.append(part)
            yield part

    parser = TarParser(keeping(), url, TarOptions(max_member_bytes=sys.maxsize))
    member = parser.next_member()
    while member is not None and not counts(member[0]) and parser.cursor.offset + member[1] <= _MAX_SKIPPED_BYTES:
        parser.pass_over(member[1], f"member {member[0]!r:.200}")
        member = parser.next_member()
    return None if member is None else member[0], chain(taken, source)
