"""Compare the objects beside a shard, its index and its keys, with what the shard holds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, redact
from ..errors import RemoteDataError
from ..formats.key_index import KeyIndex, companion_urls, is_dump_of, keys_url, max_dump_bytes
from ..formats.manifest import ShardInfo
from ..formats.sample_index import dump_index, index_url
from ..formats.shard_members import ShardMembers
from ..storage import read_whole
from .faults import Fault

_WRITE = "Write it: torchdata-remote manifest --overwrite FOLDER"


def faults_beside(
    expected: ShardInfo,
    found: ShardMembers,
    listed: Mapping[str, RemoteUrl],
    options: StorageOptions,
    retry: RetryPolicy,
) -> list[Fault]:
    """Return the faults of the objects beside a shard.

    Args:
        expected: the shard's entry in the manifest.
        found: in the shard.
        listed: URL -> object of the folder; empty if the store has no listing.
        options: for the store.
        retry: policy for transient faults.
    """
    if found.compression is not None:
        kinds = ("index", "file of keys")
        return [
            Fault(redact(url), f"is the {kind} of a shard compressed by {found.compression}, which cannot have one")
            for url, kind in zip(companion_urls(expected.url), kinds, strict=True)
            if url in listed
        ]
    check = _Check(expected, found, listed, options, retry)
    return [*_faults(index_url(expected.url), check.index), *_faults(keys_url(expected.url), check.keys)]


def _faults(url: str, compare: Callable[[str], Iterable[str]]) -> list[Fault]:
    try:
        return [Fault(redact(url), what) for what in compare(url)]
    except RemoteDataError as error:
        return [Fault(redact(url), f"cannot be read: {error}")]


class _Check:
    """Yields what is wrong with an object: at most one fault."""

    def __init__(
        self,
        expected: ShardInfo,
        found: ShardMembers,
        listed: Mapping[str, RemoteUrl],
        options: StorageOptions,
        retry: RetryPolicy,
    ) -> None:
        self._expected, self._found, self._listed, self._options, self._retry = expected, found, listed, options, retry

    def _size(self, url: str) -> int | None:
        return self._listed[url].size if self._listed else None

    def index(self, url: str) -> Iterator[str]:
        """Compare the index."""
        right = dump_index(self._found.offsets)
        if self._listed and url not in self._listed:
            yield f"the shard has no index. {_WRITE}"
        elif self._size(url) not in (None, len(right)):
            num_samples = self._found.num_samples
            yield f"has {self._size(url):,} bytes, where an index of {num_samples:,} samples has {len(right):,}"
        elif (data := read_whole(url, self._options, self._retry)) != right:
            yield "does not hold the offsets of the samples: it is the index of another shard, or damaged"
        else:
            yield from _compare_sum(data, self._expected.index_crc32)

    def keys(self, url: str) -> Iterator[str]:
        """Compare the file of keys, which earlier releases did not write."""
        right, is_expected = self._found.keys, self._expected.keys_crc32 is not None
        if url not in self._listed if self._listed else not is_expected:
            if is_expected:
                yield f"the shard has no file of keys. {_WRITE}"
            return
        size, most = self._size(url), max_dump_bytes(right)
        if size is not None and size > most:
            yield f"has {size:,} bytes, where a file of these {len(right.keys):,} keys has {most:,} at most"
            return
        data = read_whole(url, self._options, self._retry)
        what = _compare_keys(data, right)
        if what is not None:
            yield what
        else:
            yield from _compare_sum(data, self._expected.keys_crc32)


def _compare_keys(data: bytes, right: KeyIndex) -> str | None:
    try:
        is_right = is_dump_of(data, right)
    except ValueError as error:
        return str(error)
    return None if is_right else "does not hold the keys of the samples: it is the file of another shard, or damaged"


def _compare_sum(data: bytes, expected: int | None) -> Iterator[str]:
    if expected not in (None, zlib.crc32(data)):
        yield f"has the CRC-32 {zlib.crc32(data):08x}, the manifest has {expected:08x}"
