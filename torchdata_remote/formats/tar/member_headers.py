"""From head to head of an archive: names, sizes and places, and only those data that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .parser import TarOptions, TarParser


class MemberHeader(NamedTuple):
    """A member.

    Args:
        name: its path.
        num_bytes: of its data.
        start: the first byte of its headers, those that extend it included.
        data: ``None`` where they were not asked for.
    """

    name: str
    num_bytes: int
    start: int
    data: bytes | None


def read_member_headers(
    parts: Iterable[bytes | memoryview],
    *,
    url: str,
    options: TarOptions,
    wanted: Callable[[str, int], bool] = lambda name, num_bytes: False,
) -> Iterator[MemberHeader]:
    """Each regular file of an archive, as strictly as :func:`read_members`; most data are passed over.

    Args:
        parts: the archive's bytes. Those that are ``cursor.Jumping`` need not bring what is passed over.
        url: for error messages.
        options: limits.
        wanted: whether the data of a member of that name and size are to be taken.

    Raises:
        ShardReadError: as :func:`read_members`.
    """
    walk = TarParser(parts, url, options)
    while (member := walk.next_member()) is not None:
        name, num_bytes = member
        start, data, what = walk.member_start, None, f"member {name!r:.200}"
        if wanted(name, num_bytes):
            data = walk.take(num_bytes, what)
        else:
            walk.pass_over(num_bytes, what)
        yield MemberHeader(name, num_bytes, start, data)
