"""A state that is damaged, of another chain, or of data that changed is an error, and never loses or repeats items."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

import fsspec
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.tables import numbered, put_table
from torchdata_remote import IterDataPipe, Resumable, mix
from torchdata_remote.errors import StateError
from torchdata_remote.testing import write_small_shards

FOLDER = "memory://refused-states/"
TABLE = f"{FOLDER}t.parquet"
DAMAGE: list[Any] = [-1, 1.5, None, "x", [], {}, [1], True, "ffffff", [[99]], [[0, 0]], [["a"]]]
# Values in the states of pipes that count, hold items, or mix
FIELDS = {"items", "passed", "read", "cut", "rows", "held", "passes", "draws", "sources", "phases"}


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards(FOLDER, num_shards=4, samples_per_shard=3)
    put_table(TABLE, numbered(9), rows=4)


def source(num_items: int = 20) -> Any:
    return IterableWrapper(range(num_items)).sharding_filter_rank()


def documents() -> Any:
    return source().map(lambda number: [number] * (number % 5))


def shards(**options: Any) -> Any:
    urls = IterableWrapper([f"{FOLDER}index.json"]).list_remote().sharding_filter_rank(**options)
    return urls.shard_tar_reader()


def rows(**options: Any) -> Any:
    return documents().pack(**{"length": 4, **options}).map(lambda row: row["input_ids"].tolist())


def mixed(weights: tuple[float, float] = (1, 2), **options: Any) -> Any:
    return mix({"a": (source(), weights[0]), "b": (source(), weights[1])}, **{"stop": 30, **options})


def bucketed(**options: Any) -> Any:
    return source().bucket(**{"batch_size": 3, "length": lambda number: number % 4, "max_wait": 6, **options})


COUNTING: dict[str, Callable[[], Any]] = {
    "flat_map": lambda: source().flat_map(lambda number: [number] * (number % 3)),
    "pack": rows,
    "fit": lambda: rows(split=False, max_wait=4),
    "bucket": bucketed,
    "repeat": lambda: source().repeat_epochs(2),
    "take": lambda: source().take(15),
    "skip": lambda: source().skip(4),
    "mix": mixed,
}


def places(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where a state of these pipes has values of its own."""
    for key, value in state.items():
        if key == "at" and isinstance(value, dict):
            yield from places(value, (*path, key))
        elif key in FIELDS:
            yield (*path, key)
            if key in ("sources", "phases"):
                yield from ((*path, key, 0), *((*path, key, 0, part) for part in (0, 1) if key == "sources"))


@pytest.mark.parametrize("name", COUNTING)
def test_a_damaged_state_is_an_error_and_never_a_hang_or_other_items(name: str) -> None:
    begun = Resumable(COUNTING[name]())
    head = list(islice(begun, 4))
    state = json.loads(json.dumps(begun.state_dict()))
    whole = list(Resumable(COUNTING[name]()))
    found, refused = list(places(state["streams"][0][1]["at"])), 0
    assert found
    for path in found:
        for damage in DAMAGE:
            damaged = copy.deepcopy(state)
            holder = damaged["streams"][0][1]["at"]
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = damage
            resumed = Resumable(COUNTING[name]())
            try:
                resumed.load_state_dict(damaged)
                got = [*head, *islice(resumed, 100)]
            except StateError:
                refused += 1
                continue
            assert got == whole or damage in ([], {}), (path, damage)
    assert refused >= len(found) * len(DAMAGE) // 2


