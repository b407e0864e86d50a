"""Find the bytes of samples by the index beside a shard."""

from __future__ import annotations

import zlib

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, redact
from ..errors import ManifestError, ObjectNotFoundError
from ..formats.sample_index import Offsets, index_url, parse_index
from ..storage import read_whole


def wanted_bytes(
    url: str, samples: tuple[int, int], options: StorageOptions, retry: RetryPolicy
) -> tuple[int, int | None]:
    """Find the byte range of samples: first byte, and the byte after the last one, ``None`` for the shard's end.

    Args:
        url: of the whole shard.
        samples: number of the first sample, and of the one after the last.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        ManifestError: if there is no index, it does not belong to this shard, or the manifest has no checksum of it.
    """
    assert isinstance(url, RemoteUrl)  # as all that has parts
    first, last = samples
    offsets = read_offsets(url, options, retry).tolist()
    num_samples = len(offsets) - 1
    if not first < last <= num_samples:
        shown = redact(url)
        raise ManifestError(f"{shown}: no samples {first} to {last} in a shard of {num_samples} samples.", url=shown)
    return offsets[first], None if last == num_samples else offsets[last]


def read_offsets(url: RemoteUrl, options: StorageOptions, retry: RetryPolicy) -> Offsets:
    """Read the index of a shard: the first byte of each sample, then the end of the last one; uint64.

    It is compared with its checksum in the manifest.

    Args:
        url: of the shard, with its size and number of samples as far as they are known.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        ManifestError: if there is no index, it does not belong to this shard, or the manifest has no checksum of it.
    """
    try:
        data = read_whole(index_url(url), options, retry)
    except ObjectNotFoundError as error:
        raise _unusable(url, "is missing") from error
    if url.index_crc32 is None:  # it may be that of another version, and cut a sample in two
        raise _unusable(url, "has no checksum in the shard's manifest")
    if url.index_crc32 != (found := zlib.crc32(data)):
        raise _unusable(url, f"has the CRC-32 {found:08x}, and the shard's manifest has {url.index_crc32:08x}")
    try:
        return parse_index(data, num_samples=url.num_samples, shard_bytes=url.size)
    except ValueError as error:
        raise _unusable(url, str(error)) from error


def _unusable(url: str, why: str) -> ManifestError:
    shown = redact(url)
    return ManifestError(
        f"{redact(index_url(url))} {why}. Reading only some samples of {shown} needs this index. "
        "Write it: torchdata-remote manifest --overwrite FOLDER. A compressed shard has none: write uncompressed tars, "
        "or use no more readers than there are shards, so that each reads whole shards.",
        url=shown,
    )
