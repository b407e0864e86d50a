"""Find the bytes of samples by the index beside a shard, and check them against the shard."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import RemoteUrl, redact
from ..errors import ManifestError, ObjectNotFoundError, ShardReadError
from ..formats.sample import naming_fault, split_key
from ..formats.sample_index import ENTRY_BYTES, Offsets, index_url, parse_index
from ..formats.tar import TarOptions, read_member_headers
from ..storage import Connection, RangeNotSatisfiableError, open_store, read_whole

_MOST_CHECKED = 131_071  # samples up to which the whole index, 1 MiB, is read to verify its checksum
_WINDOW_BYTES = 64 << 10


def wanted_bytes(
    url: str, samples: tuple[int, int], options: StorageOptions, retry: RetryPolicy
) -> tuple[int, int | None]:
    """Find the byte range of samples: first byte, and the byte after the last one, ``None`` for the shard's end.

    The index is verified by its checksum in the manifest. If there is none, or the index is too large to be read for a
    few samples, the shard is read at both borders to verify that samples begin there.

    Args:
        url: of the whole shard.
        samples: number of the first sample, and of the one after the last.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        ManifestError: if there is no index, or it does not belong to this shard.
    """
    first, last = samples
    num_samples = url.num_samples if isinstance(url, RemoteUrl) else None
    if not first < last <= (last if num_samples is None else num_samples):
        shown = redact(url)
        raise ManifestError(f"{shown}: no samples {first} to {last} in a shard of {num_samples} samples.", url=shown)
    is_checked = _index_crc32(url) is not None and num_samples is not None and num_samples <= _MOST_CHECKED
    # To check a border between two samples, the index entry before it is needed too
    begin = 0 if is_checked else (first or last) - 1
    end = num_samples if is_checked else (first if first and last == num_samples else last)
    assert end is not None
    store, path = open_store(index_url(url), options, Connection(read_timeout_s=retry.progress_timeout_s))
    try:
        answer = call_with_retries(
            lambda: store.read(path, begin * ENTRY_BYTES, (end + 1) * ENTRY_BYTES, None), retry, url=index_url(url)
        )
        data, index_bytes = answer.whole(), answer.total_bytes
    except ObjectNotFoundError as error:
        raise _unusable(url, "is missing") from error
    except RangeNotSatisfiableError as error:
        raise _unusable(url, "is too short") from error
    found = index_bytes // ENTRY_BYTES - 1 if num_samples is None else num_samples
    if index_bytes != (found + 1) * ENTRY_BYTES or last > found:
        raise _unusable(url, f"has {index_bytes:,} bytes, which does not match {found:,} samples")
    if is_checked:
        _require_crc32(url, data)
    entries = _parse(url, data, num_samples=found, first=begin, last=end)
    offsets = dict(enumerate(entries.tolist(), begin))
    start, stop = (offsets[first] if first else 0), (None if last == found else offsets[last])
    if not is_checked:
        for border in filter(None, (first, last if stop is not None else 0)):
            _check_border(url, offsets[border - 1], offsets[border], options, retry)
    return start, stop


def _index_crc32(url: str) -> int | None:
    return url.index_crc32 if isinstance(url, RemoteUrl) else None


def _require_crc32(url: str, data: bytes) -> None:
    expected = _index_crc32(url)
    if expected is not None and zlib.crc32(data) != expected:
        raise _unusable(url, f"has the CRC-32 {zlib.crc32(data):08x}, and the shard's manifest has {expected:08x}")


def _check_border(url: str, before: int, border: int, options: StorageOptions, retry: RetryPolicy) -> None:
    """Require that a sample begins at a byte: the members before and after it have different keys.

    Reads 64 KiB, or the headers of the previous sample and one more window if that sample is longer.

    Args:
        url: of the shard.
        before: first byte of the previous sample.
        border: first byte of the sample.
        options: for the store.
        retry: policy for transient faults.
    """
    shown = redact(url)
    window = _Window(url, options, retry)
    try:
        *_, last = [None, *_keys(window.parts(before, border), shown, TarOptions(first_byte=before, last_byte=border))]
        following = next(_keys(window.parts(border, None), shown, TarOptions(first_byte=border)), None)
    except ShardReadError as error:
        raise _unusable(url, f"puts a sample at byte {border:,}, where none begins") from error
    if last is None or following is None:
        raise _unusable(url, f"puts a sample into bytes {before:,} to {border:,}, and another one after it")
    if last == following:
        raise _unusable(url, f"splits the sample {last!r:.200} at byte {border:,}")


def _keys(parts: Iterable[bytes], shown: str, options: TarOptions) -> Iterator[str]:
    for head in read_member_headers(parts, url=shown, options=replace(options, max_member_bytes=sys.maxsize)):
        path = head.name.removeprefix("./")
        if naming_fault(path) is None:
            yield split_key(path)[0]


class _Window:
    """Reads a shard at arbitrary offsets; keeps the last window.

    Args:
        url: of the shard.
        options: for the store.
        retry: policy for transient faults.
    """

    def __init__(self, url: str, options: StorageOptions, retry: RetryPolicy) -> None:
        self._store, self._path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
        self._url, self._etag, self._retry = str(url), url.etag if isinstance(url, RemoteUrl) else None, retry
        self._start, self._data = 0, b""

    def parts(self, start: int, stop: int | None) -> _Parts:
        """Return the bytes ``start`` to ``stop`` as an iterable that can jump."""
        return _Parts(self._read_at, start, sys.maxsize if stop is None else stop)

    def _read_at(self, start: int) -> bytes:
        """Return a run of bytes from ``start`` on; empty at the end."""
        if not self._start <= start < self._start + len(self._data):
            try:
                self._data = call_with_retries(
                    lambda: self._store.read(self._path, start, start + _WINDOW_BYTES, self._etag).whole(),
                    self._retry,
                    url=self._url,
                )
            except RangeNotSatisfiableError:
                return b""
            self._start = start
        return self._data[start - self._start :]


class _Parts:
    """A range of a shard; skipped bytes are not read.

    Args:
        read_at: returns a run of bytes from an offset on.
        start: the first byte.
        stop: the byte after the last one.
    """

    def __init__(self, read_at: Callable[[int], bytes], start: int, stop: int) -> None:
        self._read_at, self._at, self._stop = read_at, start, stop

    def __iter__(self) -> Iterator[bytes]:
        while self._at < self._stop and (data := self._read_at(self._at)[: self._stop - self._at]):
            self._at += len(data)
            yield data

    def jump(self, num_bytes: int) -> int:
        """Skip bytes; returns how many were skipped."""
        num_bytes = min(num_bytes, self._stop - self._at)
        self._at += num_bytes
        return num_bytes


def read_offsets(url: RemoteUrl, options: StorageOptions, retry: RetryPolicy) -> Offsets:
    """Read the index of a shard: the first byte of each sample, then the end of the last one; uint64.

    Args:
        url: of the shard, with its size and number of samples.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        ManifestError: if there is no index, or it does not belong to this shard.
    """
    try:
        data = read_whole(index_url(url), options, retry)
    except ObjectNotFoundError as error:
        raise _unusable(url, "is missing") from error
    _require_crc32(url, data)
    return _parse(url, data, num_samples=url.num_samples or 0)


def _parse(url: str, data: bytes, *, num_samples: int, first: int = 0, last: int | None = None) -> Offsets:
    size = url.size if isinstance(url, RemoteUrl) else None
    try:
        return parse_index(data, num_samples=num_samples, shard_bytes=size, first=first, last=last)
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
