"""Equal ranks: all have as many samples; fewer than slots are left out or repeated, others in each epoch."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.shard_places import Place
from torchdata_remote.errors import EmptyShareError, SampleError
from torchdata_remote.testing import all_worlds, write_small_shards

COUNTS = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@cache
def manifests(counts: tuple[int, ...]) -> list[str]:
    """Shards with so many samples, each with a manifest of its own; written once."""
    for number, count in enumerate(counts):
        write_small_shards(f"memory://equal-lengths/{number}-{count}", num_shards=1, samples_per_shard=count)
    return [f"memory://equal-lengths/{number}-{count}/index.json" for number, count in enumerate(counts)]


def chain(counts: list[int], mode: str, world: tdr.World | None, *, shuffled: bool = False) -> Any:
    listed: Any = tdr.IterableWrapper(manifests(tuple(counts))).list_remote()
    listed = listed.shuffle_shards(seed=5) if shuffled else listed
    reader = listed.sharding_filter_rank(world=world).shard_tar_reader().equalize_ranks(mode=mode)
    return reader.to_tuple("__url__", "__key__")


def shares(counts: list[int], num_slots: int, mode: str, num_epochs: int = 1, **options: Any) -> list[list[list[Any]]]:
    """Of each epoch what each slot reads."""
    chains = [chain(counts, mode, world, **options) for world in all_worlds(num_slots, 1)]
    lengths = {len(pipe) for pipe in chains}
    epochs = [[list(pipe) for pipe in chains] for _ in range(num_epochs)]
    assert lengths == {len(share) for epoch in epochs for share in epoch}
    return epochs


def everything(counts: list[int]) -> list[Any]:
    urls = tdr.IterableWrapper(manifests(tuple(counts))).list_remote().sharding_filter_rank(world=tdr.World())
    return list(urls.shard_tar_reader().to_tuple("__url__", "__key__"))


@settings(max_examples=15)
@given(counts=COUNTS, num_slots=st.integers(1, 7))
def test_drop_gives_equal_shares_in_order_and_leaves_out_fewer_samples_than_slots(
    counts: list[int], num_slots: int
) -> None:
    """The shares one after the other are the samples in their order, each once."""
    expected = everything(counts)
    assume(len(expected) >= num_slots)
    [found] = shares(counts, num_slots, "drop")
    assert {len(share) for share in found} == {len(expected) // num_slots}
    kept = [sample for share in found for sample in share]
    assert kept == [sample for sample in expected if sample in set(kept)]
    assert len(expected) - len(kept) < num_slots


@settings(max_examples=15)
@given(counts=COUNTS, num_slots=st.integers(1, 7))
def test_repeat_gives_equal_shares_that_leave_nothing_out(counts: list[int], num_slots: int) -> None:
    """All samples in their order, and then fewer than slots once more, none more often than another."""
    expected = everything(counts)
    [found] = shares(counts, num_slots, "repeat")
    assert {len(share) for share in found} == {-(-len(expected) // num_slots)}
    read = [sample for share in found for sample in share]
    assert read[: len(expected)] == expected
    times = Counter(read)
    assert set(times) == set(expected)
    assert max(times.values()) - min(times.values()) <= 1


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("mode", ["drop", "repeat"])
def test_each_epoch_drops_or_repeats_other_samples_and_in_time_each_equally_often(mode: str, shuffled: bool) -> None:
    """The window goes round the whole listing, also if each epoch has an order of its own."""
    counts = [4, 3, 6]
    expected = everything(counts)
    epochs = shares(counts, 5, mode, num_epochs=len(expected), shuffled=shuffled)
    windows = []
    for epoch in epochs:
        times = Counter(sample for share in epoch for sample in share)
        windows.append({sample for sample in expected if times[sample] != 1})
        assert len(windows[-1]) == {"drop": 3, "repeat": 2}[mode]
    assert not any(before & after for before, after in itertools.pairwise(windows))
    assert len({sum(sample in window for window in windows) for sample in expected}) == 1


@given(factor=st.integers(1, 4))
def test_nothing_is_dropped_or_repeated_where_the_slots_divide_the_samples(factor: int) -> None:
    counts = [factor, 2 * factor, factor]
    for mode in ("drop", "repeat"):
        [found] = shares(counts, 4, mode)
        assert [sample for share in found for sample in share] == everything(counts)


def test_other_modes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mode.*halve"):
        chain([3], "halve", None)


def test_fewer_samples_than_slots_are_refused_where_samples_are_dropped() -> None:
    with pytest.raises(EmptyShareError):
        list(chain([1, 2], "drop", tdr.World(3, 4)))
    assert shares([1, 2], 4, "repeat") == [[[sample] for sample in [*everything([1, 2]), everything([1, 2])[0]]]]


@pytest.mark.parametrize("mode", ["drop", "repeat"])
def test_archives_of_archives_whose_manifest_counts_the_inner_ones_are_refused(memory_folder: str, mode: Any) -> None:
    """In each rank: of some inner archives another number of samples would be read than of others."""
    inner = [pack_tar([(f"{n}-{i}.cls", b"1") for i in range(n + 1)]) for n in range(4)]
    Place(f"{memory_folder}/").put({"0.tar": pack_tar([(f"{n}.tar", data) for n, data in enumerate(inner)])})
    assert [shard.num_samples for shard in tdr.index_shards(memory_folder)] == [4]
    for world in all_worlds(2, 1):
        urls = tdr.IterableWrapper([f"{memory_folder}/index.json"]).list_remote().sharding_filter_rank(world=world)
        with pytest.raises(SampleError, match="samples were read, and the manifest has 2 for this slot"):
            list(urls.shard_tar_reader(nested=True).equalize_ranks(mode=mode))
