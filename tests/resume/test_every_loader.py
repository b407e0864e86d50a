"""Every loader continues exactly where it was stopped: after any batch, in the same world or in another one."""

from __future__ import annotations

import collections
import copy
import heapq
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import torchdata_remote as tdr
from tests.support.loaders import THREAD, built, chain_of, key_of, keys, through_json, with_states
from torchdata_remote.testing import all_worlds, write_small_shards

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning", "ignore:This process .* is multi-threaded:DeprecationWarning"
)
NUM_SHARDS, SAMPLES_PER_SHARD, NUM_STREAMS = 6, 4, 6
ALL_KEYS = sorted(f"{number % 10}/{number:06d}" for number in range(NUM_SHARDS * SAMPLES_PER_SHARD))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Local shards, which workers of every kind see."""
    path = str(tmp_path_factory.mktemp("shards"))
    write_small_shards(path, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
    return path


def mixed(folder: str) -> Any:
    """Two mixtures of the same shards."""
    return tdr.mix({name: (chain_of(folder), weight) for name, weight in (("a", 2), ("b", 1))}, stop="all_exhausted")


CHAINS: dict[str, Callable[[str], Any]] = {
    "shuffled shards": chain_of,
    "batches of the chain": lambda folder: chain_of(folder).batch(3, drop_last=False).collate(list),
    "mixture": mixed,
    "equal ranks": lambda folder: (
        tdr.stream_shards(f"{folder}/index.json", seed=3).equalize_ranks().to_tuple("__key__").map(key_of)
    ),
}
# Kind of loader -> of a chain and options, and how many batches lie between two stops
LOADERS: dict[str, tuple[Callable[..., Any], int]] = {
    "Resumable": (lambda pipe, **_: tdr.Resumable(pipe, num_streams=NUM_STREAMS), 1),
    "torchdata's StatefulDataLoader": (
        lambda pipe, **options: StatefulDataLoader(tdr.Resumable(pipe, num_streams=NUM_STREAMS), **options),
        3,
    ),
    "stateful_loader": (lambda pipe, **options: built(pipe, 0, num_streams=NUM_STREAMS, **options), 1),
    "thread_loader": (lambda pipe, **options: built(pipe, THREAD, num_streams=NUM_STREAMS, **options), 1),
    "stateful_loader, 3 workers": (lambda pipe, **options: built(pipe, 3, num_streams=NUM_STREAMS, **options), 5),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "batches": {"batch_size": 4, "collate_fn": list},
    "full batches": {"batch_size": 5, "drop_last": True, "collate_fn": list},
    "single items": {"batch_size": None},
}
CASES = [
    *(
        (loader, "shuffled shards", options)
        for loader in LOADERS
        for options in OPTIONS
        if loader != "Resumable" or options == "batches"
    ),
    *((loader, chain, "batches") for loader in LOADERS for chain in CHAINS if chain != "shuffled shards"),
]


@pytest.mark.parametrize(("loader", "chain", "options"), CASES)
def test_a_loader_stopped_after_any_batch_continues_with_the_next_one(
    folder: str, loader: str, chain: str, options: str
) -> None:
    """In the middle of an epoch, before its first batch, and over its end."""
    make_loader, step = LOADERS[loader]

    def make(state: Any = None) -> Any:
        made = make_loader(CHAINS[chain](folder), **OPTIONS[options])
        if state is not None:
            made.load_state_dict(state)
        return made

    whole = make()
    batches, states = with_states(whole)
    following = list(whole)
    assert batches != following
    if step == 1:
        for stop, state in enumerate(states):
            resumed = make(state)
            assert resumed.state_dict() == state
            found = list(islice(resumed, 1))
            assert found == batches[stop : stop + 1]
            assert not found or through_json(resumed.state_dict()) == states[stop + 1]
    for stop in {0, len(batches) // 2, len(batches) - 1, len(batches)} if step == 1 else range(0, len(states), step):
        resumed = make(states[stop])
        assert list(resumed) == batches[stop:]
        assert list(resumed) == following


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_prefetching_loader_stopped_after_any_batch_continues_with_the_next_one(
    folder: str, num_workers: int, options: str
) -> None:
    data = tdr.ShardedDataset(f"{folder}/", transform=key_of)

    def make() -> Any:
        workers: dict[str, Any] = {"num_workers": num_workers, "multiprocessing_context": "fork"} if num_workers else {}
        return tdr.PrefetchingLoader(data, shuffle=True, seed=0, **OPTIONS[options], **workers)

    whole = make()
    batches, states = with_states(whole)
    following = list(whole)
    assert batches != following
    for stop in sorted({*range(0, len(states), 9 if num_workers else 3), len(batches)}):
        resumed = make()
        resumed.load_state_dict(states[stop])
        assert list(resumed) == batches[stop:]
        assert list(resumed) == following


@pytest.mark.parametrize("num_streams", [NUM_STREAMS, None])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 3), (3, 2), (4, 0), (THREAD, 0), (3, THREAD), (THREAD, 2)])
def test_another_number_of_workers_completes_the_epoch(
    folder: str, before: int, after: int, num_streams: int | None
) -> None:
    """Each sample of the epoch is handed out once, and so are those of the next one; also with a stream a worker."""
    stopped = built(chain_of(folder), before, batch_size=2, num_streams=num_streams)
    for stop in (1, 7):
        batches = list(islice(stopped, stop))
        again = built(chain_of(folder), after, batch_size=3, num_streams=num_streams)
        again.load_state_dict(through_json(stopped.state_dict()))
        assert keys(batches, list(again)) == ALL_KEYS
        assert keys(list(again)) == ALL_KEYS


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("num_workers", [0, THREAD, 2])
def test_a_copy_of_a_loader_continues_at_its_position(folder: str, num_workers: int, copied: Any) -> None:
    """Within its second pass, and after that; the loader itself continues as well."""
    loader = built(chain_of(folder), num_workers, batch_size=2, num_streams=NUM_STREAMS, list_once=True)
    num_in_epoch = len(list(loader))
    for num_batches in (0, 5, num_in_epoch) if num_workers != 2 else (5,):
        batches = iter(loader)
        begun = list(islice(batches, num_batches))
        twin = copied(loader)
        rest = list(batches)
        assert keys(begun, rest) == ALL_KEYS
        assert list(twin) == rest
        assert (twin.batch_size, twin.num_workers) == (2, max(0, num_workers))


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("num_workers", [0, THREAD, 2, "prefetching"])
def test_batches_that_were_read_ahead_of_the_training_are_not_lost(folder: str, num_workers: Any, ahead: int) -> None:
    """The state is that after the batches that ``trained`` has named: before the first one, later, at the end."""

    def make() -> Any:
        if num_workers == "prefetching":
            data = tdr.ShardedDataset(f"{folder}/", transform=key_of)
            return tdr.PrefetchingLoader(data, 4, shuffle=True, seed=0, collate_fn=list)
        return built(chain_of(folder), num_workers, batch_size=4, num_streams=NUM_STREAMS, collate_fn=list)

    whole = make()
    epochs = [list(whole), list(whole)]
    for stop in (0, 3, len(epochs[0])):
        loader, again = make(), make()
        batches = iter(loader)
        window = collections.deque(islice(batches, ahead))
        loader.trained(0)
        for number in range(1, stop + 1):
            window.extend(islice(batches, 1))
            assert window.popleft() == epochs[0][number - 1]
            loader.trained(number)
        again.load_state_dict(loader.state_dict())
        assert list(again) == (epochs[0][stop:] or epochs[1])
    with pytest.raises(ValueError, match=r"trained\(9\): this pass has"):
        loader.trained(9)


# Any chain, in any world: every stream continues, in its own order

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

    def reader(self, num_shards: int, world: tdr.World | None) -> Any:
        """Of as many samples as there are streams at the least: a manifest lets streams share a shard."""
        samples_per_shard = max(self.samples_per_shard, -(-self.num_streams // num_shards))
        listing = tdr.IterableWrapper([folder_of(num_shards, samples_per_shard) + "/index.json"]).list_remote()
        share: Any = listing.shuffle_shards(seed=self.seed).sharding_filter_rank(world=world)
        if self.kind != "bare":
            share = share.async_prefetch(interleave=self.interleave)
        reader = share.shard_tar_reader(interleave=self.interleave)
        return reader.shuffle_samples(buffer_size=self.buffer_size, seed=self.seed)

    def chain(self, world: tdr.World | None) -> Any:
        """Of keys, or of batches of them."""
        if self.kind in ("mix", "number"):
            sources = {
                "a": (self.reader(self.num_shards, world), 2.0),
                "b": (self.reader(self.num_shards + 1, world), 1),
            }
            stop: Any = "all_exhausted" if self.kind == "mix" else 50 + self.num_streams
            pipe: Any = tdr.mix(sources, seed=self.seed, stop=stop).shuffle_samples(buffer_size=2)
        else:
            pipe = self.reader(self.num_shards, world).decode_sample({"cls": int})
        keys = pipe.to_tuple("__url__", "__key__", "cls")
        return keys.batch(3).map(tuple) if self.kind == "batch" else keys

    def streams(self, epoch: int) -> dict[int, list[Any]]:
        """What each stream hands out in an epoch: what the bare chain does, in a world of as many slots."""
        found = {}
        for number in range(self.num_streams):
            chain = self.chain(tdr.World(number, self.num_streams))
            for _ in range(epoch):
                next(iter(chain), None)  # a pass that was begun counts as an epoch
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


TWICE_IN_ONE_WORLD = Run(
    kind="mix", num_shards=2, samples_per_shard=2, buffer_size=1, interleave=2, seed=0, epoch=0, worlds=[(1, 0)] * 3,
    more_streams=0, stops=[[3], [2], [0]],
)  # fmt: skip


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@example(run=TWICE_IN_ONE_WORLD)
@given(run=runs())
def test_any_chain_resumes_in_any_world_with_each_stream_in_its_order(run: Run) -> None:
    """Every leg hands out what the streams of its slots had left; all legs together hand out everything once."""
    streams, state, seen = run.streams(run.epoch), None, []
    passed = dict.fromkeys(streams, 0)
    for leg, (world_size, num_workers) in enumerate(run.worlds):
        last, states, slots = leg == len(run.worlds) - 1, [], []
        for world in all_worlds(world_size, max(1, num_workers)):
            data = tdr.Resumable(run.chain(world), num_streams=None if state is not None else run.num_streams)
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
        state = tdr.merge_states(states)
        assert state["epoch"] == run.epoch
    assert run.sample_counts(seen) == run.sample_counts([item for items in streams.values() for item in items])
    if run.kind != "number":
        assert set(run.sample_counts(seen).values()) == {1}
    world, data = slots[run.seed % len(slots)]
    following = run.streams(run.epoch + 1) if run.seed % 4 == 0 else {}
    own = {v: following[v] for v in range(world.slot, run.num_streams, world.num_slots) if following}
    if own:
        assert list(data) == list(round_robin(own, dict.fromkeys(own, 0)))


@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(run=runs(st.tuples(st.integers(1, 2), st.integers(0, 3))).filter(lambda run: run.kind != "number"))
def test_any_chain_resumes_with_any_number_of_worker_processes(run: Run) -> None:
    """Through ``stateful_loader``, whose workers are ahead of what was handed out; ranks one after the other."""
    streams = run.streams(run.epoch)
    seen: list[Any] = []
    states: list[Any] = []
    by_stream: dict[int, list[Any]] = {number: [] for number in streams}
    owner = {item: number for number, items in streams.items() for item in items}
    for leg, (world_size, num_workers) in enumerate(run.worlds):
        last, before, states = leg == len(run.worlds) - 1, states, []
        for rank in range(world_size):
            options: dict[str, Any] = {
                "batch_size": run.buffer_size,
                "num_streams": run.num_streams,
                "collate_fn": list,
                "equalize": False,  # so that no rank ends early
            }
            loader = built(run.chain(tdr.World(rank, world_size)), num_workers, **options)
            if before:
                loader.load_state_dict(before)
            else:
                loader.set_epoch(run.epoch)
            for batch in islice(loader, None if last else run.stops[leg][0]):
                seen += batch
                for item in batch:
                    by_stream[owner[item]].append(item)
            states.append(through_json(loader.state_dict()))
        if tdr.merge_states(states)["epoch"] > run.epoch:  # all of it was handed out before
            break
    assert run.sample_counts(seen) == run.sample_counts([item for items in streams.values() for item in items])
    assert by_stream == streams
