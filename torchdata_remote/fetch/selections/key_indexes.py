"""Keys, members and offsets of shards: from the file of keys beside each, or from the shard's headers."""

from __future__ import annotations

import sys
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
from ...formats.error_policy import MemberErrorHandler, OnBadMember, Skipped, raise_error
from ...formats.grouping import samples_of
from ...formats.key_index import KeyIndex, key_index, keys_url, parse_keys
from ...formats.sample import KEY, URL
from ...formats.tar import TarOptions, read_member_offsets
from ..listing.shard_set import read_if_there
from ..read_ahead import ReadAhead

_MAX_REQUESTS = 16
_ZIP = b"PK\x03\x04", b"PK\x05\x06"
_COMMAND = "torchdata-remote manifest --overwrite FOLDER."


def key_indexes(
    urls: Iterable[RemoteUrl],
    options: StorageOptions,
    retry: RetryPolicy,
    *,
    on_bad_member: OnBadMember = raise_error,
) -> Generator[tuple[RemoteUrl, KeyIndex], None, None]:
    """Yield each shard with the index of its keys, in order.

    It is read from the file beside the shard; without one, from the headers of the shard, with one warning. The file is
    verified by its checksum in the manifest. If that is unknown, the headers of the last sample are read.

    Args:
        urls: of the shards, with their sizes, and with number of samples and checksum of the keys if they are known.
        options: for the store.
        retry: policy for transient faults.
        on_bad_member: called with the error of a member of a shard without such a file.

    Raises:
        ManifestError: if a file does not belong to its shard, or the shard cannot have one.
        ShardReadError: if the headers of a shard are damaged.
    """
    is_warned = False
    tasks = (partial(_read_with, url, options, retry, on_bad_member) for url in urls)
    with closing(ordered_map(tasks, max_threads=_MAX_REQUESTS)) as found:
        for url, index, is_scanned in found:
            if is_scanned and not is_warned:
                is_warned = True
                warnings.warn(
                    f"{redact(keys_url(url))} is missing: the keys of this shard, and of others without such a file, "
                    f"were read from the shards' headers, which takes more requests. Write it: {_COMMAND}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            yield url, index


def _read_with(
    url: RemoteUrl,
    options: StorageOptions,
    retry: RetryPolicy,
    on_bad_member: OnBadMember,
    wait: Callable[[float], None],
) -> tuple[RemoteUrl, KeyIndex, bool]:
    """Return the index, and whether it is that of the shard's headers."""
    # Without obstore, so that a process that only lists can be forked
    data = read_if_there(keys_url(url), options, retry, by_obstore=False)
    if data is None:
        return url, _scan(url, ReadAhead(url, options, retry=retry, sleep=wait), on_bad_member), True
    expected = url.keys_crc32
    if expected not in (None, zlib.crc32(data)):  # as a block of a shard, once more
        data = read_if_there(keys_url(url), options, retry, by_obstore=False) or data
    if expected not in (None, zlib.crc32(data)):
        raise _unusable(url, f"has the CRC-32 {zlib.crc32(data):08x}, and the shard's manifest has {expected:08x}")
    try:
        index = parse_keys(data, num_samples=url.num_samples, shard_bytes=url.size)
    except ValueError as error:
        raise _unusable(url, str(error)) from error
    if expected is None and len(index.keys):
        begin = int(index.begins()[-index.counts[-1]])  # of the last sample's headers
        _check_last(url, index, begin, ReadAhead(url, options, retry=retry, start=begin, sleep=wait))
    return url, index, False


def _scan(url: RemoteUrl, parts: ReadAhead, on_bad_member: OnBadMember) -> KeyIndex:
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
    policy = MemberErrorHandler(on_bad_member, Skipped())
    index = key_index(_samples(parts, shown, TarOptions(url.size, max_member_bytes=sys.maxsize), policy))
    if url.num_samples not in (None, len(index.keys)):
        raise ManifestError(
            f"{shown} has {len(index.keys):,} samples, and its manifest has {url.num_samples:,}: it was replaced. "
            f"Write it: {_COMMAND}",
            url=shown,
        )
    return index


def _samples(
    parts: ReadAhead, shown: str, options: TarOptions, on_bad_member: OnBadMember
) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    members = read_member_offsets(parts, url=shown, options=options)
    batches = ((batch.names, list(zip(batch.starts, batch.sizes, strict=True))) for batch in members)
    for sample in samples_of(batches, url=shown, on_bad_member=on_bad_member, on_empty=lambda error: None):
        yield sample[KEY], [(name, *place) for name, place in sample.items() if name not in (KEY, URL)]


def _check_last(url: RemoteUrl, index: KeyIndex, begin: int, parts: ReadAhead) -> None:
    """Require that the shard has the last sample of the index, at its bytes, and nothing after it."""
    last = slice(len(index.members) - int(index.counts[-1]), None)
    names = [index.extensions[member] for member in index.members[last].tolist()]
    expected = list(zip(names, index.starts[last].tolist(), index.sizes[last].tolist(), strict=True))
    options = TarOptions(url.size, begin, max_member_bytes=sys.maxsize)
    try:
        # Bad members were left out of the file, in front of the samples that follow
        found = list(_samples(parts, redact(url), options, lambda error: None))
    except ShardReadError as error:
        raise _unusable(url, f"puts a sample at byte {begin:,}, where none begins") from error
    if found != [(index.keys[-1], expected)]:
        raise _unusable(url, f"has {index.keys[-1]!r:.200} as the last sample, and the shard has another one")


def _unusable(url: str, why: str) -> ManifestError:
    shown = redact(url)
    return ManifestError(
        f"{redact(keys_url(url))} {why}. It is damaged, or of another version of {shown}. Write it again: {_COMMAND}",
        url=shown,
    )
