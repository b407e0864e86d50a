"""A shard while it is filled: samples to tar bytes, bytes to a pending object."""

from __future__ import annotations

import hashlib

from .checksums import BlockSummer
from .encoders import encode_member
from .errors import EncodeError, ShardWriteError
from .manifest import ShardInfo
from .sample import Sample, members
from .storage import PendingObject
from .tar import END_OF_ARCHIVE, pack_header, padding
from .urls import redact

_WRITE_BYTES = 1 << 20


class PackedSample:
    """A sample as tar bytes: headers, data and padding of its members."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.num_bytes = 0

    def add(self, piece: bytes) -> None:
        """Append bytes."""
        if piece:
            self.pieces.append(piece)
            self.num_bytes += len(piece)


def pack_sample(key: str, sample: Sample) -> PackedSample:
    """Encode and frame the members of a sample, sorted by extension.

    Raises:
        EncodeError: names the sample, the member and what it would take.
    """
    packed = PackedSample()
    for extension, value in members(sample):
        try:
            data = encode_member(extension, value)
        except EncodeError as error:
            raise EncodeError(f"Sample {key!r}: {error}") from error
        packed.add(pack_header(f"{key}.{extension}", len(data)))
        packed.add(data)
        packed.add(bytes(padding(len(data))))
    return packed


class OpenShard:
    """A shard that is being filled.

    Args:
        url: where it will appear.
        pending: takes its bytes.
    """

    def __init__(self, url: str, pending: PendingObject) -> None:
        self.url, self.pending = url, pending
        self.num_bytes = 0
        self.offsets: list[int] = []  # of the samples
        self._keys: set[str] = set()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._blocks = BlockSummer()
        self._buffer: list[bytes] = []
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
        """Append a sample whose key has been checked."""
        self._keys.add(key)
        self.offsets.append(self.num_bytes)
        self.num_bytes += packed.num_bytes
        self._buffer.extend(packed.pieces)
        self._buffered += packed.num_bytes
        if self._buffered >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        data, self._buffer, self._buffered = b"".join(self._buffer), [], 0
        self._md5.update(data)
        self._blocks.update(data)
        self.pending.write(data)

    def finish(self) -> ShardInfo:
        """End the archive and make it appear."""
        self._buffer.append(END_OF_ARCHIVE)
        self._flush()
        self.pending.commit()
        num_bytes = self.num_bytes + len(END_OF_ARCHIVE)
        return ShardInfo(self.url, self.num_samples, num_bytes, self._md5.hexdigest(), self._blocks.checksums())
