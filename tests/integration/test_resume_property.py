"""Chains of every kind are stopped after any item, in any world, and resumed in any other one."""

from __future__ import annotations

import collections
import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import Resumable, World, merge_states, mix, stateful_loader
from torchdata_remote.pipes.base.chain import all_pipes
from torchdata_remote.testing import all_worlds, write_small_shards

Streams = Mapping[int, list[Any]]


@cache
def folder_of(num_shards: int, samples_per_shard: int) -> str:
    """Shards in memory, written once."""
    folder = f"memory://resume-property/{num_shards}-{samples_per_shard}"
    write_small_shards(folder, num_shards=num_shards, samples_per_shard=samples_per_shard)
    return folder


@dataclass(frozen=True)
class Run:
    """A chain, and where its training is stopped.

    Args:
        kind: of the chain.
        num_shards: in a folder.
        samples_per_shard: in each.
        buffer_size: of the shuffle.
        interleave: shards that are read by turns.
        seed: of all orders.
        epoch: in which it is stopped.
        worlds: (ranks, workers) of each leg; the last one runs to the end.
        more_streams: than slots of the largest world.
        stops: items that a slot hands out in each leg; slots take theirs by turns.
    """

    kind: str
    num_shards: int
    samples_per_shard: int
    buffer_size: int
    interleave: int
    seed: int
    epoch: int
    worlds: list[tuple[int, int]]
    more_streams: int
    stops: list[list[int]]

    @property
    def num_streams(self) -> int:
        return max(ranks * max(1, workers) for ranks, workers in self.worlds) + self.more_streams

    def reader(self, num_shards: int, world: World | None) -> Any:
        """Of as many samples as there are streams at the least: a manifest lets streams share a shard."""
        samples_per_shard = max(self.samples_per_shard, -(-self.num_streams // num_shards))
        listing = IterableWrapper([folder_of(num_shards, samples_per_shard) + "/index.json"]).list_remote()
        share = listing.shuffle_shards(seed=self.seed).sharding_filter_rank(world=world)
        if self.kind != "bare":
            share = share.async_prefetch(interleave=self.interleave)
        reader = share.shard_tar_reader(interleave=self.interleave)
        return reader.shuffle_samples(buffer_size=self.buffer_size, seed=self.seed)

    def chain(self, world: World | None) -> Any:
        """Of keys, or of batches of them."""
        if self.kind in ("mix", "number"):
            sources = {
                "a": (self.reader(self.num_shards, world), 2.0),
                "b": (self.reader(self.num_shards + 1, world), 1),
            }
            stop: Any = "all_exhausted" if self.kind == "mix" else 50 + self.num_streams
            pipe: Any = mix(sources, seed=self.seed, stop=stop).shuffle_samples(buffer_size=2)
        else:
            pipe = self.reader(self.num_shards, world).decode_sample({"cls": int})
        keys = pipe.to_tuple("__url__", "__key__", "cls")
        return keys.batch(3).map(tuple) if self.kind == "batch" else keys

    def streams(self, epoch: int) -> dict[int, list[Any]]:
        """What each stream hands out in an epoch: what the bare chain does, in a world of as many slots."""
        found = {}
        for number in range(self.num_streams):
            chain = self.chain(World(number, self.num_streams))
            for pipe in all_pipes(chain):
                if hasattr(pipe, "set_epoch"):
                    pipe.set_epoch(epoch)
            found[number] = list(chain)
        return found

    def sample_counts(self, items: list[Any]) -> collections.Counter[Any]:
        if self.kind == "batch":
            items = [sample for batch in items for sample in batch]
        return collections.Counter(items)


WORLDS = st.tuples(st.integers(1, 8), st.integers(0, 4))


def runs(worlds: st.SearchStrategy[tuple[int, int]] = WORLDS) -> st.SearchStrategy[Run]:
    """Of 1 to 3 resumes."""
    return st.builds(
        Run,
        kind=st.sampled_from(["plain", "bare", "batch", "mix", "number"]),
        num_shards=st.integers(1, 9),
        samples_per_shard=st.integers(1, 7),
        buffer_size=st.integers(1, 12),
        interleave=st.integers(1, 4),
        seed=st.integers(0, 1000),
        epoch=st.integers(0, 2),
        worlds=st.lists(worlds, min_size=2, max_size=4),
        more_streams=st.integers(0, 3),
        stops=st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=4), min_size=3, max_size=3),
    )


