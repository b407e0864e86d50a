"""What a process has to tell the others of its cache."""

from __future__ import annotations

from torchdata_remote.fetch.cache.changes import Changes
from torchdata_remote.fetch.cache.object_table import Entry


def test_an_empty_object_that_was_dropped_is_told_after_an_exchange_that_failed() -> None:
    """It has no bytes to count."""
    failed, changes = Changes(), Changes()
    failed.dropped.append(Entry(key=1, version=1, offset=0, size=0, crc32=0, pack=3))
    failed.replaced[3] += 0
    assert failed
    assert not changes
    changes.put_back(failed)
    assert changes
    assert changes.dropped == failed.dropped
