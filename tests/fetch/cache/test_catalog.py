"""Exchanges with the index of a cache: each is seen whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.cache_folder import LARGE
from torchdata_remote.fetch.cache.catalog import Catalog
from torchdata_remote.fetch.cache.index import CacheIndex
from torchdata_remote.fetch.cache.object_table import Entry


def full() -> None:
    """What the rest of a transaction does if the disk is full."""
    raise OSError("no space left")


def test_what_others_store_after_an_exchange_that_failed_is_seen(tmp_path: Path) -> None:
    """Their objects get the numbers that the failed transaction had given to its own."""
    failing, other = (Catalog(CacheIndex(str(tmp_path), os.getuid()), LARGE) for _ in range(2))
    pack = other.exchange(lambda: other.space.add_pack(4_096))
    other.exchange(lambda: other.space.seal(pack, 4_096))
    own, others = Entry(1, 1, 0, 8, 0, pack.number), Entry(2, 1, 8, 8, 0, pack.number)
    failing.add(own, (0,), alone=False)
    with pytest.raises(OSError, match="no space"):
        failing.exchange(full)
    other.add(others, (0,), alone=False)
    other.exchange(lambda: None)
    failing.exchange(lambda: None)
    assert failing.find(2, 1, 8) == others
    other.exchange(lambda: None)
    assert other.find(1, 1, 8) == own
