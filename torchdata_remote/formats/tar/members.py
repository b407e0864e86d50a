"""Read the members of a tar: all of them in batches, their places, their headers, some as files, or archives in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import sub
from typing import NamedTuple

from ..member_file import BytesFile, MemberFile
from ..position import ReadPosition
from ..sample import split_key
from .parser import BLOCK, Data, TarOptions, TarParser, padding
from .scan import PlainMembers, Run

MemberBatch = tuple[list[str], list[Data]]
Parts = Iterable[Data]
FileOf = Callable[[str, int, int], MemberFile | None]
"""Called with name, first byte and size of a member; ``None`` where its data cannot be read later."""

# Members are copied in batches that fit into a processor's cache; 60 is a multiple of 2 to 6 members of a sample
_BATCH_MEMBERS, _BATCH_BYTES = 60, 256 << 10
# To read members up to this size costs no more than a request of their own
_SMALL_BYTES = 64 << 10
# They are kept in memory
_MAX_SKIPPED_BYTES = 1 << 20
_ONE = (0,)


def _member(name: str) -> str:
    return f"member {name!r:.200}"


def read_member_batches(
    parts: Parts, *, url: str, options: TarOptions, position: ReadPosition | None = None
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
    parser = TarParser(parts, url, options)
    cursor = parser.cursor
    plain = PlainMembers(cursor, options.max_member_bytes)
    while True:
        if (run := plain.next_run()) is not None:
            view = cursor.view
            for names, starts, ends in _in_batches(run, _BATCH_BYTES if options.copy else sys.maxsize):
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
        view, at = cursor.view, cursor.position
        if options.copy or at + size > len(view):
            del view
            data: Data = parser.take(size, _member(name))
            yield [name], [data if options.copy else memoryview(data)]
        else:
            parser.pass_over(size, _member(name))
            yield [name], [view[at : at + size]]
            del view


def _in_batches(run: Run, max_bytes: int) -> Iterator[tuple[list[str], list[int], list[int]]]:
    names, starts, ends, after = run
    step = max(1, min(_BATCH_MEMBERS, len(names) * max_bytes // (after - starts[0] + BLOCK)))
    for first in range(0, len(names), step):
        stop = first + step
        yield names[first:stop], starts[first:stop], ends[first:stop]


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
    parts: Parts, *, url: str, options: TarOptions, position: ReadPosition | None = None
) -> Iterator[MemberOffsets]:
    """Like :func:`read_member_batches`, with offsets instead of data, of which nothing is held in memory."""
    parser = TarParser(parts, url, options)
    cursor = parser.cursor
    plain = PlainMembers(cursor, options.max_member_bytes)
    while True:
        if (run := plain.next_run()) is not None:
            for names, starts, ends in _in_batches(run, sys.maxsize):
                offsets = [cursor.part_offset + start for start in starts]
                yield MemberOffsets(names, offsets, list(map(sub, ends, starts)), BLOCK)
        elif (member := parser.next_member()) is not None:
            start = cursor.offset
            parser.pass_over(member[1], _member(member[0]))
            yield MemberOffsets([member[0]], [start], [member[1]], start - parser.member_start)
        else:
            break
    if position is not None:
        position.archive_end = parser.member_start


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
    parts: Parts,
    *,
    url: str,
    options: TarOptions,
    wanted: Callable[[str, int], bool] = lambda name, num_bytes: False,
) -> Iterator[MemberHeader]:
    """Yield each regular file of an archive, as strictly as :func:`read_member_batches`; skip the data of the others.

    Args:
        parts: the archive's bytes; skipped data are not downloaded if they have ``jump``, as for ``ByteReader``.
        url: for error messages.
        options: limits.
        wanted: called with name and size of a member; returns whether its data are requested.

    Raises:
        ShardReadError: as :func:`read_member_batches`.
    """
    parser = TarParser(parts, url, options)
    while (member := parser.next_member()) is not None:
        name, size = member
        start = parser.member_start
        data = (parser.take if wanted(name, size) else parser.pass_over)(size, _member(name))
        yield MemberHeader(name, size, start, data)


def first_name(
    parts: Parts, *, url: str, counts: Callable[[str], bool] = lambda name: True
) -> tuple[str | None, Iterator[Data]]:
    """Return the name of an archive's first regular file (``None`` if it has none), and all bytes of the archive.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        counts: returns whether a name counts as the first. Up to 1 MiB of other members may come before it.

    Raises:
        ShardReadError: if the bytes do not begin as an archive.
    """
    taken: list[Data] = []
    source = iter(parts)

    def keeping() -> Iterator[Data]:
        for part in source:
            taken.append(part)
            yield part

    parser = TarParser(keeping(), url, TarOptions(max_member_bytes=sys.maxsize))
    name = None
    while (member := parser.next_member()) is not None:
        name, size = member
        if counts(name) or parser.cursor.offset + size > _MAX_SKIPPED_BYTES:
            break
        parser.pass_over(size, _member(name))
    return member and name, chain(taken, source)


class NestedArchive(NamedTuple):
    """An archive inside an archive: its name, first byte and size."""

    name: str
    start: int
    num_bytes: int

    def after(self) -> int:
        """Return the first byte of the next member's header."""
        return self.start + self.num_bytes + padding(self.num_bytes)


