"""Keys, members and offsets of shards: from the file of keys beside each, or from the shard's headers."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Generator, Iterable
from functools import partial

from ...core.notices import say
from ...core.options import RetryPolicy, StorageOptions
from ...core.threads import ordered_map
from ...core.urls import RemoteUrl, redact
from ...errors import ManifestError, ShardReadError
from ...formats.error_policy import MemberErrorHandler, OnBadMember, Skipped, raise_error
from ...formats.key_index import KeyIndex, keys_url, parse_keys
from ...formats.shard_members import read_samples
from ...formats.tar import TarOptions
from ...storage import read_whole
from ..listing.shard_set import read_if_there
from ..ranges import OneObject
from ..read_ahead import ReadAhead

_MAX_REQUESTS = 16
_COMMAND = "torchdata-remote manifest --overwrite FOLDER."


def key_indexes(
    urls: Iterable[RemoteUrl],
    options: StorageOptions,
    retry: RetryPolicy,
    *,
    on_bad_member: OnBadMember = raise_error,
) -> Generator[tuple[RemoteUrl, KeyIndex], None, None]:
    """Return each shard with the index of its keys, in order.

    It is read from the file beside the shard; without one, from the headers of the shard, with one warning. The file is
    verified by its checksum in the manifest. If that is unknown, the shard must have no samples after it.

    Args:
        urls: of the shards, with their sizes, and with number of samples and checksum of the keys if they are known.
        options: for the store.
        retry: policy for transient faults.
        on_bad_member: called with the error of a member of a shard without such a file.

    Raises:
        ManifestError: if a file does not belong to its shard, or the shard cannot have one.
        ShardReadError: if the headers of a shard are damaged.
    """
    tasks = (partial(_read, url, options, retry, on_bad_member) for url in urls)
    return ordered_map(tasks, max_threads=_MAX_REQUESTS)


def _read(
    url: RemoteUrl,
    options: StorageOptions,
    retry: RetryPolicy,
    on_bad_member: OnBadMember,
    wait: Callable[[float], None],
) -> tuple[RemoteUrl, KeyIndex]:
    headers = partial(ReadAhead, OneObject(url, options, retry, sleep=wait))
    # Without obstore, so that a process that only lists can be forked
    data = read_if_there(keys_url(url), options, retry, by_obstore=False)
    if data is None:
        say(
            "reads headers for keys",
            url,
            f"{redact(keys_url(url))} is missing: the keys of this shard, and of others without such a file, are read "
            f"from the shards' headers, which takes more requests. Write it: {_COMMAND}",
        )
        index = _index_of(url, headers(), on_bad_member)
        if url.num_samples not in (None, len(index.keys)):
            raise ManifestError(
                f"{redact(url)} has {len(index.keys):,} samples, and its manifest has {url.num_samples:,}: it was "
                f"replaced. Write it: {_COMMAND}",
                url=redact(url),
            )
        return url, index
    if url.keys_crc32 not in (None, zlib.crc32(data)):  # as a block of a shard, once more
        data = read_whole(keys_url(url), options, retry, by_obstore=False)
    if url.keys_crc32 not in (None, found := zlib.crc32(data)):
        raise _unusable(url, f"has the CRC-32 {found:08x}, and the shard's manifest has {url.keys_crc32:08x}")
    try:
        index = parse_keys(data, num_samples=url.num_samples, shard_bytes=url.size)
    except ValueError as error:
        raise _unusable(url, str(error)) from error
    if url.keys_crc32 is None and len(index.keys):
        try:
            further = _index_of(url, headers(start=int(index.stops()[-1])), lambda error: None).keys
        except ShardReadError as error:
            raise _unusable(url, "ends where no sample of the shard does") from error
        if further:
            raise _unusable(url, f"ends before {further[0]!r:.200} and another {len(further) - 1:,} samples")
    return url, index


def _index_of(url: RemoteUrl, parts: ReadAhead, on_bad_member: OnBadMember) -> KeyIndex:
    """Read the index of the samples that begin at the first byte of the parts, from the headers of the shard."""
    options = TarOptions(url.size, parts.start, max_member_bytes=sys.maxsize)
    return read_samples(parts, redact(url), options, MemberErrorHandler(on_bad_member, Skipped()))[1]


def _unusable(url: str, why: str) -> ManifestError:
    shown = redact(url)
    return ManifestError(
        f"{redact(keys_url(url))} {why}. It is damaged, or of another version of {shown}. Write it again: {_COMMAND}",
        url=shown,
    )
