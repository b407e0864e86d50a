"""Tar bytes to members. Strict: an archive ends at its end-of-archive blocks, or it is an error.

Read are POSIX ustar and pax, GNU, and v7. (Python's ``tarfile`` takes a damaged header for the end of the archive.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

from .header import padding
from .plain import PlainMembers
from .walk import TarOptions, Walk

Data = bytes | memoryview
Run = tuple[list[str], Iterable[Data]]


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
    for names, values in read_runs(parts, url=url, options=replace(options or TarOptions(), copy=True)):
        yield from zip(names, cast(Iterable[bytes], values), strict=True)


def read_runs(parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions) -> Iterator[Run]:
    """Like :func:`read_members`, many members at a time: their names, and their data as they are asked for.

    The data of a run are slices until they are taken, in order.
    """
    walk, plain = Walk(parts, url, options), PlainMembers(options.max_member_bytes)
    cursor = walk.cursor
    while True:
        found = plain.members_from(cursor.view, cursor.position)
        if found is not None:
            view, cursor.position = cursor.view, found.after
            slices = map(view.__getitem__, map(slice, found.starts, found.ends))
            yield found.names, map(memoryview.tobytes, slices) if options.copy else slices
            del view, slices  # or they would keep the part in memory until the next one has come
            continue
        member = walk.next_member()
        if member is None:
            return
        name, size = member
        yield [name], [_data(walk, name, size, options.copy)]


def _data(walk: Walk, name: str, size: int, copy: bool) -> Data:
    view, position = walk.cursor.view, walk.cursor.position
    after = position + size + padding(size)
    if after <= len(view):
        walk.cursor.position = after
        data = view[position : position + size]
        return data.tobytes() if copy else data
    whole = walk.take(size, f"member {name!r:.200}")
    return whole if copy else memoryview(whole)


def read_archives(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions
) -> Iterator[tuple[str, int, Iterator[memoryview]]]:
    """Name, size and bytes of each archive inside an archive, while they stream by.

    What is left of one when the next is asked for is passed over.

    Raises:
        ShardReadError: as :func:`read_members`. ``max_member_bytes`` is not compared: nothing is held in memory.
    """
    walk = Walk(parts, url, replace(options, max_member_bytes=sys.maxsize))
    while (member := walk.next_member()) is not None:
        name, size = member
        pieces = walk.pieces(size, f"member {name!r:.200}")
        yield name, size, pieces
        for _ in pieces:
            pass
