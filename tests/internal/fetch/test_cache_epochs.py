"""What the cache keeps over many epochs: what is read, and what was read last."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.reading.test_cache import MIB, NUM, OBJECT_BYTES, cached, random_epoch
from tests.support.scripted_store import numbered, store_of
from tests.support.waiting import wait_for
from torchdata_remote.fetch.cache import disk_cache


@pytest.fixture(autouse=True)
def _short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of less than the minute in which a second read of an object counts as one of another rank."""
    monkeypatch.setattr(disk_cache, "_READS_APART_S", 0)


def test_a_dataset_that_is_not_read_any_more_makes_room_for_another_one(tmp_path: Path) -> None:
    with store_of(numbered(NUM, OBJECT_BYTES)) as before, store_of(numbered(NUM, OBJECT_BYTES)) as after:
        for seed in range(3):
            random_epoch(before, tmp_path, 2 * MIB, seed)
        assert random_epoch(after, tmp_path, 2 * MIB, 0) == 0
        wait_for(lambda: random_epoch(after, tmp_path, 2 * MIB, 1) >= 0.4)


@pytest.mark.parametrize(("num_epochs", "old_stays"), [(1, True), (8, False)])
def test_what_is_read_stays_and_what_was_unread_for_eight_epochs_has_made_room(
    tmp_path: Path, num_epochs: int, old_stays: bool
) -> None:
    with store_of(numbered(27, OBJECT_BYTES)) as store:
        old, live, new = store.urls()[:9], store.urls()[9:18], store.urls()[18:]

        def requested(urls: list[str]) -> set[str]:
            store.reads.clear()
            for name, stream in store.open(urls, part_bytes=MIB, **cached(tmp_path, 2 * MIB)):
                assert stream.read() == store.objects[name]
            return {read.name for read in store.reads}

        assert len(requested(old + live)) == 18, "which fill the cache"
        assert requested(old + live) == set()
        for _ in range(num_epochs):
            again = requested(random.Random(num_epochs).sample(live + new, 18))
            assert again <= {url.removeprefix(store.url) for url in new}
        assert (requested(old) == set()) == old_stays
        assert (len(again) == 9) == old_stays


def test_two_datasets_that_are_read_in_turn_keep_what_they_have(tmp_path: Path) -> None:
    """Such as for training and validation."""
    with store_of(numbered(NUM, OBJECT_BYTES)) as training, store_of(numbered(NUM // 4, OBJECT_BYTES)) as validation:
        stores = (validation, training)
        turns = [[random_epoch(store, tmp_path, 3 * MIB, seed) for store in stores] for seed in range(6)]
    assert turns[0] == [0, 0]
    assert min(kept for kept, _ in turns[1:]) == 1
    assert min(kept for _, kept in turns[1:]) >= 0.4
