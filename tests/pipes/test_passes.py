"""A pipe says what is read; any number of passes read it at once, and none of them changes it or another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, zip_longest
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.datapipe import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.tables import put_table
from torchdata_remote.errors import StateError
from torchdata_remote.pipes import DataPipe, Env, Pass
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

FOLDER, EMPTY = "memory://passes/", "memory://passes-empty/"
NUM_SHARDS = 8
NUM_SAMPLES = 5 * NUM_SHARDS
NUM_TAKEN = 50


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards(FOLDER, num_shards=NUM_SHARDS, samples_per_shard=5)
    keys = [f"{number:03d}" for number in range(NUM_SAMPLES)]
    put_table(f"{FOLDER}rows.parquet", pa.table({"__key__": keys}), rows=7)
    for number, size in enumerate([0, 5, 0, 0, 4, 1, 5, 0]):
        data = pack_tar([(f"{number}{i}.txt", b"") for i in range(size)])
        fsspec.filesystem("memory").pipe(f"/passes-empty/{number}.tar", data)
    with pytest.warns(RuntimeWarning):
        tdr.index_shards(EMPTY)


class Own(IterDataPipe[Any]):
    """A pipe of a user, with a state."""

    def __init__(self, source: Any) -> None:
        self.source, self.num_passed = source, 0

    def __iter__(self) -> Iterator[Any]:
        for item in islice(self.source, self.num_passed, None):
            self.num_passed += 1
            yield item
        self.num_passed = 0

    def state_dict(self) -> int:
        return self.num_passed

    def load_state_dict(self, state: int) -> None:
        self.num_passed = state


def listed(source: str = f"{FOLDER}*.tar") -> Any:
    return IterableWrapper([source]).list_remote().shuffle_shards(seed=1)


def read(urls: Any, world: tdr.World | None) -> Any:
    """Samples of shards that are split behind other pipes than a listing."""
    reader = urls.sharding_filter_rank(world=world).shard_tar_reader(interleave=2)
    return reader.shuffle_samples(buffer_size=4).map(key_of)


def key_of(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def samples(world: tdr.World | None = None, **options: Any) -> Any:
    return tdr.stream_shards(f"{FOLDER}index.json", shuffle_buffer_size=6, interleave=2, world=world, **options)


CHAINS: dict[str, Callable[..., Any]] = {
    "shuffled": lambda world=None: samples(world).map(key_of),
    "threads": lambda world=None: samples(world).parallel_map(key_of, num_threads=2),
    "expanded": lambda world=None: samples(world).flat_map(lambda sample: [f"{key_of(sample)}/{n}" for n in range(3)]),
    "buckets": lambda world=None: (
        samples(world).map(key_of).bucket(2, max_wait=6, length=lambda key: int(key[-1]) % 3).flat_map(list)
    ),
    "packed": lambda world=None: (
        samples(world).map(lambda sample: [int(key_of(sample)[-6:])]).pack(1).flat_map(lambda row: row["input_ids"])
    ),
    "packed whole": lambda world=None: (
        samples(world)
        .map(lambda sample: [int(key_of(sample)[-6:])] * (1 + int(key_of(sample)[-1]) % 3))
        .pack(5, split=False, max_wait=6, last="short")
        .flat_map(lambda row: row["input_ids"].tolist())
    ),
    "mixed": lambda world=None: tdr.mix(
        {name: (samples(world).map(key_of).map(lambda key, name=name: f"{name}{key}"), 1) for name in "ab"},
        stop="all_exhausted",
    ),
    "mixed to a number": lambda world=None: tdr.mix(
        {name: (samples(world).map(key_of).map(lambda key, name=name: f"{name}{key}"), 1) for name in "ab"}, stop=120
    ),
    "mixed twice": lambda world=None: tdr.mix(
        {"inner": (CHAINS["mixed"](world), 2), "c": (samples(world).map(key_of), 1)}, stop="all_exhausted", seed=5
    ).shuffle_samples(buffer_size=5),
    "nested shuffles": lambda world=None: samples(world).map(key_of).shuffle_samples(buffer_size=9, seed=3),
    "joined": lambda world=None: tdr.join(
        dict.fromkeys("ab", f"{FOLDER}index.json"), members={"a": "cls", "b": "txt"}, world=world
    ).map(key_of),
    "joined in order": lambda world=None: tdr.join(
        dict.fromkeys("ab", f"{FOLDER}index.json"), align="order", members={"a": "cls", "b": "txt"}, world=world
    ).map(key_of),
    "rows": lambda world=None: (
        IterableWrapper([f"{FOLDER}rows.parquet"])
        .list_remote()
        .list_row_groups()
        .shuffle_shards(seed=1)
        .sharding_filter_rank(world=world)
        .table_reader()
        .map(key_of)
        .shuffle_samples(buffer_size=6)
    ),
    "repeated": lambda world=None: samples(world).map(key_of).repeat_epochs(2).flat_map(lambda key: [key]),
    "skipped": lambda world=None: samples(world).map(key_of).skip(0).batch(3).flat_map(list),
    "skipped in the middle": lambda world=None: (
        samples(world).map(key_of).shuffle_samples(buffer_size=3).skip(6).shuffle_samples(buffer_size=4)
    ),
    "taken": lambda world=None: samples(world).map(key_of).repeat_epochs().take(NUM_TAKEN),
    "some shards": lambda world=None: read(listed().skip(1).take(6), world),
    "shards of a manifest twice": lambda world=None: read(listed(f"{FOLDER}index.json").repeat_epochs(2), world),
    "shards in a buffer": lambda world=None: read(listed().shuffle_samples(buffer_size=3), world),
    "shards of a pipe of a user": lambda world=None: read(Own(listed()), world),
    "taken of endless shards": lambda world=None: read(listed().repeat_epochs(), world).take(NUM_TAKEN),
    "empty shards": lambda world=None: read(listed(f"{EMPTY}index.json"), world),
}


BY_NUMBER = ("taken", "taken of endless shards", "mixed to a number", "skipped in the middle")


def texts(items: Any) -> list[str]:
    return sorted(map(str, items))


@pytest.mark.parametrize("name", CHAINS)
def test_passes_of_one_pipe_run_at_once_and_each_is_whole(name: str) -> None:
    """Two of them are two epochs, as two in turn are."""
    expected = CHAINS[name]()
    epochs = [list(map(str, expected)) for _ in range(2)]
    pipe = CHAINS[name]()
    pairs = list(zip_longest(pipe, pipe))
    assert [[str(item) for item in column] for column in zip(*pairs, strict=True)] == epochs
    pipe = CHAINS[name]()
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: list(map(str, pipe)), range(3)))
    third = list(map(str, expected))
    assert sorted(found) == sorted([*epochs, third])


@pytest.mark.parametrize("name", CHAINS)
def test_reading_changes_neither_a_pipe_nor_its_pickle(name: str) -> None:
    pipe = tdr.stream_shards(FOLDER).decode_sample().take(9) if name == "taken" else CHAINS[name]()
    own: Any = pipe.datapipe if hasattr(pipe, "datapipe") else pipe
    before = dict(vars(own))
    items = iter(own)
    next(items)
    assert vars(own) == before
    list(items)
    assert vars(own) == before


class Uncopied(list[Any]):
    """A list that may be long."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("the list was copied")


