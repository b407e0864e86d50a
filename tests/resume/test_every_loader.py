"""Every loader continues exactly where it was stopped: after any batch, in the same world or in another one."""

from __future__ import annotations

import collections
import copy
import pickle
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import torchdata_remote as tdr
from tests.support.loaders import THREAD, built, chain_of, key_of, keys, through_json, with_states
from torchdata_remote.testing import write_small_shards

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


@given(
    worlds=st.permutations([1, 2, 3, 6]),
    stops=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    epoch=st.integers(0, 2),
)
def test_the_order_within_a_stream_is_the_same_in_every_world(worlds: list[int], stops: list[int], epoch: int) -> None:
    """Through several worlds, in any epoch: each stream is what a bare chain reads in a world of as many slots."""
    write_small_shards("memory://order-of-streams/", num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)

    def bare(stream: int) -> list[str]:
        chain = chain_of("memory://order-of-streams", tdr.World(stream, NUM_STREAMS))
        chain.set_epoch(epoch)
        return list(chain)

    streams, found, state = [bare(stream) for stream in range(NUM_STREAMS)], list[str](), None
    for world_size, stop in zip(worlds, [*stops, None], strict=True):
        states = []
        for rank in range(world_size):
            data = tdr.Resumable(chain_of("memory://order-of-streams", tdr.World(rank, world_size)), num_streams=6)
            if state is None:
                data.set_epoch(epoch)
            else:
                data.load_state_dict(state)
            found += islice(data, stop)
            states.append(through_json(data.state_dict()))
        state = tdr.merge_states(states)
    assert [[key for key in found if key in stream] for stream in streams] == streams
    assert len(found) == len(ALL_KEYS)