def read_archives(
    parts: Parts, *, url: str, options: TarOptions, begun: NestedArchive | None = None
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
    inner = begun
    while True:
        if inner is None:
            member = parser.next_member()
            if member is None:
                return
            inner = NestedArchive(member[0], parser.cursor.offset, member[1])
        taken = parser.cursor.offset - inner.start
        pieces = parser.pieces(inner.num_bytes, _member(inner.name), taken=taken)
        yield inner, pieces
        for _ in pieces:
            pass
        inner = None


def read_lazy_batches(
    parts: Parts,
    *,
    url: str,
    options: TarOptions,
    position: ReadPosition | None = None,
    lazy: Collection[str],
    file_of: FileOf = lambda name, start, size: None,
) -> Iterator[tuple[list[str], list[Data | MemberFile]]]:
    """Like :func:`read_member_batches`, one member each, with files in place of the data of lazy members.

    Args:
        parts: the archive's bytes; data are passed over without a download if they have ``jump``, and they are told
            by ``expect(num_bytes)`` how many will be read.
        url: for error messages.
        options: limits.
        position: is set to where each member begins.
        lazy: extensions of the members that are handed out as files: complete ones, such as ``depth.mp4``, or their
            last parts, such as ``mp4``.
        file_of: makes the file of a member. Small ones, and those that it makes no file of, are read into memory.

    Raises:
        ShardReadError: as :func:`read_member_batches`.
    """
    position = position or ReadPosition()
    parser = TarParser(parts, url, options)
    cursor, expect = parser.cursor, getattr(parts, "expect", lambda num_bytes: None)
    run_start = cursor.offset  # of what was read since the last data that were passed over
    while (member := parser.next_member()) is not None:
        name, size = member
        position.batch_offset, position.batch_starts = parser.member_start, _ONE
        start, extension = cursor.offset, split_key(name)[1]
        is_lazy = extension in lazy or extension.rpartition(".")[2] in lazy
        file = file_of(name, start, size) if is_lazy and size > _SMALL_BYTES else None
        if file is not None:
            parser.pass_over(size, _member(name))
            expect(start - run_start)  # members come in the same order in each sample
            run_start = cursor.offset
            yield [name], [file]
            continue
        missing = size + padding(size) + BLOCK - (len(cursor.view) - cursor.position)
        if missing > 0:
            expect(missing)
        data = parser.take(size, _member(name))
        yield [name], [BytesFile(name, data) if is_lazy else data if options.copy else memoryview(data)]
    position.archive_end = parser.member_start
