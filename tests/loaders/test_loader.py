"""``stateful_loader``: batches that are resumed exactly, with any number of workers and ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain as flat
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.support.ranks import run_ranks
from torchdata_remote import (
    Resumable,
    StatefulLoader,
    World,
    merge_states,
    stateful_loader,
    stream_shards,
    thread_loader,
)
from torchdata_remote.errors import EmptyShareError, ShardReadError, StateError
from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SAMPLES_PER_SHARD = 12, 4
NUM_STREAMS = 6
THREAD = -1  # for thread_loader, among numbers of workers
Batches = list[Any]

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Local shards, which workers of every kind see."""
    path = str(tmp_path_factory.mktemp("shards"))
    write_small_shards(path, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
    return path


def key_of(sample: tuple[str]) -> str:
    return sample[0]


def chain_of(folder: str, world: World | None = None) -> Any:
    urls = IterableWrapper([f"{folder}/index.json"]).list_remote().shuffle_shards(seed=1)
    reader = urls.sharding_filter_rank(world=world).async_prefetch(interleave=2).shard_tar_reader(interleave=2)
    return reader.shuffle_samples(buffer_size=3, seed=2).to_tuple("__key__").map(key_of)


def loader_of(folder: str, num_workers: int, start_method: Any = "fork", **more: Any) -> StatefulLoader:
    return built(chain_of(folder), num_workers, start_method, **{"batch_size": 2, "num_streams": NUM_STREAMS, **more})


def built(pipe: Any, num_workers: int, start_method: Any = "fork", **options: Any) -> StatefulLoader:
    """The loader with so many worker processes, or the one that makes batches in a thread."""
    if num_workers == THREAD:
        return thread_loader(pipe, **options)
    workers = {"num_workers": num_workers, "multiprocessing_context": start_method}
    return stateful_loader(pipe, **{**workers, "timeout_s": 60 * bool(num_workers), **options})


def with_states(loader: StatefulLoader) -> tuple[Batches, list[Any]]:
    """The batches of a pass, and the state before each and after the last one, through JSON."""
    states, batches = [through_json(loader.state_dict())], []
    for batch in loader:
        batches.append(batch)
        states.append(through_json(loader.state_dict()))
    return batches, states


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def keys(*passes: Batches) -> list[str]:
    return sorted(key for batches in passes for batch in batches for key in batch)


def all_keys() -> list[str]:
    return sorted(f"{number % 10}/{number:06d}" for number in range(NUM_SHARDS * SAMPLES_PER_SHARD))


@contextmanager
def failing(error: type[Exception], says: str) -> Iterator[None]:
    """Expect an error, with which the workers of its pass have ended: torch would wait up to 5 s for each later."""
    before = set(active_children())
    with pytest.raises(error, match=says) as caught:
        yield
    assert set(active_children()) <= before
    caught.value.__traceback__ = None  # or a cycle would keep the caller's loaders, whose workers then are not told


CASES = [
    (0, "fork"),
    (THREAD, "fork"),
    (3, "fork"),
    (2, "forkserver"),
    (1, "spawn"),
    *[
        pytest.param(num_workers, method, marks=pytest.mark.slow)
        for method in ("forkserver", "spawn")
        for num_workers in (1, 2, 3)
        if (num_workers, method) not in ((2, "forkserver"), (1, "spawn"))
    ],
]


@pytest.mark.parametrize(("num_workers", "start_method"), CASES)
def test_resumed_batches_are_those_of_a_run_without_a_stop(folder: str, num_workers: int, start_method: Any) -> None:
    """In the middle of an epoch, and over its end, with each start method."""
    loader = loader_of(folder, num_workers, start_method)
    epochs, states = zip(*(with_states(loader) for _ in range(3)), strict=True)
    assert all(keys(batches) == all_keys() for batches in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    del loader
    again = loader_of(folder, num_workers, start_method)
    again.load_state_dict(states[1][7])
    assert list(again) == epochs[1][7:]
    assert list(again) == epochs[2]


@pytest.mark.parametrize(
    ("num_workers", "batch_size", "step"),
    [(0, 4, 1), (0, None, 5), (THREAD, 4, 1), (THREAD, None, 5), (2, None, 12), (3, 4, 3)],
)
def test_a_state_after_any_batch_resumes_with_the_next_one(
    folder: str, num_workers: int, batch_size: int | None, step: int
) -> None:
    """Also before the first batch and after the last one."""
    loader = loader_of(folder, num_workers, batch_size=batch_size)
    batches, states = with_states(loader)
    following, _ = with_states(loader)
    for stop in sorted({*range(0, len(states), step), len(batches)}):
        again = loader_of(folder, num_workers, batch_size=batch_size)
        again.load_state_dict(states[stop])
        if stop == len(batches):  # the end was not seen: what is left of the epoch is nothing
            assert list(again) == []
        else:
            assert list(again) == batches[stop:]
        if stop in (0, len(batches)):
            assert list(again) == following


@pytest.mark.parametrize("num_workers", [0, 2, THREAD])
def test_the_state_at_the_end_of_an_epoch_is_the_start_of_the_next_one(folder: str, num_workers: int) -> None:
    """A state that is saved after the loop over an epoch."""
    loader = loader_of(folder, num_workers)
    list(loader)
    state = through_json(loader.state_dict())
    assert state["epoch"] == 1
    assert state["streams"] == [[number, None] for number in range(NUM_STREAMS)]
    again = loader_of(folder, num_workers)
    again.load_state_dict(state)
    assert list(again) == list(loader)


@pytest.mark.parametrize("num_workers", [0, 2, THREAD])
def test_a_loaded_state_is_returned_until_the_first_batch(folder: str, num_workers: int) -> None:
    """Also if the loader has run before."""
    loader = loader_of(folder, num_workers)
    batches, states = with_states(loader)
    again = loader_of(folder, num_workers)
    for state in (states[0], states[5], states[8]):
        again.load_state_dict(state)
        assert again.state_dict() == state
    assert next(iter(again)) == batches[8]
    again.load_state_dict(states[5])
    assert list(again) == batches[5:]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 3), (3, 2), (4, 0), (THREAD, 0), (3, THREAD), (THREAD, 2)])
