"""A shard while it is filled: samples to tar bytes, bytes to an object that is on its way."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from ..core.urls import redact
from ..errors import EncodeError, ShardWriteError
from ..formats.compression.compress import is_compressed, open_compressor
from ..formats.encoders import encode_member
from ..formats.limits import MAX_MEMBER_BYTES
from ..formats.manifest import ShardInfo
from ..formats.sample import Sample, extensions
from ..formats.sample_index import dump_index
from ..formats.tar import END_OF_ARCHIVE, pack_header, pack_member, padding
from ..storage.registry import ObjectWriter
from .background_upload import BackgroundUpload, Written

Data = bytes | memoryview

CHUNK_BYTES = 512 << 10  # so little stays in the processor's cache, and is memory that malloc keeps at hand
_COPIED_BYTES = 8 << 10  # of a member: less than what three pieces cost


class PackedSample:
    """A sample as tar bytes: headers, data and padding of its members."""

    __slots__ = ("num_bytes", "pieces")

    def __init__(self, pieces: list[Data], num_bytes: int) -> None:
        self.pieces, self.num_bytes = pieces, num_bytes


def pack_sample(key: str, sample: Sample, max_member_bytes: int = MAX_MEMBER_BYTES) -> PackedSample:
    """Encode and frame the members of a sample, sorted by extension.

    Raises:
        EncodeError: names the sample, the member and what it would take.
        ShardWriteError: for a member that is larger than readers take.
    """
    pieces: list[Data] = []
    num_bytes = 0
    for extension in extensions(sample):
        value = sample[extension]
        data = value if type(value) is bytes else _encoded(key, extension, value)
        size = len(data)
        if size > max_member_bytes:
            raise ShardWriteError(
                f"Sample {key!r:.200}, member {extension!r:.200}: {size:,} bytes are more than readers take "
                f"(max_member_bytes={max_member_bytes:,}). Divide it, or raise that limit here and where it is read."
            )
        if size <= _COPIED_BYTES:
            whole = pack_member(f"{key}.{extension}", bytes(data))
            pieces.append(whole)
            num_bytes += len(whole)
        else:
            header = pack_header(f"{key}.{extension}", size)
            pieces += (header, data, bytes(padding(size)))
            num_bytes += len(header) + size + padding(size)
    return PackedSample(pieces, num_bytes)


def _encoded(key: str, extension: str, value: Any) -> Data:
    if type(value) is memoryview and value.ndim == 1 and value.format == "B" and value.contiguous:
        return value
    try:
        return encode_member(extension, value)
    except EncodeError as error:
        raise EncodeError(f"Sample {key!r}: {error}") from error


class ShardBuilder:
    """A shard that is being filled; its bytes are compressed, summed and stored by other threads meanwhile.

    Besides the sample at hand it holds at most 16 MiB and four samples. One that is forgotten is given up.

    Args:
        url: where it will appear; compressed if it ends in ``.gz``, ``.tgz`` or ``.zst``.
        pending: takes its bytes, and is nobody else's from now on.
    """

    def __init__(self, url: str, pending: ObjectWriter) -> None:
        self.url = url
        self.pending = BackgroundUpload(pending, open_compressor(url))
        self.num_bytes = 0  # of the tar so far, compressed or not
        self.offsets: list[int] = []  # of the samples in the tar
        self._keys: set[str] = set()
        self._buffer: list[Data] = []
        self._buffered = 0

    @property
    def num_samples(self) -> int:
        """Samples in it so far."""
        return len(self.offsets)

    def check_key(self, key: str) -> None:
        """Whether a sample may have this key.

        Raises:
            ShardWriteError: if the shard has a sample with this key.
        """
        if key in self._keys:
            raise ShardWriteError(
                f"{redact(self.url)}: two samples have the key {key!r}. Keys within a shard must differ; put the "
                "folder or a number into the key.",
                url=redact(self.url),
            )

    def add(self, key: str, packed: PackedSample) -> None:
        """Append a sample whose key has been checked.

        Raises:
            RemoteDataError: if bytes that were appended before could not be stored.
        """
        self._keys.add(key)
        self.offsets.append(self.num_bytes)
        self.num_bytes += packed.num_bytes
        if packed.num_bytes >= CHUNK_BYTES:
            self._flush()
            for piece in packed.pieces:
                self.pending.write([piece])
            return
        self._buffer += packed.pieces
        self._buffered += packed.num_bytes
        if self._buffered >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        pieces, self._buffer, self._buffered = self._buffer, [], 0
        self.pending.write(pieces)

    def end(self, then: Callable[[ShardInfo], object] = lambda info: None) -> None:
        """End the archive; it appears by itself, without being waited for.

        Args:
            then: called by another thread when the shard is there; what it raises is what ``result`` raises.
        """
        self._buffer.append(END_OF_ARCHIVE)
        self._flush()
        self._keys = set()
        self.pending.end(lambda written: then(self._info(written)))

    @property
    def settled(self) -> bool:
        """Whether ``result`` has not to wait."""
        return self.pending.settled

    def result(self) -> ShardInfo:
        """Wait until the shard, which was ended, is there.

        Raises:
            RemoteDataError: if it could not be written.
        """
        return self._info(self.pending.result())

    def _info(self, written: Written) -> ShardInfo:
        index = self.index()
        index_crc32 = None if index is None else zlib.crc32(index)
        return ShardInfo(self.url, self.num_samples, written.num_bytes, written.md5, written.checksums, index_crc32)

    def index(self) -> bytes | None:
        """The index that is to lie beside it; a compressed shard has none."""
        return None if is_compressed(self.url) else dump_index([*self.offsets, self.num_bytes])

    def finish(self) -> ShardInfo:
        """End the archive and wait until it is there.

        Raises:
            RemoteDataError: if it could not be written.
        """
        self.end()
        return self.result()
