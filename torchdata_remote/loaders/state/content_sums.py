"""Checksums over samples of the bytes of objects that have no version tag."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from ...core.options import StorageOptions
from ...core.urls import WITHOUT_BUCKET
from ...errors import RemoteDataError
from ...storage import open_store

_MOST_SUMMED = 1_024  # objects of a listing
_WINDOW_BYTES = 4 << 10  # at the start and in the middle
_LAST_BYTES = 16 << 10  # more than the zeros with which tar programs pad an archive


def content_sums(items: Sequence[Any]) -> list[int | None]:
    """Compute the CRC-32 of samples of the contents of local objects and of those of ``memory://``.

    A local file has no tag that a copy of it has too. Summed are its size, the first 4 KiB, 4 KiB in the middle and the
    last 16 KiB, of the objects of at most 1,024 items, which are selected by their index only.

    Args:
        items: URLs, or tuples of those that are read together, in an order that is the same in all processes.

    Returns:
        A sum for each item; 0 if it was not selected, ``None`` if no object is local, or one cannot be read.
    """
    num_summed = min(len(items), _MOST_SUMMED)
    selected = {number * len(items) // num_summed for number in range(num_summed)}
    sum_of = cache(_sum)  # several items may read the same object
    sums: list[int | None] = []
    for index, item in enumerate(items):
        local = list(filter(_is_local, item)) if isinstance(item, tuple) else [item] * _is_local(item)
        found = [sum_of(os.fspath(url)) for url in local] if index in selected else [0] * len(local)
        if len(found) > 1:
            found = [None if None in found else zlib.crc32(repr(found).encode())]
        sums += found or [None]
    return sums


def _is_local(url: Any) -> bool:
    if not isinstance(url, str):
        return isinstance(url, os.PathLike)
    scheme, separator, _ = url.partition("://")
    return not separator or scheme.lower() in WITHOUT_BUCKET


def _sum(url: str) -> int | None:
    try:
        store, path = open_store(url, StorageOptions())
        if store.find(path) is None:  # also if the text is not a URL
            return None
        first = store.read(path, 0, _WINDOW_BYTES, None)
        sum_, size = zlib.crc32(first.whole(), first.total_bytes), first.total_bytes
        for start, end in ((size // 2, size // 2 + _WINDOW_BYTES), (max(0, size - _LAST_BYTES), size)):
            if size > _WINDOW_BYTES:
                sum_ = zlib.crc32(store.read(path, start, end, None).whole(), sum_)
        return sum_
    except RemoteDataError:  # the pass raises it again when it reads the object
        return None