def test_another_number_of_workers_completes_the_epoch(folder: str, before: int, after: int) -> None:
    """Each sample of the epoch is handed out once, and so are those of the next one."""
    stopped = loader_of(folder, before)
    for stop in (1, 17):
        batches = list(islice(stopped, stop))
        again = loader_of(folder, after, batch_size=3)
        again.load_state_dict(through_json(stopped.state_dict()))
        assert keys(batches, list(again)) == all_keys()
        assert keys(list(again)) == all_keys()


def test_three_resumes_with_different_workers_lose_nothing(folder: str) -> None:
    """And repeat nothing."""
    state, seen = None, []
    for num_workers in (2, THREAD, 0, 1):
        loader = loader_of(folder, num_workers)
        if state is not None:
            loader.load_state_dict(state)
        seen += list(islice(loader, 5 if num_workers != 1 else None))
        state = through_json(loader.state_dict())
    assert keys(seen) == all_keys()
    assert state is not None
    assert state["epoch"] == 1


def name_of_process(sample: str) -> tuple[str, int]:
    return sample, os.getpid()


def test_workers_persist_over_epochs_and_end_when_a_state_is_loaded(folder: str) -> None:
    pipe = chain_of(folder).map(name_of_process)
    loader = stateful_loader(pipe, num_workers=2, num_streams=2, multiprocessing_context="fork")
    first, second = list(loader), list(loader)
    workers = {process for _, process in first}
    assert workers == {process for _, process in second}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert [key for key, _ in first] != [key for key, _ in second]
    loader.load_state_dict(loader.state_dict())
    assert not workers & {process for _, process in loader}


@pytest.mark.parametrize("num_workers", [0, 2, THREAD])
def test_set_epoch_sets_the_next_epoch_at_any_time(folder: str, num_workers: int) -> None:
    """Before, between and in the middle of passes; later passes count from it."""
    whole = loader_of(folder, num_workers)
    epochs = [list(whole) for _ in range(4)]
    loader = loader_of(folder, num_workers)
    loader.set_epoch(2)
    assert [list(loader), list(loader)] == epochs[2:]
    loader.set_epoch(1)
    assert loader.state_dict()["epoch"] == 1
    list(islice(loader, 3))
    loader.set_epoch(0)
    assert [list(loader), list(loader)] == epochs[:2]
    list(islice(loader, 3))
    assert list(loader) == epochs[3]
    for epoch in (3, 3, 1):
        loader.set_epoch(epoch)
        assert list(loader) == epochs[epoch]


