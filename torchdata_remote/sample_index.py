"""The index beside a shard: at which byte each sample begins, in the layout of Energon's ``.tar.idx``.

Unsigned 64-bit integers, little-endian: the first byte of each sample, headers included, and the byte after the last
one's padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .errors import ManifestError, ObjectNotFoundError
from .options import RetryPolicy, StorageOptions
from .retry import call_with_retries
from .storage import Connection, open_store
from .urls import RemoteUrl, redact

_ENTRY_BYTES = 8


def index_url(url: str) -> str:
    """Where a shard's index lies."""
    return f"{url}.idx"


def dump_index(offsets: Sequence[int]) -> bytes:
    """The index of samples that begin at these bytes; the last one is where the last sample ends."""
    return np.asarray(offsets, "<u8").tobytes()


def wanted_bytes(url: str, options: StorageOptions, retry: RetryPolicy) -> tuple[int, int | None]:
    """Where the samples lie that a URL asks for: the first byte, and the one after the last; ``None`` for the end.

    Raises:
        ManifestError: if there is no index, or it is not one of this shard.
    """
    if not isinstance(url, RemoteUrl) or url.samples is None:
        return 0, None
    first, last = url.samples
    num_samples, shown = url.num_samples, redact(url)
    whole = last == num_samples
    if num_samples is None or not 0 <= first < last <= num_samples:
        raise ManifestError(f"{shown}: there are no samples {first} to {last} in a shard of {num_samples}.", url=shown)
    begin, end = (first if first else last), (first if whole else last)
    if begin > end:
        return 0, None
    store, path = open_store(index_url(url), options, Connection(read_timeout_s=retry.progress_timeout_s))
    start_byte, end_byte = begin * _ENTRY_BYTES, (end + 1) * _ENTRY_BYTES
    try:
        answer = call_with_retries(lambda: store.read(path, start_byte, end_byte, None), retry)
        data = answer.whole()
    except ObjectNotFoundError as error:
        raise ManifestError(
            f"{redact(index_url(url))} is missing. Some readers take a part of {shown} only, and its index tells where "
            "samples begin. Write it: torchdata-remote manifest --overwrite FOLDER",
            url=shown,
        ) from error
    offsets = np.frombuffer(data, "<u8")
    start, stop = (int(offsets[0]) if first else 0), (None if whole else int(offsets[-1]))
    size = url.size if url.size is not None else start + 1
    if answer.total_bytes != (num_samples + 1) * _ENTRY_BYTES or not 0 <= start < (size if stop is None else stop):
        raise ManifestError(
            f"{redact(index_url(url))} is not the index of {shown}, which has {num_samples:,} samples and {size:,} "
            f"bytes: it has {answer.total_bytes:,} bytes, and says {start:,} to {stop}. Write it again: "
            "torchdata-remote manifest --overwrite FOLDER",
            url=shown,
        )
    return start, stop
