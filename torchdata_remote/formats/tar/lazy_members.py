"""Read members, and pass over the data of those that are handed out as files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from ..byte_reader import Skippable
from ..member_file import BytesFile, MemberFile
from ..position import ReadPosition
from ..sample import split_key
from .header import BLOCK, padding
from .members import Data
from .parser import TarOptions, TarParser

SMALL_BYTES = 64 << 10
"""Members up to this size are read: that costs no more than a request of their own."""

FileOf = Callable[[str, int, int], MemberFile | None]
"""Called with name, first byte and size of a member; ``None`` where its data cannot be read later."""

LazyBatch = tuple[list[str], list[Data | MemberFile]]


@runtime_checkable
class JumpingParts(Skippable, Protocol):
    """Parts that skip bytes without downloading them, and know beforehand how many will be read."""

    def expect(self, num_bytes: int) -> None:
        """Say that the next bytes will be read."""


class LazyExtensions:
    """Which members are handed out as files.

    Args:
        extensions: complete ones, such as ``depth.mp4``, or their last parts, such as ``mp4``.
    """

    def __init__(self, extensions: Iterable[str]) -> None:
        self._extensions = frozenset(extensions)

    def __contains__(self, name: object) -> bool:
        extension = split_key(str(name))[1]
        return extension in self._extensions or extension.rpartition(".")[2] in self._extensions


def no_file(name: str, start: int, size: int) -> None:
    """A ``FileOf`` for archives whose members have no place in an object, such as compressed ones."""


def read_lazy_batches(
    parts: Iterable[Data],
    *,
    url: str,
    options: TarOptions,
    position: ReadPosition | None = None,
    lazy: LazyExtensions,
    file_of: FileOf = no_file,
) -> Iterator[LazyBatch]:
    """Like ``read_member_batches``, one member each, with files in place of the data of lazy members.

    Args:
        parts: the archive's bytes; data are passed over without a download if they are :class:`JumpingParts`.
        url: for error messages.
        options: limits.
        position: is set to where each member begins.
        lazy: which members are handed out as files.
        file_of: makes the file of a member. Small ones, and those that it makes no file of, are read into memory.

    Raises:
        ShardReadError: as ``read_member_batches``.
    """
    position = position or ReadPosition()
    parser = TarParser(parts, url, options)
    cursor, jumping = parser.cursor, parts if isinstance(parts, JumpingParts) else None
    run_start = cursor.offset  # of what was read since the last data that were passed over
    while (member := parser.next_member()) is not None:
        name, size = member
        position.batch_offset, position.batch_starts = parser.member_start, (0,)
        start, is_lazy, what = cursor.offset, name in lazy, f"member {name!r:.200}"
        file = file_of(name, start, size) if is_lazy and size > SMALL_BYTES else None
        if file is not None:
            parser.pass_over(size, what)
            if jumping is not None:
                jumping.expect(start - run_start)  # members come in the same order in each sample
            run_start = cursor.offset
            yield [name], [file]
            continue
        missing = size + padding(size) + BLOCK - (len(cursor.view) - cursor.position)
        if jumping is not None and missing > 0:
            jumping.expect(missing)
        data = parser.take(size, what)
        yield [name], [BytesFile(name, data) if is_lazy else data if options.copy else memoryview(data)]
    position.archive_end = parser.member_start
