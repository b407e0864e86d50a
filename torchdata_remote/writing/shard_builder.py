"""Build one shard: samples become tar bytes, which are compressed, hashed and stored in the background."""

from __future__ import annotations

import hashlib
import logging
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial

from ..core.background import Worker
from ..core.checksums import BlockSummer
from ..core.threads import close_at_exit
from ..core.urls import redact
from ..errors import ShardWriteError
from ..formats.compression import open_compressor
from ..formats.key_index import dump_keys, keys_url
from ..formats.manifest import ShardInfo
from ..formats.sample_index import dump_index, index_url
from ..formats.tar import END_OF_ARCHIVE
from ..storage import open_store, publish
from .packing import PackedMembers, PackedSample, join_samples
from .shard_folder import ShardFolder

_CHUNK_BYTES = 512 << 10  # small enough for the processor's cache, and for malloc to reuse the memory
_MAX_WAITING_BYTES = 4 << 20  # of samples that are not stored
_MAX_UNSUMMED_BYTES = 2 << 20
_SMALL_BYTES = 1 << 18  # are summed sooner than a thread is started

_log = logging.getLogger("torchdata_remote")


class ShardBuilder:
    """Builds a shard whose bytes are made, compressed and stored by one thread, and hashed by another.

    Besides the current sample it holds at most 16 MiB and four samples. A shard that is neither ended nor aborted is
    given up when the builder is collected or the interpreter ends: nothing of it remains.

    Args:
        url: of the shard; compressed if it ends in ``.gz``, ``.tgz`` or ``.zst``.
        folder: of the shard, which must still be claimed when it appears.
        overwrite: replace existing objects.
    """

    def __init__(self, url: str, folder: ShardFolder, *, overwrite: bool) -> None:
        self.url = url
        self.num_bytes = 0  # of the tar so far, compressed or not
        self.offsets: list[int] = []  # of the samples in the tar
        self._keys: set[str] = set()
        self._buffer: list[PackedSample] = []
        self._buffered = 0
        upload = _Upload(url, folder, self.offsets, overwrite=overwrite)
        try:
            self.worker: Worker[list[PackedSample], ShardInfo] = Worker(upload.run, max_backlog=_MAX_WAITING_BYTES)
        except BaseException:
            upload.abort()
            raise
        close_at_exit(self)

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
        if num_bytes >= _CHUNK_BYTES:
            self._flush()
        self._buffer.append(packed)
        self._buffered += num_bytes
        if self._buffered >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        samples, num_bytes = self._buffer, self._buffered
        self._buffer, self._buffered = [], 0
        if samples:
            self.worker.put(samples, num_bytes)

    def end(self) -> None:
        """End the archive without waiting: the worker publishes it, and then the objects beside it."""
        self._flush()
        self._keys = set()
        self.worker.end()

    def abort(self, timeout_s: float | None = None) -> None:
        """Remove what was stored, and end the threads. A shard that was ended is waited for instead, and stays.

        Args:
            timeout_s: seconds to wait at most. After them, and when called in the other thread itself, which may run a
                finalizer, the shard is given up in the background.
        """
        self.close()
        self.worker.join(timeout_s)

    def close(self) -> None:
        """As :meth:`abort`, without waiting."""
        self.worker.give_up()

    def join(self, deadline: float) -> None:
        """Wait for the other threads until ``time.monotonic()`` is ``deadline``."""
        self.worker.join(max(0.0, deadline - time.monotonic()))


class _Upload:
    """What the other thread does."""

    def __init__(self, url: str, folder: ShardFolder, offsets: list[int], *, overwrite: bool) -> None:
        self._url, self._folder, self._offsets, self._overwrite = url, folder, offsets, overwrite
        store, path = open_store(url, folder.options)
        self._pending = store.create(path, overwrite=overwrite)
        self._compressor = open_compressor(url)
        self._members = PackedMembers()
        self._md5, self._blocks = hashlib.md5(usedforsecurity=False), BlockSummer()
        self._num_bytes = self._tar_bytes = 0
        self._summer: Worker[bytes, None] | None = None  # MD5 is the slowest step

    def run(self, chunks: Iterator[list[PackedSample]]) -> ShardInfo:
        """Store samples until they end, and complete the object; or remove it, and raise what went wrong."""
        try:
            for samples in chunks:
                self._take(samples)
                samples.clear()
            end = self._tar_bytes
            self._compress(END_OF_ARCHIVE)
            if self._compressor is not None:
                self._put(self._compressor.flush())
            self._end_sum()
            self._folder.require_claim()
            self._pending.commit()
        except BaseException:
            self._end_sum()
            self.abort()
            raise
        beside: dict[str, bytes] = {}
        if self._compressor is None:
            index, keys = dump_index([*self._offsets, end]), dump_keys(self._members.index())
            beside = {index_url(self._url): index, keys_url(self._url): keys}
        for url, data in beside.items():
            publish(url, data, self._folder.options, overwrite=self._overwrite)
        crc32s, sums = map(zlib.crc32, beside.values()), self._blocks.checksums()
        return ShardInfo(self._url, len(self._offsets), self._num_bytes, self._md5.hexdigest(), sums, *crc32s)

    def abort(self) -> None:
        """Remove what was stored."""
        try:
            self._pending.abort()
        except Exception as error:  # noqa: BLE001  # what led here is what has to be told
            _log.warning("what was written of an object could not be removed: %s", error)

    def _end_sum(self) -> None:
        if self._summer is not None:
            self._summer.end()
            self._summer.result()

    def _take(self, samples: list[PackedSample]) -> None:
        if self._compressor is None:
            self._members.record(samples)
        for piece in samples[0].pieces() if len(samples) == 1 else (join_samples(samples),):  # it may be large
            self._compress(piece)

    def _compress(self, chunk: bytes | memoryview) -> None:
        data = bytes(chunk)
        self._tar_bytes += len(data)
        self._put(data if self._compressor is None else self._compressor.compress(data))

    def _put(self, chunk: bytes) -> None:
        if not chunk:
            return
        self._num_bytes += len(chunk)
        if self._summer is None and len(chunk) >= _SMALL_BYTES:
            self._summer = Worker(partial(_update_all, self._md5.update), max_backlog=_MAX_UNSUMMED_BYTES)
        if self._summer is None:
            self._md5.update(chunk)
        else:
            self._summer.put(chunk, len(chunk))
        self._blocks.update(chunk)
        self._pending.write(chunk)


def _update_all(update: Callable[[bytes], None], chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        update(chunk)
        del chunk  # or it would be held while the next one is waited for