def round_robin(streams: Streams, passed: dict[int, int]) -> Iterator[Any]:
    """The items of a slot: always of the stream that has handed out least. Counts in ``passed``."""
    waiting = [(passed[number], number) for number in streams]
    heapq.heapify(waiting)
    while waiting:
        _, number = heapq.heappop(waiting)
        if passed[number] < len(streams[number]):
            item = streams[number][passed[number]]
            passed[number] += 1
            heapq.heappush(waiting, (passed[number], number))
            yield item


def check(run: Run) -> None:
    """Every leg hands out what the streams of its slots had left, in their order; all legs hand out everything once."""
    streams, state, seen = run.streams(run.epoch), None, []
    passed = dict.fromkeys(streams, 0)
    for leg, world_size_and_workers in enumerate(run.worlds):
        last, states, slots = leg == len(run.worlds) - 1, [], []
        for world in all_worlds(world_size_and_workers[0], max(1, world_size_and_workers[1])):
            data = Resumable(run.chain(world), num_streams=None if state is not None else run.num_streams)
            if state is None:
                data.set_epoch(run.epoch)
            else:
                data.load_state_dict(state)
            own = {number: streams[number] for number in range(world.slot, run.num_streams, world.num_slots)}
            stop = None if last else run.stops[leg][world.slot % len(run.stops[leg])]
            items = list(islice(data, stop))
            assert items == list(islice(round_robin(own, passed), stop)), f"leg {leg}, {world}"
            seen += items
            states.append(json.loads(json.dumps(data.state_dict())))
            slots.append((world, data))
        state = merge_states(states)
        assert state["epoch"] == run.epoch
    assert run.sample_counts(seen) == run.sample_counts([item for items in streams.values() for item in items])
    if run.kind != "number":
        assert set(run.sample_counts(seen).values()) == {1}
    world, data = slots[run.seed % len(slots)]
    following = run.streams(run.epoch + 1) if run.seed % 4 == 0 else {}
    own = {v: following[v] for v in range(world.slot, run.num_streams, world.num_slots) if following}
    if own:
        assert list(data) == list(round_robin(own, dict.fromkeys(own, 0)))


TWICE_IN_ONE_WORLD = Run(
    kind="mix", num_shards=2, samples_per_shard=2, buffer_size=1, interleave=2, seed=0, epoch=0, worlds=[(1, 0)] * 3,
    more_streams=0, stops=[[3], [2], [0]],
)  # fmt: skip


@settings(max_examples=40)
@example(run=TWICE_IN_ONE_WORLD)
@given(run=runs())
def test_any_chain_resumes_in_any_world(run: Run) -> None:
    """After 1 to 3 stops the union is exact, and every stream continues byte for byte."""
    check(run)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=1000, suppress_health_check=list(HealthCheck))
@given(run=runs())
def test_any_chain_resumes_in_any_world_1000_times(run: Run) -> None:
    """The same with more examples."""
    check(run)


def check_loaders(run: Run) -> None:
    """The same with a process for each worker, and ranks one after the other."""
    streams = run.streams(run.epoch)
    seen: list[Any] = []
    states: list[Any] = []
    by_stream: dict[int, list[Any]] = {number: [] for number in streams}
    owner = {item: number for number, items in streams.items() for item in items}
    for leg, (world_size, num_workers) in enumerate(run.worlds):
        last, before, states = leg == len(run.worlds) - 1, states, []
        for rank in range(world_size):
            loader = stateful_loader(
                run.chain(World(rank, world_size)),
                batch_size=run.buffer_size,
                num_workers=num_workers,
                num_streams=run.num_streams,
                multiprocessing_context="fork",
                collate_fn=list,
                timeout_s=60 if num_workers else 0,
            )
            if before:
                loader.load_state_dict(before)
            else:
                loader.set_epoch(run.epoch)
            for batch in islice(loader, None if last else run.stops[leg][0]):
                seen += batch
                for item in batch:
                    by_stream[owner[item]].append(item)
            states.append(json.loads(json.dumps(loader.state_dict())))
        if merge_states(states)["epoch"] > run.epoch:  # all of it was handed out before
            break
    assert run.sample_counts(seen) == run.sample_counts([item for items in streams.values() for item in items])
    assert by_stream == streams


LOADER_RUNS = runs(st.tuples(st.integers(1, 2), st.integers(0, 3))).filter(lambda run: run.kind != "number")


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@settings(max_examples=5)
@given(run=LOADER_RUNS)
def test_any_chain_resumes_with_any_workers(run: Run) -> None:
    """Through ``stateful_loader`` too, whose workers are ahead of what was handed out."""
    check_loaders(run)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(run=LOADER_RUNS)
def test_any_chain_resumes_with_any_workers_150_times(run: Run) -> None:
    """The same with more examples."""
    check_loaders(run)