OTHER_OPTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any], str]] = {
    "seed of URLs": (
        lambda **options: IterableWrapper(list("abcde")).shuffle_shards(**options).sharding_filter_rank(),
        {"seed": 0},
        {"seed": 1},
        "ShuffleShards: seed was 0, is 1",
    ),
    "buffer": (
        lambda **options: source().shuffle_samples(**{"buffer_size": 5, **options}),
        {},
        {"buffer_size": 6},
        r"ShuffleSamples: buffer_size \(.*\) was 5, is 6",
    ),
    "seed of samples": (
        lambda seed: source().shuffle_samples(buffer_size=5, seed=seed),
        {"seed": 2},
        {"seed": 3},
        "2, is 3",
    ),
    "buffer in bytes": (
        lambda size: source().shuffle_samples(buffer_size=5, max_buffer_bytes=size),
        {"size": 500},
        {"size": 501},
        r"max_buffer_bytes \(.*\) was 500, is 501",
    ),
    "interleave": (
        lambda interleave: tdr.stream_shards(FOLDER, shuffle=False, interleave=interleave),
        {"interleave": 1},
        {"interleave": 2},
        "ShardTarReader: interleave was 1, is 2",
    ),
    "take": (lambda number: source().take(number), {"number": 8}, {"number": 9}, "Take: number was 8, is 9"),
    "skip": (lambda number: source().skip(number), {"number": 8}, {"number": 9}, "Skip: number was 8, is 9"),
    "batch_size": (bucketed, {}, {"batch_size": 4}, "Bucket: batch_size was 3, is 4"),
    "max_tokens": (bucketed, {}, {"max_tokens": 40}, "Bucket: max_tokens was None, is 40"),
    "boundaries": (bucketed, {"boundaries": [1]}, {"boundaries": [2]}, "Bucket: boundaries was "),
    "max_wait": (bucketed, {}, {"max_wait": 7}, "Bucket: max_wait was 6, is 7"),
    "length": (rows, {}, {"length": 5}, "Pack: length was 4, is 5"),
    "separator": (rows, {}, {"separator": 0}, "Pack: separator was None, is 0"),
    "member": (
        lambda member: source().map(lambda n: {"a": [n], "b": [n]}).pack(4, member=member),
        {"member": "a"},
        {"member": "b"},
        "Pack: member was 'a', is 'b'",
    ),
    "max_wait of rows": (
        rows,
        {"split": False, "max_wait": 4},
        {"split": False, "max_wait": 5},
        "max_wait was 4, is 5",
    ),
    "split": (rows, {}, {"split": False}, "Pack"),
    "seed of flat_map": (
        lambda seed: shards().flat_map(lambda sample, rng: [1, 2], seed=seed),
        {"seed": 1},
        {"seed": 2},
        "FlatMap: seed was 1, is 2",
    ),
    "mode": (
        lambda mode: shards().equalize_ranks(mode=mode),
        {"mode": "drop"},
        {"mode": "repeat"},
        "EqualizeRanks: mode was 'drop', is 'repeat'",
    ),
    "split=False": (shards, {}, {"split": False}, "split"),
    "filter": (
        lambda left_out: (
            IterableWrapper([TABLE]).table_reader(filter=[("n", "!=", left_out)]).shuffle_samples(buffer_size=3)
        ),
        {"left_out": 3},
        {"left_out": 4},
        "TableReader: filter was",
    ),
    "stop": (mixed, {}, {"stop": 31}, "Mixed: stop was 30, is 31"),
    "kind of stop": (mixed, {}, {"stop": "all_exhausted"}, "Mixed: stop was 30, is 'all_exhausted'"),
    "seed of draws": (mixed, {}, {"seed": 1}, "Mixed: seed was 0, is 1"),
}


@pytest.mark.parametrize("name", OTHER_OPTIONS)
def test_a_state_of_other_options_is_refused_with_both_values(name: str) -> None:
    make, before, after, message = OTHER_OPTIONS[name]
    begun = Resumable(make(**before))
    next(iter(begun))
    Resumable(make(**before)).load_state_dict(begun.state_dict())
    with pytest.raises(StateError, match=message):
        Resumable(make(**after)).load_state_dict(begun.state_dict())


@pytest.mark.parametrize("name", COUNTING)
def test_a_state_of_another_chain_is_refused(name: str) -> None:
    begun = Resumable(COUNTING[name]())
    next(iter(begun))
    for other in COUNTING.keys() - {name, "pack" if name == "fit" else "fit"}:
        with pytest.raises(StateError):
            Resumable(COUNTING[other]()).load_state_dict(begun.state_dict())
    with pytest.raises(StateError):
        Resumable(COUNTING[name]().batch(2)).load_state_dict(begun.state_dict())


@pytest.mark.parametrize("state", [3, "x", {"other": 1}, [1]])
@pytest.mark.parametrize(
    "pipe", [*(name for name in COUNTING if name not in ("pack", "fit")), "share", "shuffle", "tar"]
)
def test_a_pipe_refuses_what_is_no_state_of_it(pipe: str, state: Any) -> None:
    others: dict[str, Any] = {
        "share": source,
        "shuffle": lambda: source().shuffle_samples(buffer_size=3),
        "tar": shards,
    }
    with pytest.raises(StateError, match=r"expected a state with \w+"):
        {**COUNTING, **others}[pipe]().load_state_dict(state)


def test_a_tokenizer_that_has_changed_is_an_error() -> None:
    for split in (True, False):

        def tokens(num_tokens: int, split: bool = split) -> Resumable:
            return Resumable(source().map(lambda number: [number] * num_tokens).pack(4, split=split))

        begun = tokens(11)
        list(islice(begun, 2))
        resumed = tokens(5)
        resumed.load_state_dict(begun.state_dict())
        with pytest.raises(StateError, match="the tokenizer, or what it reads, has changed"):
            next(iter(resumed))


def test_documents_that_became_longer_than_their_row_are_an_error() -> None:
    def tokens(num_tokens: int) -> Resumable:
        return Resumable(source().map(lambda number: [number] * (num_tokens if number % 2 else 4)).pack(5, split=False))

    begun = tokens(2)
    next(iter(begun))
    state = begun.state_dict()
    resumed = tokens(3)
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match=r"documents of a row have \d+ tokens now, and had less than 5"):
        list(resumed)


def test_a_source_with_fewer_items_than_are_read_again_is_an_error() -> None:
    def packed(num_items: int) -> Any:
        return (
            IterableWrapper([[number] * 5 for number in range(num_items)])
            .sharding_filter_rank()
            .pack(7, split=False, max_wait=4)
        )

    first = packed(9)
    items = iter(first)
    next(items), next(items)
    fewer = packed(3)
    fewer.load_state_dict(first.state_dict())
    with pytest.raises(StateError, match=r"yielded \d items before the state was saved, and \d now"):
        list(fewer)