def test_a_list_of_urls_is_read_without_a_copy_of_it_and_items_that_can_change_are_copies() -> None:
    urls = Uncopied(f"memory://never/{number}.tar" for number in range(5))
    assert list(IterableWrapper(urls).shuffle_shards(seed=0).sharding_filter_rank()) != urls
    samples = Uncopied({"__key__": str(number), "cls": [number]} for number in range(3))
    for sample in IterableWrapper(samples).skip(0):
        sample["cls"].append("changed")
    assert [sample["cls"] for sample in samples] == [[0], [1], [2]]


# Worlds that grow and shrink


def stopped(make: Callable[[tdr.World], Any], ranks: int, num_items: int, num_streams: int | None) -> tuple[Any, Any]:
    """What all ranks have handed out together, and their merged state."""
    readers = [tdr.Resumable(make(tdr.World(rank, ranks)), num_streams=num_streams) for rank in range(ranks)]
    head = [item for data in readers for item in islice(data, num_items // ranks)]
    return head, tdr.merge_states([data.state_dict() for data in readers])


def rest_of(make: Callable[[tdr.World], Any], ranks: int, state: Any) -> list[Any]:
    found = []
    for rank in range(ranks):
        data = tdr.Resumable(make(tdr.World(rank, ranks)))
        data.load_state_dict(state)
        found += list(data)
    return found


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(CHAINS)),
    ranks=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    stops=st.tuples(st.integers(0, 60), st.integers(0, 20)),
    num_streams=st.sampled_from([None, 3]),
)
def test_a_state_loads_in_worlds_of_any_size_and_nothing_is_lost_or_repeated(
    name: str, ranks: tuple[int, int, int], stops: tuple[int, int], num_streams: int | None
) -> None:
    """Also where a world that has divided the streams of another one is stopped itself."""
    make = CHAINS[name]
    whole = texts(item for rank in range(ranks[0]) for item in tdr.Resumable(make(tdr.World(rank, ranks[0]))))
    head, state = stopped(make, ranks[0], stops[0], num_streams)
    if num_streams is not None:
        whole = texts(tdr.Resumable(make(), num_streams=num_streams))

    def require_whole(found: Sequence[Any]) -> None:
        if name in BY_NUMBER:  # which ones of a pass are taken depends on the shares
            assert len(found) == len(whole)
        else:
            assert texts(found) == whole

    # A number of items that is divided among ranks is so evenly, in as many streams as there are shards at most
    assume("taken" not in name or math.lcm(state["num_streams"], *ranks[1:]) <= NUM_SHARDS)
    require_whole([*head, *rest_of(make, ranks[1], state)])
    again, states = [], []
    for rank in range(ranks[1]):
        data = tdr.Resumable(make(tdr.World(rank, ranks[1])))
        data.load_state_dict(state)
        again += list(islice(data, stops[1] // ranks[1]))
        states.append(data.state_dict())
    require_whole([*head, *again, *rest_of(make, ranks[2], tdr.merge_states(states))])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_rank_that_has_ended_is_merged_with_others_also_where_streams_were_divided(ranks: int) -> None:
    """Its state begins the next epoch, with other streams; without the states of all ranks it is refused."""

    def loader(rank: int, world_size: int) -> Any:
        pipe = tdr.stream_shards(
            f"{FOLDER}*.tar", world=tdr.World(rank, world_size), interleave=1, shuffle_buffer_size=2
        )
        return tdr.stateful_loader(pipe.map(key_of), num_streams=2)

    def read_on(state: Any, world_size: int, stops: Sequence[int | None]) -> tuple[list[str], list[Any]]:
        found, states = [], []
        for rank, stop in enumerate(stops):
            resumed = loader(rank, world_size)
            resumed.load_state_dict(state)
            found += list(islice(resumed, stop))
            states.append(resumed.state_dict())
        return found, states

    begun = loader(0, 1)
    first = list(islice(begun, 4))
    found, states = read_on(begun.state_dict(), 3, [None, 2, 1])
    with pytest.raises(StateError, match="Merge those of all ranks"):
        tdr.merge_states(states[:2])
    rest, _ = read_on(tdr.merge_states(states), ranks, [None] * ranks)
    assert sorted([*first, *found, *rest]) == texts(samples().map(key_of))


# Pipes of others


class Doubled(IterDataPipe[Any]):
    """A pipe of a user, without a state."""

    def __init__(self, source_datapipe: IterDataPipe[Any]) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[Any]:
        for item in self.source_datapipe:
            yield item
            yield item


class Every(DataPipe[Any]):
    """Every n-th item: a pipe of a user by description and pass."""

    def __init__(self, source_datapipe: IterDataPipe[Any], number: int) -> None:
        super().__init__()
        self.source_datapipe, self.number = source_datapipe, number

    def open(self, env: Env) -> Pass[Any]:
        return EveryPass(env.open(self.source_datapipe), self.number)


class EveryPass(Pass[Any]):
    def __init__(self, source: Pass[Any], number: int) -> None:
        super().__init__(source)
        self._number, self._num_read = number, 0

    def items(self) -> Iterator[Any]:
        for self._num_read, item in enumerate(self.sources[0], self._num_read + 1):  # noqa: B020
            if self._num_read % self._number == 1:
                yield item

    @property
    def position(self) -> Any:
        return [self._num_read, self.sources[0].position]

    def seek(self, position: Any) -> None:
        self._num_read, at = position
        self.sources[0].resume(at)


def test_a_pipe_of_a_user_between_ours_is_in_the_same_epoch_and_share() -> None:
    def chain(world: tdr.World | None = None) -> Any:
        return Doubled(samples(world).map(key_of)).take(2 * NUM_SAMPLES)

    pipe = chain()
    epochs = [list(pipe), list(pipe)]
    assert epochs[0] != epochs[1]
    plain = CHAINS["shuffled"]()
    assert [epoch[::2] for epoch in epochs] == [list(plain), list(plain)]
    assert list(zip(pipe, pipe, strict=True))
    parts = [list(chain(tdr.World(rank, 2))) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == sorted(epochs[0])
    with pytest.raises(StateError, match="Doubled cannot be resumed where it was"):
        tdr.Resumable(chain())


def test_a_pipe_of_a_user_by_description_and_pass_resumes() -> None:
    def chain() -> Any:
        source = IterableWrapper(range(20)).sharding_filter_rank().shuffle_samples(buffer_size=5)
        return Every(source, 3).parallel_map(abs, num_threads=2)

    assert len(list(chain())) == 7
    assert_resumes_everywhere(chain)
