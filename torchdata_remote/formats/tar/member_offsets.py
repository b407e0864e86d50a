"""Where the members of an archive lie, without their data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from .fast_path import FastPath
from .parser import TarOptions, TarParser

_MOST_PASSED_BYTES = 1 << 20  # which are kept in memory


class MemberOffsets(NamedTuple):
    """Some members, in order: names, the first byte of the data of each in the archive, and how many follow."""

    names: Sequence[str]
    starts: Sequence[int]
    sizes: Sequence[int]


def read_member_offsets(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions
) -> Iterator[MemberOffsets]:
    """Like :func:`read_runs`, with places instead of data; no member is too large.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        options: limits.

    Raises:
        ShardReadError: as :func:`read_members`.
    """
    walk, plain = TarParser(parts, url, replace(options, max_member_bytes=sys.maxsize)), FastPath(sys.maxsize)
    cursor = walk.cursor
    while True:
        found = plain.members_from(cursor.view, cursor.position)
        if found is not None:
            offset, cursor.position = cursor.part_offset, found.after
            sizes = [end - start for start, end in zip(found.starts, found.ends, strict=True)]
            yield MemberOffsets(found.names, [offset + start for start in found.starts], sizes)
            continue
        member = walk.next_member()
        if member is None:
            return
        name, size = member
        start = cursor.offset
        walk.pass_over(size, f"member {name!r:.200}")
        yield MemberOffsets([name], [start], [size])


def first_name(
    parts: Iterable[bytes | memoryview], *, url: str, counts: Callable[[str], bool] = lambda name: True
) -> tuple[str | None, Iterator[bytes | memoryview]]:
    """The name of an archive's first regular file, ``None`` if it has none; and the archive's bytes, all of them.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        counts: whether a name tells what the archive is made of. Up to 1 MiB of others is passed over before it.

    Raises:
        ShardReadError: if it does not begin as an archive.
    """
    taken: list[bytes | memoryview] = []
    source = iter(parts)

    def keeping() -> Iterator[bytes | memoryview]:
        for part in source:
            taken.append(part)
            yield part

    walk = TarParser(keeping(), url, TarOptions(max_member_bytes=sys.maxsize))
    member = walk.next_member()
    while member is not None and not counts(member[0]) and walk.cursor.offset + member[1] <= _MOST_PASSED_BYTES:
        walk.pass_over(member[1], f"member {member[0]!r:.200}")
        member = walk.next_member()
    return None if member is None else member[0], chain(taken, source)
