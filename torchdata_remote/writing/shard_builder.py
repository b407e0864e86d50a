"""Build one shard: samples become tar bytes, which are uploaded in the background."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import partial

from ..core.urls import redact
from ..errors import ShardWriteError
from ..formats.compression import is_compressed, open_compressor
from ..formats.key_index import dump_keys, keys_url
from ..formats.manifest import ShardInfo
from ..formats.sample_index import dump_index, index_url
from ..formats.tar import END_OF_ARCHIVE
from ..storage import ObjectWriter
from .background_upload import BackgroundUpload, Written
from .packed_members import PackedMembers
from .packed_sample import PackedSample, join_samples

CHUNK_BYTES = 512 << 10  # small enough for the processor's cache, and for malloc to reuse the memory


class ShardBuilder:
    """Builds a shard whose bytes are compressed, hashed and stored by other threads.

    Besides the current sample it holds at most 16 MiB and four samples. Its upload is aborted if the builder is
    collected before :meth:`end`.

    Args:
        url: of the shard; compressed if it ends in ``.gz``, ``.tgz`` or ``.zst``.
        writer: receives the bytes, and is owned by this object.
    """

    def __init__(self, url: str, writer: ObjectWriter) -> None:
        self.url = url
        self.upload = BackgroundUpload(writer, open_compressor(url))
        self.num_bytes = 0  # of the tar so far, compressed or not
        self.offsets: list[int] = []  # of the samples in the tar
        self._keys: set[str] = set()
        self._members = None if is_compressed(url) else PackedMembers()  # filled by the thread that stores the bytes
        self._info: ShardInfo | None = None
        self._buffer: list[PackedSample] = []
        self._buffered = 0

    @property
    def num_samples(self) -> int:
        """Number of samples so far."""
        return len(self.offsets)

    def check_key(self, key: str) -> None:
        """Require that no sample of the shard has this key.

        Raises:
            ShardWriteError: if one has.
        """
        if key in self._keys:
            raise ShardWriteError(
                f"{redact(self.url)}: two samples have the key {key!r}. Keys within a shard must differ; put the "
                "folder or a number into the key.",
                url=redact(self.url),
            )

    def add(self, packed: PackedSample) -> None:
        """Append a sample whose key has been checked.

        Raises:
            RemoteDataError: if bytes that were appended before could not be stored.
        """
        key, num_bytes, *_ = packed
        self._keys.add(key)
        self.offsets.append(self.num_bytes)
        self.num_bytes += num_bytes
        if num_bytes >= CHUNK_BYTES:
            self._flush()
            if self._members is not None:
                self.upload.write_joined([packed], self._members.record, 0)
            for piece in packed.pieces():
                self.upload.write([piece])
            return
        self._buffer.append(packed)
        self._buffered += num_bytes
        if self._buffered >= CHUNK_BYTES:
            self._flush()

    def _flush(self, end: bytes = b"") -> None:
        samples, num_bytes = self._buffer, self._buffered + len(end)
        self._buffer, self._buffered = [], 0
        # Not a method of this object, which must be collected if it is dropped
        join = join_samples if self._members is None else self._members.join
        self.upload.write_joined(samples, partial(join, end=end), num_bytes)

    def end(self, then: Callable[[ShardInfo, Mapping[str, bytes]], object] = lambda info, beside: None) -> None:
        """End the archive without waiting: it is published in the background.

        Args:
            then: called in another thread when the shard is published, with the URLs and contents of the objects that
                belong beside it; ``result`` raises its exceptions.
        """
        self._flush(END_OF_ARCHIVE)
        self._keys = set()
        self.upload.end(partial(self._finish, then))

    def _finish(self, then: Callable[[ShardInfo, Mapping[str, bytes]], object], written: Written) -> None:
        beside = self._beside()
        crc32s = map(zlib.crc32, beside.values())
        info = ShardInfo(self.url, self.num_samples, written.num_bytes, written.md5, written.checksums, *crc32s)
        self._members = None
        then(info, beside)
        self._info = info

    def result(self) -> ShardInfo:
        """After :meth:`end`: wait until the shard is published.

        Raises:
            RemoteDataError: if it could not be written.
        """
        self.upload.result()
        assert self._info is not None
        return self._info

    def _beside(self) -> dict[str, bytes]:
        """Return the index and the keys of the shard; a compressed one has none."""
        if self._members is None:
            return {}
        index, keys = dump_index([*self.offsets, self.num_bytes]), dump_keys(self._members.index())
        return {index_url(self.url): index, keys_url(self.url): keys}
