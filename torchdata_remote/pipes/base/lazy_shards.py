"""Shards of which a reader hands out some members as files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ...core.arguments import check
from ...core.iter_datapipe import IterDataPipe
from ...fetch.read_ahead import ReadAhead
from ...fetch.streams import parts_of
from ...formats.byte_reader import Skippable
from ...formats.compression.decompress import CompressionLimits, decompressed
from ...formats.tar.lazy_members import LazyBatch, LazyExtensions, no_file, read_lazy_batches
from .chain import upstream

Parts = Iterable[bytes | memoryview]


def checked_extensions(lazy: Any) -> frozenset[str]:
    """Return the extensions of a ``lazy=`` argument; none of them for ``None``.

    Raises:
        TypeError: if it is no collection of str.
        ValueError: for an extension with a dot before it, which no member has.
    """
    if lazy is None:
        return frozenset()
    if isinstance(lazy, str | bytes) or not isinstance(lazy, Iterable):
        advice = f" Write {{{lazy!r}}}." if isinstance(lazy, str) else ""
        raise check.marked(
            TypeError(f"lazy must be a set of extensions such as {{'mp4', 'wav'}}, got {check.shown(lazy)}.{advice}")
        )
    return frozenset(check.extension("lazy", extension, example="mp4") for extension in lazy)


def read_source_by_jumps(pipe: IterDataPipe[Any]) -> None:
    """Let the pipe that opens the streams fetch only what is read."""
    for found in upstream(pipe):
        jump = getattr(type(found), "read_by_jumps", None)
        if jump is not None:
            jump(found)


class LazyMembers(NamedTuple):
    """How a shard with lazy members is read.

    Args:
        extensions: of the members that are handed out as files.
        jumps: whether its stream may be read by jumps. Nested archives are read as a stream.
    """

    extensions: LazyExtensions
    jumps: bool

    def parts_of(self, url: str, stream: Any, limits: CompressionLimits) -> Parts:
        """Return the bytes of a stream: by jumps, if it is one for that and not compressed."""
        windows: ReadAhead | None = getattr(stream, "windows", None) if self.jumps else None
        if windows is None:
            return parts_of(url, stream)
        if not stream.first_byte:
            compression, unread = decompressed([windows.head()], url=url, limits=limits)
            unread.close()
            if compression is not None:
                return parts_of(url, stream)
        return windows

    def batches_of(self, stream: Any, parts: Parts) -> Callable[..., Iterator[LazyBatch]]:
        """Return the function that reads the members of an archive in these parts, lazy ones as files."""
        file_of = stream.file_of if isinstance(parts, Skippable) else no_file
        return partial(read_lazy_batches, lazy=self.extensions, file_of=file_of)
