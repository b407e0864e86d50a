"""Build one shard: samples become tar bytes, which are uploaded in the background."""

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
from ..storage import ObjectWriter
from .background_upload import BackgroundUpload, Written

Data = bytes | memoryview

CHUNK_BYTES = 512 << 10  # small enough for the processor's cache, and for malloc to reuse the memory
_COPIED_BYTES = 8 << 10  # members up to this size: one copy is cheaper than three pieces


class PackedSample:
    """Tar bytes of a sample: headers, data and padding of its members."""

    __slots__ = ("num_bytes", "pieces")

    def __init__(self, pieces: list[Data], num_bytes: int) -> None:
        self.pieces, self.num_bytes = pieces, num_bytes


def pack_sample(key: str, sample: Sample, max_member_bytes: int = MAX_MEMBER_BYTES) -> PackedSample:
    """Encode the members of a sample as tar members, sorted by extension.

    Raises:
        EncodeError: with the sample, the member and the types that its extension takes.
        ShardWriteError: for a member that is larger than readers accept.
    """
    pieces: list[Data] = []
    num_bytes = 0
    for extension in extensions(sample):
        value = sample[extension]
        data = value if type(value) is bytes else _encoded(key, extension, value)
        size = len(data)
        if size > max_member_bytes:
            raise ShardWriteError(
                f"Sample {key!r:.200}, member {extension!r:.200}: {size:,} bytes are more than readers accept "
                f"(max_member_bytes={max_member_bytes:,}). Split it, or raise that limit here and in the readers."
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
        self._buffer: list[Data] = []
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
                self.upload.write([piece])
            return
        self._buffer += packed.pieces
        self._buffered += packed.num_bytes
        if self._buffered >= CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        pieces, self._buffer, self._buffered = self._buffer, [], 0
        self.upload.write(pieces)

    def end(self, then: Callable[[ShardInfo], object] = lambda info: None) -> None:
        """End the archive without waiting: it is published in the background.

        Args:
            then: called in another thread when the shard is published; ``result`` raises its exceptions.
        """
        self._buffer.append(END_OF_ARCHIVE)
        self._flush()
        self._keys = set()
        self.upload.end(lambda written: then(self._info(written)))

    def result(self) -> ShardInfo:
        """After :meth:`end`: wait until the shard is published.

        Raises:
            RemoteDataError: if it could not be written.
        """
        return self._info(self.upload.result())

    def _info(self, written: Written) -> ShardInfo:
        index = self.index()
        index_crc32 = None if index is None else zlib.crc32(index)
        return ShardInfo(self.url, self.num_samples, written.num_bytes, written.md5, written.checksums, index_crc32)

    def index(self) -> bytes | None:
        """Return the ``.idx`` file of the shard; ``None`` for a compressed one."""
        return None if is_compressed(self.url) else dump_index([*self.offsets, self.num_bytes])
