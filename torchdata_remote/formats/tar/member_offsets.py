"""Read the offsets of an archive's members, without their data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from .fast_path import FastPath
from .parser import TarOptions, TarParser

# They are kept in memory
_MAX_SKIPPED_BYTES = 1 << 20


class MemberOffsets(NamedTuple):
    """A batch of members, in order: names, the first byte of the data of each in the archive, and their sizes."""

    names: Sequence[str]
    starts: Sequence[int]
    sizes: Sequence[int]


def read_member_offsets(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions
) -> Iterator[MemberOffsets]:
    """Like :func:`read_member_batches`, with offsets instead of data; the size of members is not limited.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        options: limits.

    Raises:
        ShardReadError: as :func:`read_members`.
    """
    parser, fast_path = TarParser(parts, url, replace(options, max_member_bytes=sys.maxsize)), FastPath(sys.maxsize)
    cursor = parser.cursor
    while True:
        found = fast_path.members_from(cursor.view, cursor.position)
        if found is not None:
            offset, cursor.position = cursor.part_offset, found.after
            sizes = [end - start for start, end in zip(found.starts, found.ends, strict=True)]
            yield MemberOffsets(found.names, [offset + start for start in found.starts], sizes)
            continue
        member = parser.next_member()
        if member is None:
            return
        name, size = member
        start = cursor.offset
        parser.pass_over(size, f"member {name!r:.200}")
        yield MemberOffsets([name], [start], [size])


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
