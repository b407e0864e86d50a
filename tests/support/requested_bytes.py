"""Bytes that a client requested from a store by ranges."""

from __future__ import annotations

from torchdata_remote.testing import FaultyStore


def requested_bytes(store: FaultyStore, suffix: str) -> int:
    """Sum the ranges of all GETs of objects whose path ends in ``suffix``; a GET without a range fails."""
    total = 0
    for request in store.requests:
        if request.method == "GET" and request.path.endswith(suffix):
            assert request.range is not None
            first, last = request.range.removeprefix("bytes=").split("-")
            total += int(last) + 1 - int(first)
    return total
