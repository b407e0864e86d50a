"""``shard_zip_reader``: read samples from zip shards."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.arguments.amounts import whole
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import RemoteDataError
from ..fetch.streams import parts_of
from ..formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun, sample_runs
from ..formats.limits import MAX_MEMBER_BYTES, MAX_RATIO
from ..formats.position import ReadPosition
from ..formats.sample import Sample
from ..formats.zip import Entry, read_directory, read_members
from .env import Env
from .passes import Pass
from .readers import ShardPass, ShardReader


@functional_datapipe("shard_zip_reader")
class ShardZipReader(ShardReader):
    """Read samples from zip shards (functional name: ``shard_zip_reader``).

    The directory at the end of the archive is read first, by a separate ranged request; then the members are streamed
    in the order in which they are stored. Stored and deflated members are supported; their checksums are verified
    before they are yielded. Members are grouped into samples as by ``shard_tar_reader``, which also documents
    ``skipped``.

    Args:
        source_datapipe: bare URLs, which are prefetched with the default options of ``async_prefetch``; or
            ``(url, file_like)`` pairs, binary, from ``async_prefetch`` or seekable.
        on_bad_shard: called with the ``ShardReadError`` of a shard that cannot be read on: ``raise_error``,
            ``skip_with_warning``, or a function that raises, or returns to skip the rest of the shard.
        on_bad_member: as in ``shard_tar_reader``: called with the ``BadMemberError`` of a member that cannot be part
            of a sample; raises, or returns to skip that member.
        interleave: number of shards that are read concurrently, one sample of each in turn, in a deterministic order.
        max_member_bytes: maximum size of a member; a larger one is an error, before memory is allocated for it.
        max_ratio: maximum ratio of decompressed to compressed bytes of a member, beyond 16 MiB.
        storage_options: for bare URLs, in fsspec's vocabulary.

    Yields:
        dict: ``"__key__"`` (str), ``"__url__"`` (str), and one ``bytes`` for each member under its extension.

    Raises:
        ShardReadError: for an archive that is truncated, damaged, encrypted or ambiguous. :class:`BadMemberError` for a
            member that cannot be part of a sample.
        RemoteDataError: for a file that is neither seekable nor from ``async_prefetch``.

    Example:
        >>> import fsspec, io, zipfile
        >>> data = io.BytesIO()
        >>> with zipfile.ZipFile(data, "w") as archive:
        ...     archive.writestr("cat/1.txt", "miaow")
        >>> fsspec.filesystem("memory").pipe("/doc/0.zip", data.getvalue())
        >>> list(ShardZipReader(IterableWrapper(["memory://doc/0.zip"])))
        [{'__key__': 'cat/1', '__url__': 'memory://doc/0.zip', 'txt': b'miaow'}]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | tuple[str, Any]],
        *,
        on_bad_shard: OnBadShard = raise_error,
        on_bad_member: OnBadMember = raise_error,
        interleave: int = 1,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        max_ratio: int = MAX_RATIO,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            source_datapipe,
            on_bad_shard=on_bad_shard,
            on_bad_member=on_bad_member,
            interleave=interleave,
            storage_options=storage_options,
        )
        self.max_member_bytes = whole("max_member_bytes", max_member_bytes)
        self.max_ratio = whole("max_ratio", max_ratio)

    def open(self, env: Env) -> Pass[Sample]:
        return _ZipPass(self, env)


class _ZipPass(ShardPass):
    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        on_skip = self.skipped.count_member
        entries = _directory(url, stream)
        for entry in entries:
            if entry.kind == "link":
                guard.on_link(entry.path)
        members = read_members(
            parts_of(url, stream),
            entries,
            url=url,
            max_member_bytes=self.pipe.max_member_bytes,
            max_ratio=self.pipe.max_ratio,
            on_skip=on_skip,
            position=position,
        )
        batches = (([path], (data,)) for path, data in members)
        return sample_runs(
            batches,
            url=url,
            on_skip=on_skip,
            on_bad_member=guard.on_bad_member,
            on_empty=guard.on_empty,
            position=position,
        )


def _directory(url: str, stream: Any) -> list[Entry]:
    """Read the directory of the archive, and leave the stream at its first byte."""
    if hasattr(stream, "read_range"):
        return read_directory(stream.read_range, stream.find_num_bytes(), url=url)
    if not (hasattr(stream, "seekable") and stream.seekable()):
        raise RemoteDataError(
            f"{url}: the directory of a zip archive is at its end, and this {type(stream).__name__} is not seekable. "
            "Chain shard_zip_reader() after the URLs, after async_prefetch(), or after an opener of seekable files.",
            url=url,
        )

    def read_range(start: int, end: int) -> bytes:
        stream.seek(start)
        data: bytes = stream.read(end - start)
        return data

    entries = read_directory(read_range, stream.seek(0, io.SEEK_END), url=url)
    stream.seek(0)
    return entries
