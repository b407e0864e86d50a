"""Keys, members and offsets of shards: from the file of keys beside each, or from the shard's headers."""

from __future__ import annotations

import sys
import time
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial

from ...core.options import RetryPolicy, StorageOptions
from ...core.threads.ordered_map import ordered_map
from ...core.urls import RemoteUrl, redact
from ...errors import ManifestError, ShardReadError
from ...formats.compression.decompress import CompressionLimits, decompressed
from ...formats.grouping import samples_of
from ...formats.key_index import KeyIndex, key_index, keys_url, parse_keys
from ...formats.sample import KEY, URL
from ...formats.tar import TarOptions, read_member_offsets
from ..listing.shard_set import read_if_there
from ..read_ahead import ReadAhead

MAX_REQUESTS = 16
_ZIP = b"PK\x03\x04", b"PK\x05\x06"
_WRITE = "Write it: torchdata-remote manifest --overwrite FOLDER."


def key_indexes(
    urls: Iterable[RemoteUrl], options: StorageOptions, retry: RetryPolicy, *, max_requests: int = MAX_REQUESTS
) -> Generator[tuple[RemoteUrl, KeyIndex], None, None]:
    """Yield each shard with the index of its keys, in order.

    Args:
        urls: of the shards.
        options: for the store.
        retry: policy for transient faults.
        max_requests: indexes that are read at once.

    Raises:
        ManifestError: as :func:`read_key_index`.
    """
    is_warned = False
    tasks = (partial(_read_with, url, options, retry) for url in urls)
    with closing(ordered_map(tasks, max_threads=max_requests)) as found:
        for url, index, is_scanned in found:
            if is_scanned and not is_warned:
                is_warned = True
                _warn(url)
            yield url, index


def read_key_index(url: RemoteUrl, options: StorageOptions, retry: RetryPolicy) -> KeyIndex:
    """Read the keys of a shard from the file beside it; without one, from the headers of the shard, with a warning.

    The file is verified by its checksum in the manifest. If that is unknown, the headers of the last sample are read.

    Args:
        url: of the shard, with its size, and with number of samples and checksum of the keys if they are known.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        ManifestError: if the file does not belong to this shard, or the shard cannot have one.
        ShardReadError: if the headers of the shard are damaged.
        BadMemberError: if it has a member that cannot be part of a sample, and there is no file.
    """
    index, is_scanned = _read(url, options, retry)
    if is_scanned:
        _warn(url)
    return index


def _read_with(
    url: RemoteUrl, options: StorageOptions, retry: RetryPolicy, wait: Callable[[float], None]
) -> tuple[RemoteUrl, KeyIndex, bool]:
    return url, *_read(url, options, retry, wait)


def _read(
    url: RemoteUrl, options: StorageOptions, retry: RetryPolicy, wait: Callable[[float], object] = time.sleep
) -> tuple[KeyIndex, bool]:
    """Return the index, and whether it is that of the shard's headers."""
    # Without obstore, so that a process that only lists can be forked
    data = read_if_there(keys_url(url), options, retry, by_obstore=False)
    if data is None:
        return _scan(url, ReadAhead(url, options, retry=retry, sleep=wait)), True
    expected = url.keys_crc32
    if expected is not None and zlib.crc32(data) != expected:  # as a block of a shard, once more
        data = read_if_there(keys_url(url), options, retry, by_obstore=False) or data
    if expected is not None and zlib.crc32(data) != expected:
        raise _unusable(url, f"has the CRC-32 {zlib.crc32(data):08x}, and the shard's manifest has {expected:08x}")
    try:
        index = parse_keys(data, num_samples=url.num_samples, shard_bytes=url.size)
    except ValueError as error:
        raise _unusable(url, str(error)) from error
    if expected is None and len(index.keys):
        _check_last(url, index, ReadAhead(url, options, retry=retry, start=_last_begin(index), sleep=wait))
    return index, False


def _scan(url: RemoteUrl, parts: ReadAhead) -> KeyIndex:
    """Read the index from the headers of a shard."""
    shown, head = redact(url), parts.head()
    if head[:4] in _ZIP:
        raise ShardReadError(f"{shown} is a zip, and samples can be selected from tars only.", url=shown)
    compression, unread = decompressed([head], url=shown, limits=CompressionLimits())
    unread.close()
    if compression is not None:
        raise ManifestError(
            f"{shown} is compressed by {compression}, so its samples cannot be read one by one. Write the shards "
            "uncompressed, and their images or arrays in formats that are compressed by themselves.",
            url=shown,
        )
    index = key_index(_samples(parts, shown, TarOptions(url.size, max_member_bytes=sys.maxsize)))
    if url.num_samples not in (None, len(index.keys)):
        raise ManifestError(
            f"{shown} has {len(index.keys):,} samples, and its manifest has {url.num_samples:,}: it was replaced. "
            f"{_WRITE}",
            url=shown,
        )
    return index


def _samples(parts: ReadAhead, shown: str, options: TarOptions) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    members = read_member_offsets(parts, url=shown, options=options)
    batches = ((batch.names, list(zip(batch.starts, batch.sizes, strict=True))) for batch in members)
    for sample in samples_of(batches, url=shown):  # type: ignore[arg-type]  # offsets, where readers pass data
        yield sample[KEY], [(name, *place) for name, place in sample.items() if name not in (KEY, URL)]


def _last_begin(index: KeyIndex) -> int:
    """Return the first byte of the last sample's headers."""
    return int(index.begins()[-index.counts[-1]])


def _check_last(url: RemoteUrl, index: KeyIndex, parts: ReadAhead) -> None:
    """Require that the shard has the last sample of the index, at its bytes, and nothing after it."""
    shown, begin, count = redact(url), _last_begin(index), int(index.counts[-1])
    expected = [
        (index.extensions[member], start, size)
        for member, start, size in zip(
            index.members[-count:].tolist(), index.starts[-count:].tolist(), index.sizes[-count:].tolist(), strict=True
        )
    ]
    options = TarOptions(url.size, begin, max_member_bytes=sys.maxsize)
    try:
        found = list(_samples(parts, shown, options))
    except ShardReadError as error:
        raise _unusable(url, f"puts a sample at byte {begin:,}, where none begins") from error
    if found != [(index.keys[-1], expected)]:
        raise _unusable(url, f"has {index.keys[-1]!r:.200} as the last sample, and the shard has another one")


def _warn(url: str) -> None:
    warnings.warn(
        f"{redact(keys_url(url))} is missing: the keys of this shard, and of others without such a file, were read "
        f"from the shards' headers, which takes more requests. {_WRITE}",
        RuntimeWarning,
        stacklevel=3,
    )


def _unusable(url: str, why: str) -> ManifestError:
    shown = redact(url)
    return ManifestError(
        f"{redact(keys_url(url))} {why}. It is damaged, or of another version of {shown}. Write it again: "
        "torchdata-remote manifest --overwrite FOLDER.",
        url=shown,
    )