def test_a_function_that_returns_fewer_items_than_before_is_an_error() -> None:
    left = [3, 1]
    chain = Resumable(IterableWrapper([7, 8]).sharding_filter_rank().flat_map(lambda item: [item] * left.pop(0)))
    items = iter(chain)
    next(items), next(items)
    chain.load_state_dict(chain.state_dict())
    with pytest.raises(StateError, match=r"returned 2 or more items for a sample before .*, and 1 now"):
        next(iter(chain))


def is_not_the_last(pair: tuple[str, Any]) -> bool:
    return not pair[0].endswith("3.tar")


def test_a_shard_of_the_state_that_the_chain_no_longer_yields_is_an_error() -> None:
    urls = [f"memory://refused-states-gone/{number}.tar" for number in range(4)]
    archive = pack_tar([(f"{letter}.txt", b"") for letter in "abc"])
    fsspec.filesystem("memory").pipe({url.removeprefix("memory:/"): archive for url in urls})
    begun = IterableWrapper(urls).shard_tar_reader(interleave=2)
    list(islice(begun, 9))
    state = begun.state_dict()
    others = [(f"s3://b/{number}.tar", io.BytesIO(archive)) for number in range(2)]
    for pipe, message in (
        (IterableWrapper(urls[:3]), "expects 4 URLs"),
        (IterableWrapper(urls[:3]).async_prefetch(), "expects 4 URLs"),
        (IterableWrapper(urls).async_prefetch().filter(is_not_the_last), "shard number 3"),
        (IterableWrapper(others, deepcopy=False), "shard number"),
    ):
        resumed: Any = pipe.shard_tar_reader(interleave=2)
        resumed.load_state_dict(state)
        with pytest.raises(StateError, match=message):
            list(resumed)


@pytest.mark.parametrize("reader", [None, "shard_tar_reader", "file_reader"])
def test_an_order_that_cannot_be_repeated_has_no_state(reader: str | None) -> None:
    streams = IterableWrapper([f"{FOLDER}00000{number}.tar" for number in range(4)]).async_prefetch(in_order=False)
    pipe = streams if reader is None else getattr(streams, reader)()
    next(iter(pipe))
    with pytest.raises(StateError, match="in_order=True"):
        pipe.state_dict()
    with pytest.raises(StateError, match="in_order=True"):
        Resumable(pipe)


@pytest.mark.parametrize("reader", ["shard_tar_reader", "file_reader"])
def test_streams_of_other_openers_are_read_and_have_no_state(reader: str) -> None:
    pairs = [("s3://b/1.tar", io.BytesIO(pack_tar([("a.txt", b""), ("b.txt", b"")])))]
    pipe = getattr(IterableWrapper(pairs, deepcopy=False), reader)()
    items = iter(pipe)
    next(items)
    with pytest.raises(StateError, match=r"cannot be opened again.*async_prefetch"):
        pipe.state_dict()
    assert len(list(items)) == (reader == "shard_tar_reader")


@pytest.mark.parametrize(
    "pipe",
    [
        lambda: IterableWrapper(range(9)).shuffle_samples(buffer_size=4),
        lambda: IterableWrapper(range(9)).parallel_map(abs, num_threads=2),
        lambda: IterableWrapper(range(9)).take(8),
    ],
)
def test_a_chain_whose_source_does_not_count_is_read_and_has_no_state(pipe: Callable[[], Any]) -> None:
    made = pipe()
    list(islice(iter(made), 5))
    with pytest.raises(StateError, match=r"IterableWrapper does not count .*sharding_filter_rank\(\)"):
        made.state_dict()
    with pytest.raises(StateError, match="IterableWrapper"):
        Resumable(pipe())


class Live(IterDataPipe[int]):
    """A pipe of a user, whose state is the object that it changes."""

    def __init__(self, num_items: int) -> None:
        self.num_items, self.state = num_items, {"next": 0}

    def __iter__(self) -> Iterator[int]:
        while self.state["next"] < self.num_items:
            self.state["next"] += 1
            yield self.state["next"] - 1

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


@pytest.mark.parametrize(
    "make", [Resumable, lambda pipe: pipe.take(9), lambda pipe: pipe.parallel_map(abs, num_threads=2)]
)
def test_a_state_does_not_change_while_its_chain_goes_on(make: Callable[[Any], Any]) -> None:
    data = make(Live(9))
    items = iter(data)
    assert [next(items), next(items)] == [0, 1]
    state = data.state_dict()
    before = json.dumps(state)
    assert next(items) == 2
    assert json.dumps(state) == before
    other = make(Live(9))
    other.load_state_dict(state)
    assert next(iter(other)) == 2


def test_a_state_loads_with_another_number_of_repeats() -> None:
    def chain(times: int) -> Resumable:
        return Resumable(tdr.stream_shards(FOLDER).map(itemgetter("__key__")).repeat_epochs(times))

    short, longer = chain(2), chain(3)
    head = list(islice(short, 20))
    longer.load_state_dict(short.state_dict())
    assert [*head, *longer] == list(chain(3))
