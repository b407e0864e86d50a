"""The index beside a shard: at which byte each sample begins, in the layout of Energon's ``.tar.idx``.

Unsigned 64-bit integers, little-endian: the first byte of each sample, headers included, and the byte after the last
one's padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import ManifestError, ObjectNotFoundError
from .options import RetryPolicy, StorageOptions
from .retry import call_with_retries
from .storage import Connection, RangeNotSatisfiableError, open_store, read_whole
from .tar import BLOCK
from .urls import RemoteUrl, redact

Offsets = np.ndarray[Any, np.dtype[np.uint64]]

_ENTRY_BYTES = 8


def index_url(url: str) -> str:
    """Where a shard's index lies."""
    return f"{url}.idx"


def dump_index(offsets: Sequence[int]) -> bytes:
    """The index of samples that begin at these bytes; the last one is where the last sample ends."""
    return np.asarray(offsets, "<u8").tobytes()


def wanted_bytes(
    url: str, samples: tuple[int, int], options: StorageOptions, retry: RetryPolicy
) -> tuple[int, int | None]:
    """Where samples of a shard lie: the first byte, and the one after the last; ``None`` for the shard's end.

    Args:
        url: of the whole shard.
        samples: the first one, and the one after the last.
        options: for the store.
        retry: what is done about faults that may pass.

    Raises:
        ManifestError: if there is no index, or it is not one of this shard.
    """
    first, last = samples
    num_samples, size = (url.num_samples, url.size) if isinstance(url, RemoteUrl) else (None, None)
    if not first < last <= (last if num_samples is None else num_samples):
        shown = redact(url)
        raise ManifestError(f"{shown}: no samples {first} to {last} in a shard of {num_samples}.", url=shown)
    begin, end = (first if first else last), (first if first and last == num_samples else last)
    store, path = open_store(index_url(url), options, Connection(read_timeout_s=retry.progress_timeout_s))
    try:
        answer = call_with_retries(
            lambda: store.read(path, begin * _ENTRY_BYTES, (end + 1) * _ENTRY_BYTES, None), retry
        )
        data, index_bytes = answer.whole(), answer.total_bytes
    except ObjectNotFoundError as error:
        raise _unusable(url, "is missing") from error
    except RangeNotSatisfiableError as error:
        raise _unusable(url, "is too short") from error
    found = index_bytes // _ENTRY_BYTES - 1 if num_samples is None else num_samples
    if index_bytes != (found + 1) * _ENTRY_BYTES or len(data) != (end + 1 - begin) * _ENTRY_BYTES or last > found:
        raise _unusable(url, f"has {index_bytes:,} bytes, which is not right for {found:,} samples")
    offsets = np.frombuffer(data, "<u8")
    start, stop = (int(offsets[0]) if first else 0), (None if last == found else int(offsets[-1]))
    most = size if size is not None else max(start + 1, stop or 0)
    in_order = start < (most if stop is None else stop) <= most and (start > 0 or first == 0)
    if not in_order or start % BLOCK or (stop or 0) % BLOCK:
        raise _unusable(url, f"says that samples {first:,} to {last:,} lie in bytes {start:,} to {stop} of {size}")
    return start, stop


def read_offsets(url: RemoteUrl, options: StorageOptions, retry: RetryPolicy) -> Offsets:
    """At which byte each sample of a shard begins, and behind the last one where that ends; uint64.

    Args:
        url: of the shard, with its size and number of samples.
        options: for the store.
        retry: what is done about faults that may pass.

    Raises:
        ManifestError: if there is no index, or it is not one of this shard.
    """
    try:
        data = read_whole(index_url(url), options, retry)
    except ObjectNotFoundError as error:
        raise _unusable(url, "is missing") from error
    if len(data) % _ENTRY_BYTES or len(data) != ((url.num_samples or 0) + 1) * _ENTRY_BYTES:
        raise _unusable(url, f"has {len(data):,} bytes, which is not right for {url.num_samples} samples")
    offsets = np.frombuffer(data, "<u8")
    if (offsets % BLOCK).any() or (offsets[1:] <= offsets[:-1]).any() or int(offsets[-1]) > (url.size or 0):
        raise _unusable(url, f"tells of samples that do not lie one after the other in its {url.size} bytes")
    return offsets


def _unusable(url: str, why: str) -> ManifestError:
    shown = redact(url)
    return ManifestError(
        f"{redact(index_url(url))} {why}. A part of {shown} is wanted only, and its index tells where samples begin. "
        "Write it: torchdata-remote manifest --overwrite FOLDER. A compressed shard has none: write tars that are not "
        "compressed, or read it from its beginning, by no more readers than there are shards.",
        url=shown,
    )
