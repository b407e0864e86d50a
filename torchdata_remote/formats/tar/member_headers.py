"""Read the headers of an archive, and only the requested data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .parser import TarOptions, TarParser


class MemberHeader(NamedTuple):
    """Header of a member, and its data if they were requested.

    Args:
        name: path.
        num_bytes: size of the data.
        start: first byte of the headers, extended ones included.
        data: ``None`` if they were not requested.
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
    """Yield each regular file of an archive, as strictly as :func:`read_member_batches`; skip the data of the others.

    Args:
        parts: the archive's bytes. If they are :class:`~..byte_reader.Skippable`, skipped data are not downloaded.
        url: for error messages.
        options: limits.
        wanted: called with name and size of a member; returns whether its data are requested.

    Raises:
        ShardReadError: as :func:`read_member_batches`.
    """
    parser = TarParser(parts, url, options)
    while (member := parser.next_member()) is not None:
        name, num_bytes = member
        start, data, what = parser.member_start, None, f"member {name!r:.200}"
        if wanted(name, num_bytes):
            data = parser.take(num_bytes, what)
        else:
            parser.pass_over(num_bytes, what)
        yield MemberHeader(name, num_bytes, start, data)
