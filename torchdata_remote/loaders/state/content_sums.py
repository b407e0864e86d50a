"""A sum over a sample of an object's bytes, where no store tells one version of it from another."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any

from ...core.options import StorageOptions
from ...core.urls import WITHOUT_BUCKET
from ...errors import RemoteDataError
from ...storage.registry import open_store

_MOST_SUMMED = 1_024  # objects of a listing
_WINDOW_BYTES = 4 << 10  # at the beginning and in the middle
_LAST_BYTES = 16 << 10  # more than the zeros that tar programs fill an archive up with


def content_sums(urls: Sequence[Any]) -> list[int | None]:
    """CRC-32 of samples of the contents of local objects and of those of ``memory://``.

    A local file has no tag that a copy of the file has too. What is read of each is its size, the first 4 KiB, 4 KiB in
    the middle and the last 16 KiB, of 1,024 objects at most, which are chosen by their places only.

    Args:
        urls: in an order that does not depend on the process.

    Returns:
        A sum for each; 0 for those that were not chosen, ``None`` where an object is not local or cannot be read.
    """
    num_summed = min(len(urls), _MOST_SUMMED)
    chosen = {number * len(urls) // num_summed for number in range(num_summed)}
    texts = [os.fspath(url) if isinstance(url, os.PathLike) else url for url in urls]
    return [(_sum(url) if place in chosen else 0) if _is_here(url) else None for place, url in enumerate(texts)]


def _is_here(url: Any) -> bool:
    if not isinstance(url, str):
        return False
    scheme, separator, _ = url.partition("://")
    return not separator or scheme.lower() in WITHOUT_BUCKET


def _sum(url: str) -> int | None:
    try:
        store, path = open_store(url, StorageOptions())
        if store.find(path) is None:  # also where a text is no URL at all
            return None
        first = store.read(path, 0, _WINDOW_BYTES, None)
        sum_, size = zlib.crc32(first.whole(), first.total_bytes), first.total_bytes
        for start, end in ((size // 2, size // 2 + _WINDOW_BYTES), (max(0, size - _LAST_BYTES), size)):
            if size > _WINDOW_BYTES:
                sum_ = zlib.crc32(store.read(path, start, end, None).whole(), sum_)
        return sum_
    except RemoteDataError:  # reading it will fail as well, and say why
        return None