@pytest.mark.parametrize("num_workers", [0, 2, THREAD])
def test_a_pass_that_is_left_early_counts_as_an_epoch(folder: str, num_workers: int) -> None:
    """By ``break``; the state is the position where it was left."""
    whole = loader_of(folder, num_workers)
    epochs = [list(whole) for _ in range(3)]
    loader = loader_of(folder, num_workers)
    assert list(islice(loader, 4)) == epochs[0][:4]
    state = loader.state_dict()
    assert list(islice(loader, 2)) == epochs[1][:2]
    assert list(loader) == epochs[2]
    loader.load_state_dict(state)
    assert list(loader) == epochs[0][4:]


NUM_BATCHES = NUM_SHARDS * SAMPLES_PER_SHARD // 2
WAYS = ("taken on", "held", "dropped first", "dropped last")
DROPPED_WITH_WORKERS = [
    (0, "held"), (1, "dropped first"), (5, "taken on"), (5, "dropped last"), (NUM_BATCHES, "dropped first"),
    (NUM_BATCHES, "taken on"), (99, "held"), (99, "dropped last"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("num_workers", "num_batches", "way"),
    [
        *((how, num_batches, way) for how in (0, THREAD) for num_batches in (0, 1, 5, NUM_BATCHES, 99) for way in WAYS),
        *((2, *case) for case in DROPPED_WITH_WORKERS),
    ],
)
def test_the_state_stays_when_the_iterator_is_dropped(
    folder: str, num_workers: int, num_batches: int, way: str
) -> None:
    """As Lightning does at the end of ``fit``: it stays the state after the last batch."""
    loader, again = loader_of(folder, num_workers), loader_of(folder, 0)
    batches: Any = iter(loader)
    taken = list(islice(batches, num_batches))
    expected = through_json(loader.state_dict())
    if way == "dropped first":
        loader._iterator = None
        del batches
    elif way == "dropped last":
        del batches
        loader._iterator = None
    else:
        loader._iterator = None
        if way == "taken on":
            taken += list(islice(batches, 1))
            expected = None
            batches.close()
    found = through_json(loader.state_dict())
    assert expected in (None, found)
    again.load_state_dict(found)
    ended = num_batches >= NUM_BATCHES
    assert again.state_dict()["epoch"] == int(num_batches == 99 or (way == "taken on" and ended))
    assert keys(taken, [] if again.state_dict()["epoch"] else list(again)) == all_keys()
    batches = None
    assert keys(list(loader)) == all_keys()


def equal_chain(folder: str, world: World, mode: str) -> Any:
    urls = IterableWrapper([f"{folder}/index.json"]).list_remote().shuffle_shards(seed=1)
    reader = urls.sharding_filter_rank(world=world).shard_tar_reader(interleave=2).equalize_ranks(mode=mode)
    return reader.shuffle_samples(buffer_size=4).to_tuple("__key__").map(key_of)


@pytest.mark.parametrize("mode", ["drop", "repeat"])
@pytest.mark.parametrize(
    ("world_size", "num_workers", "num_streams"), [(1, 0, 1), (3, 0, 9), (5, 0, 5), (3, THREAD, 9), (5, 2, None)]
)
def test_length_is_exact_where_ranks_are_equal(
    folder: str, world_size: int, num_workers: int, num_streams: int | None, mode: str
) -> None:
    """And the same in each rank; for batches, single samples and with ``drop_last``."""
    for batch_size, drop_last in ((3, False), (3, True), (None, False)):
        lengths = []
        for rank in range(world_size if num_workers <= 0 else 2):
            pipe, options = equal_chain(folder, World(rank, world_size), mode), {"num_streams": num_streams}
            loader = built(pipe, num_workers, batch_size=batch_size, drop_last=drop_last, **options)
            lengths.append(len(loader))
            assert [len(list(loader)), len(list(loader))] == [lengths[-1]] * 2
        assert len(set(lengths)) == 1


def test_length_without_counted_samples_is_a_type_error(folder: str) -> None:
    """As for every pipe."""
    with pytest.raises(TypeError):
        len(loader_of(folder, 0))


@pytest.mark.parametrize("num_workers", [0, 2, THREAD])
def test_drop_last_hands_out_full_batches_only(folder: str, num_workers: int) -> None:
    """Before and after a resume in the same world."""
    loader = loader_of(folder, num_workers, batch_size=5, drop_last=True, num_streams=2)
    batches, states = with_states(loader)
    assert {len(batch) for batch in batches} == {5}
    following = list(loader)
    for stop in sorted({*range(0, len(states), 4 if num_workers > 0 else 1), len(batches)}):
        again = loader_of(folder, num_workers, batch_size=5, drop_last=True, num_streams=2)
        again.load_state_dict(states[stop])
        assert list(again) == batches[stop:]
    assert list(again) == following


def fails_at(bad: str, key: str) -> str:
    if key == bad:
        raise ZeroDivisionError(f"{key} on purpose")
    return key


@pytest.mark.parametrize("num_workers", [0, 2, THREAD])
def test_an_error_of_the_chain_keeps_its_type_and_the_state_before_it(folder: str, num_workers: int) -> None:
    """The state that was saved before it resumes up to the same sample."""

    def loader(bad: str) -> StatefulLoader:
        pipe = chain_of(folder).map(partial(fails_at, bad))
        return built(pipe, num_workers, batch_size=2, num_streams=2)

    whole = list(loader("none"))
    stopped, batches, states = loader(whole[9][1]), [], []
    with failing(ZeroDivisionError, f"{whole[9][1]} on purpose"):
        for batch in stopped:
            batches.append(batch)
            states.append(through_json(stopped.state_dict()))
    assert batches == whole[:9]
    for stop in (4, 9):
        again = loader(whole[9][1])
        rest: Batches = []
        again.load_state_dict(states[stop - 1])
        with failing(ZeroDivisionError, f"{whole[9][1]} on purpose"):
            rest.extend(again)
        assert rest == whole[stop:9]
        mended = loader("none")
        mended.load_state_dict(states[stop - 1])
        assert list(mended) == whole[stop:]
    assert through_json(stopped.state_dict()) == states[-1]


@pytest.mark.parametrize("num_workers", [0, 2, THREAD])
def test_batches_of_the_chain_are_handed_out_unchanged(folder: str, num_workers: int) -> None:
    """With ``batch_size=None``; a state is saved between two of them."""

    def loader(workers: int) -> StatefulLoader:
        pipe = chain_of(folder).batch(3, drop_last=False).collate(list)
        return built(pipe, workers, num_streams=NUM_STREAMS)

    stopped = loader(num_workers)
    batches, states = with_states(stopped)
    assert keys(batches) == all_keys()
    for stop in (1, 8, len(batches) - 1):
        again = loader(num_workers)
        again.load_state_dict(states[stop])
        assert list(again) == batches[stop:]
        other = loader(3)
        other.load_state_dict(states[stop])
        assert keys(batches[:stop], list(other)) == all_keys()


def test_states_of_several_ranks_are_merged_on_load(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing streams, and streams with two positions, are refused."""

    def of_rank(rank: int, world_size: int) -> StatefulLoader:
        pipe = chain_of(folder, World(rank, world_size))
        return stateful_loader(
            pipe, batch_size=2, num_workers=2, num_streams=NUM_STREAMS, multiprocessing_context="fork"
        )

    ranks = [of_rank(rank, 3) for rank in range(3)]
    seen = [list(islice(rank, 3)) for rank in ranks]
    states = [through_json(rank.state_dict()) for rank in ranks]
    resumed = [of_rank(rank, 3) for rank in range(3)]
    for loader in resumed:
        loader.load_state_dict([*states, states[1]])  # the same one twice is one
    assert [[*head, *rest] for head, rest in zip(seen, resumed, strict=True)] == [list(of_rank(r, 3)) for r in range(3)]
    two = [of_rank(rank, 2) for rank in range(2)]
    for loader in two:
        loader.load_state_dict(merge_states(states))
    assert keys(*seen, *map(list, two)) == all_keys()
    alone = loader_of(folder, 0)
    alone.load_state_dict(states[:2])
    with pytest.raises(StateError, match="no stream 2: it is of one slot"):
        iter(alone)
    next(iter(ranks[1]))
    with pytest.raises(StateError, match=r"is in two of the states|begun epoch 1"):
        alone.load_state_dict([*states, through_json(ranks[1].state_dict())])
    with pytest.raises(StateError, match="no state to merge"):
        alone.load_state_dict([])


def test_a_state_of_another_chain_or_loader_is_refused(folder: str) -> None:
    """Also of another number of streams, or of ``StatefulDataLoader`` itself."""
    state = loader_of(folder, 0).state_dict()
    with pytest.raises(StateError, match="the number of streams 6, here it is 4"):
        loader_of(folder, 0, num_streams=4).load_state_dict(state)
    with pytest.raises(StateError, match="the chain"):
        stateful_loader(chain_of(folder).filter(bool)).load_state_dict(state)
    other = StatefulDataLoader(Resumable(chain_of(folder)), batch_size=2)
    next(iter(other))
    with pytest.raises(StateError, match="Expected a state"):
        loader_of(folder, 0).load_state_dict(other.state_dict())
    with pytest.raises(StateError, match="Shuffler cannot be resumed"):
        stateful_loader(chain_of(folder).shuffle())


def test_more_workers_than_streams_are_an_error(folder: str) -> None:
    """It is raised by the workers, and names the number of streams."""
    loader = loader_of(folder, 4, num_streams=3)
    with failing(StateError, r"4 slots \(1 rank x 4 workers\) for 3 streams"):
        list(loader)


def test_too_few_shards_are_counted_against_ranks_and_workers(tmp_path: Path) -> None:
    """As the user has passed them, and not as streams."""
    write_small_shards(str(tmp_path), num_shards=1, samples_per_shard=4)
    loader = stateful_loader(stream_shards(f"{tmp_path}/*.tar"), num_workers=2, multiprocessing_context="fork")
    with failing(EmptyShareError, r"1 shard for 2 readers \(1 rank x 2 workers\): "):
        list(loader)


def test_a_resumable_can_be_passed_instead_of_a_chain(folder: str) -> None:
    """It then has the number of streams."""
    data = Resumable(chain_of(folder), num_streams=3)
    assert keys(list(stateful_loader(data, batch_size=4))) == all_keys()
    with pytest.raises(ValueError, match="num_streams belongs to the Resumable"):
        stateful_loader(data, num_streams=3)


def joined(samples: list[str]) -> str:
    return "+".join(samples)


def test_options_of_torch_are_passed_to_torch(folder: str) -> None:
    loader = loader_of(folder, 2, batch_size=3, collate_fn=joined, prefetch_factor=5, pin_memory=False)
    assert sorted(flat.from_iterable(batch.split("+") for batch in loader)) == all_keys()
    assert (loader.prefetch_factor, loader.persistent_workers, loader.pin_memory, loader.timeout) == (
        5,
        True,
        False,
        60,
    )


def test_a_state_is_small(folder: str) -> None:
    loader = loader_of(folder, 2)
    for _ in islice(loader, 10):
        assert len(json.dumps(loader.state_dict())) < 1_000 + 200 * NUM_STREAMS


GLOO_SCRIPT = """
import itertools, json, os, sys
import torch.distributed
import torchdata_remote as tdr
from torch.utils.data.datapipes.iter import IterableWrapper

arguments = json.loads(sys.argv[1])
rank = int(os.environ["RANK"])
report = {}


def key_of(sample):
    return sample[0]


def loader_of(source, num_workers=0, **more):
    pipe = IterableWrapper(source).list_remote().shuffle_shards(seed=1).sharding_filter_rank().shard_tar_reader()
    pipe = pipe.shuffle_samples(buffer_size=3).to_tuple("__key__").map(key_of)
    if num_workers == "threads":
        return tdr.thread_loader(pipe, batch_size=2, num_streams=4)
    return tdr.stateful_loader(
        pipe, batch_size=2, num_workers=num_workers, num_streams=4, multiprocessing_context="fork", **more
    )


def error_of(loader):
    try:
        list(loader)
    except Exception as error:
        return [type(error).__name__, str(error)]


whole = [arguments["folder"] + "/index.json"]
loader = loader_of(whole, num_workers=2)
torch.distributed.init_process_group("gloo")
loader = loader_of(whole, num_workers=2)
report["epochs"] = [list(loader) for _ in range(2)]

loader.set_epoch(0)
report["head"] = list(itertools.islice(loader, 4))
state = loader.state_dict()
report["state"] = state
again = loader_of(whole, num_workers=2)
again.load_state_dict(state)  # each has its own
report["rest"] = list(again)
report["next"] = list(again)
gathered = [None, None]
torch.distributed.all_gather_object(gathered, state)
again.load_state_dict(gathered if rank == 0 else [])  # only one has files
report["rest of one"] = list(again)
again = loader_of(whole, num_workers="threads")
again.load_state_dict(tdr.merge_states(gathered))
report["rest of merged"] = list(again)
try:
    loader_of(whole).load_state_dict([])
except tdr.errors.StateError as error:
    report["none"] = str(error)

shards = [f"{arguments['folder']}/{number:06d}.tar" for number in range(6 + rank)]
report["unequal"] = error_of(loader_of(shards))
missing = [*shards[:6], arguments["folder"] + "/missing-{0..3}.tar"] if rank else shards[:6]
report["failing"] = error_of(loader_of(missing))
report["failing in a thread"] = error_of(loader_of(missing, num_workers="threads"))
print(json.dumps(report))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
import os
import sys
sys.stdout.flush()
os._exit(0)  # gloo's threads may still hold tensors, see pytorch#190489
"""


@pytest.fixture(scope="module")
def ranks(folder: str) -> list[dict[str, Any]]:
    """The reports of two ranks of a process group."""
    return run_ranks(GLOO_SCRIPT, folder=folder)


def test_ranks_of_a_group_share_the_epoch(ranks: list[dict[str, Any]]) -> None:
    """Each sample once over ranks and workers, each epoch in another order."""
    for epochs in zip(*(rank["epochs"] for rank in ranks), strict=True):
        assert keys(*epochs) == all_keys()
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]


def test_ranks_of_a_group_exchange_their_states(ranks: list[dict[str, Any]]) -> None:
    """Whether each has its own, one has all, or all are merged: every rank continues with its batches."""
    for rank in ranks:
        first, second = rank["epochs"]
        assert rank["head"] + rank["rest"] == rank["head"] + rank["rest of one"] == first
        assert rank["next"] == second
        assert "no state to merge" in rank["none"]
    assert [[v for v, _ in rank["state"]["streams"]] for rank in ranks] == [[0, 2], [1, 3]]
    assert keys(*(rank["head"] for rank in ranks), *(rank["rest of merged"] for rank in ranks)) == all_keys()


def test_ranks_that_list_different_objects_raise_the_difference(ranks: list[dict[str, Any]]) -> None:
    """In each rank, before the first batch."""
    for rank in ranks:
        name, message = rank["unequal"]
        assert name == "UnequalListingError"
        assert "Rank 0 and rank 1 list different objects: 6 objects and 7" in message


def test_the_failure_of_a_rank_is_raised_in_all_ranks(ranks: list[dict[str, Any]]) -> None:
    """The others name the rank and its error; that rank raises its own error."""
    for failing in ("failing", "failing in a thread"):
        assert ranks[0][failing][0] == "RemoteDataError"
        assert ranks[0][failing][1].startswith("Rank 1 failed to take its first batch: ")
        assert ranks[1][failing][0] != "RemoteDataError"
        assert ranks[1][failing][0] in ranks[0][failing][1]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_distributed_checkpoint_holds_the_state_of_all_ranks(folder: str, tmp_path: Path) -> None:
    """Also of one process without the option: torch flattens states, and could not load one with other lists."""
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    stopped, again = loader_of(folder, 0), loader_of(folder, 0)
    batches = iter(stopped)
    for _ in range(3):
        next(batches)
    save({"loader": stopped}, checkpoint_id=tmp_path, no_dist=True)
    load({"loader": again}, checkpoint_id=tmp_path, no_dist=True)
    assert list(again) == list(batches)
    assert "streams" in stopped.state_dict()


def test_a_pass_that_could_not_start_leaves_the_state(folder: str) -> None:
    """After a worker is killed between two epochs, the same loader reads the next epoch."""
    loader, other = loader_of(folder, 1, timeout_s=0), loader_of(folder, 1)
    assert keys(list(loader)) == all_keys()
    before = loader.state_dict()
    iterator: Any = loader._iterator
    (worker,) = iterator._workers
    del iterator
    worker.kill()
    worker.join()
    with failing(RuntimeError, "exited unexpectedly|killed"):
        list(loader)
    assert loader.state_dict() == before
    second = list(loader)
    other.set_epoch(1)
    assert second == list(other)


def test_workers_end_with_an_error_and_the_next_pass_has_new_ones(tmp_path: Path) -> None:
    """Otherwise torch waits 5 s for each worker once the failed pass is collected."""
    write_small_shards(str(tmp_path), num_shards=2, samples_per_shard=2)
    whole = (tmp_path / "000001.tar").read_bytes()
    (tmp_path / "000001.tar").write_bytes(whole[:512])
    others = set(active_children())
    pipe = IterableWrapper([f"{tmp_path}/{{000000..000001}}.tar"]).list_remote().sharding_filter_rank()
    loader = stateful_loader(pipe.shard_tar_reader(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(ShardReadError, match=r"000001\.tar"):
        list(loader)
    assert set(active_children()) == others
    (tmp_path / "000001.tar").write_bytes(whole)
    assert len(list(loader)) == 4
