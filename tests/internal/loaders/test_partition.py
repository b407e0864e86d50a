"""Who reads which samples, against a list of all of them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import Resumable, World, merge_states
from torchdata_remote.core.partition import EqualizeMode, Piece, SamplePartition
from torchdata_remote.loaders.state.state_format import make_state

Samples = list[tuple[int, int]]  # shard, number in it
COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=8)
SLOTS = st.integers(1, 12)


def in_order(counts: list[int]) -> Samples:
    """The naive model: every sample of an epoch."""
    return [(shard, number) for shard, count in enumerate(counts) for number in range(count)]


def samples_of(pieces: Iterable[Piece]) -> Samples:
    return [(piece.shard, number) for piece in pieces for number in range(piece.first, piece.last)]


def joined(shares: list[Samples]) -> Samples:
    return list(chain.from_iterable(shares))


def shares_of(order: SamplePartition, num_slots: int) -> list[Samples]:
    return [samples_of(order.share(slot, num_slots)) for slot in range(num_slots)]


@given(counts=COUNTS, num_slots=SLOTS)
@example(counts=[0, 0, 0], num_slots=3)
@example(counts=[1], num_slots=12)
def test_shares_make_up_the_order(counts: list[int], num_slots: int) -> None:
    """One after the other, all samples in order; of empty shards none; no two shares differ by more than a sample."""
    order, expected = SamplePartition.of(counts), in_order(counts)
    shares = shares_of(order, num_slots)
    assert joined(shares) == expected
    assert len(order) == len(expected)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(counts=COUNTS, num_slots=SLOTS)
def test_pieces_are_few_and_none_is_empty(counts: list[int], num_slots: int) -> None:
    """A share has one piece of each shard that it touches, in order, so that each is opened once."""
    for slot in range(num_slots):
        pieces = list(SamplePartition.of(counts).share(slot, num_slots))
        assert all(0 <= piece.first < piece.last <= counts[piece.shard] for piece in pieces)
        assert [piece.shard for piece in pieces] == sorted({piece.shard for piece in pieces})


# At scale: 512 ranks x 8 workers, 10,000 shards, 130 million samples

RANKS, WORKERS, SHARDS, SAMPLES = 512, 8, 10_000, 130_000_000
SLOTS_AT_SCALE = RANKS * WORKERS
MAX_BYTES = 20_000_000


@contextmanager
def bounded() -> Iterator[None]:
    """Far below a list of samples, which would take 1 GB for the pointers alone."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


def counts_at_scale() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    counts = np.random.default_rng(0).integers(10_000, 16_001, SHARDS)
    counts[: abs(int(counts.sum()) - SAMPLES) // 500 + 1] += np.sign(SAMPLES - int(counts.sum())) * 500
    counts[-1] += SAMPLES - int(counts.sum())
    assert int(counts.sum()) == SAMPLES
    assert counts.min() > 0
    return counts


def check_consecutive(order: SamplePartition, num_slots: int, lengths: set[int]) -> int:
    """Whether each share begins where the one before ended; returns how many pieces all have."""
    num_pieces, num_samples, end = 0, 0, (0, 0)
    for slot in range(num_slots):
        length = 0
        for piece in order.share(slot, num_slots):
            assert (piece.shard, piece.first) >= end
            length, end, num_pieces = length + piece.last - piece.first, (piece.shard, piece.last), num_pieces + 1
        assert length in lengths
        num_samples += length
    assert num_samples == len(order)
    return num_pieces


def test_shares_of_all_slots_at_scale() -> None:
    """The shares of 4,096 slots, of which each slot computes but its own, make up 130 million samples."""
    counts = counts_at_scale()
    with bounded():
        num_pieces = check_consecutive(SamplePartition.of(counts), SLOTS_AT_SCALE, {31_738, 31_739})
    assert num_pieces <= SHARDS + SLOTS_AT_SCALE


@pytest.mark.parametrize("mode", EqualizeMode)
def test_equalized_shares_have_equal_lengths_at_scale(mode: EqualizeMode) -> None:
    """All 4,096 slots have as many samples, in an order of the epoch's own."""
    counts, listed = counts_at_scale(), np.random.default_rng(1).permutation(SHARDS)
    with bounded():
        order = SamplePartition.of(counts).equalized(SLOTS_AT_SCALE, 3, mode, listed)
        length = 31_738 if mode is EqualizeMode.DROP else 31_739
        assert len(order) == length * SLOTS_AT_SCALE
        if mode is EqualizeMode.DROP:
            check_consecutive(order, SLOTS_AT_SCALE, {length})
        else:
            pieces = [order.share(slot, SLOTS_AT_SCALE) for slot in range(SLOTS_AT_SCALE)]
            assert {sum(piece.last - piece.first for piece in share) for share in pieces} == {length}


def test_resharding_at_scale() -> None:
    """The states of 512 ranks are merged, and their streams dealt to 3,000 slots, each to one."""
    urls = IterableWrapper([f"memory://shards/{number}.tar" for number in range(3)])
    pipe = Resumable(urls.sharding_filter_rank().shard_tar_reader(), num_streams=SLOTS_AT_SCALE)
    names, listing = pipe.chain, [{"num_urls": SHARDS, "digest": "ab" * 16}]
    places = {stream: {"passed": stream % 9, "at": {"open": [], "next": 2}} for stream in range(SLOTS_AT_SCALE)}
    of_ranks = [
        make_state(names, listing, 1, SLOTS_AT_SCALE, [[v, places[v]] for v in range(rank, SLOTS_AT_SCALE, RANKS)])
        for rank in range(RANKS)
    ]
    with bounded():
        merged = merge_states(reversed(of_ranks))
        assert dict(merged["streams"]) == places
        pipe.load_state_dict(merged)
        dealt = [
            stream
            for rank in range(250)
            for worker in range(12)
            for stream in pipe.share(World(rank, 250, worker, 12))[1]
        ]
    assert sorted(dealt) == list(range(SLOTS_AT_SCALE))
