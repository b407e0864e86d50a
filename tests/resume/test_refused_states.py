"""A state that is damaged, of another chain, or of data that changed is an error, and never loses or repeats items."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import fsspec
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.loaders import edited
from tests.support.tables import numbered, put_table
from torchdata_remote import Resumable, mix
from torchdata_remote.errors import StateError
from torchdata_remote.testing import write_small_shards

FOLDER = "memory://refused-states/"
TABLE = f"{FOLDER}t.parquet"


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


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where a state has values that are not in others."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))
    if not parts:
        yield path


@pytest.mark.parametrize("name", COUNTING)
def test_a_state_that_was_changed_anywhere_is_refused(name: str) -> None:
    begun = Resumable(COUNTING[name]())
    list(islice(begun, 4))
    state = json.loads(json.dumps(begun.state_dict()))
    resumed = Resumable(COUNTING[name]())
    for path in places(state):
        damaged = copy.deepcopy(state)
        holder = damaged
        for key in path[:-1]:
            holder = holder[key]
        others: list[Any] = [-1, None, "x", [], {}, [[0, 0]]]
        for damage in others:
            if holder[path[-1]] == damage:
                continue
            kept, holder[path[-1]] = holder[path[-1]], damage
            with pytest.raises(StateError, match=r"damaged|version"):
                resumed.load_state_dict(damaged)
            holder[path[-1]] = kept
    resumed.load_state_dict(state)
    assert list(resumed) == list(islice(COUNTING[name](), 4, None))


Values = tuple[Any, Any]
OTHER_OPTIONS: list[tuple[str, Callable[[Any], Any], Values]] = [
    (
        "ShuffleShards: seed",
        lambda seed: IterableWrapper(list("abcde")).shuffle_shards(seed).sharding_filter_rank(),
        (0, 1),
    ),
    (r"ShuffleSamples: buffer_size \(.*\)", lambda size: source().shuffle_samples(buffer_size=size), (5, 6)),
    ("ShuffleSamples: seed", lambda seed: source().shuffle_samples(buffer_size=5, seed=seed), (2, 3)),
    (
        r"ShuffleSamples: max_buffer_bytes \(.*\)",
        lambda size: source().shuffle_samples(buffer_size=5, max_buffer_bytes=size),
        (500, 501),
    ),
    (
        "ShardTarReader: interleave",
        lambda number: tdr.stream_shards(FOLDER, shuffle=False, interleave=number),
        (1, 2),
    ),
    ("Take: number", lambda number: source().take(number), (8, 9)),
    ("Skip: number", lambda number: source().skip(number), (8, 9)),
    ("Bucket: batch_size", lambda size: bucketed(batch_size=size), (3, 4)),
    ("Bucket: max_tokens", lambda number: bucketed(max_tokens=number), (None, 40)),
    ("Bucket: boundaries", lambda bounds: bucketed(boundaries=bounds), ([1], [2])),
    ("Bucket: max_wait", lambda number: bucketed(max_wait=number), (6, 7)),
    ("Pack: length", lambda length: rows(length=length), (4, 5)),
    ("Pack: separator", lambda token: rows(separator=token), (None, 0)),
    ("Pack: member", lambda name: source().map(lambda n: {"a": [n], "b": [n]}).pack(4, member=name), ("a", "b")),
    ("Pack: max_wait", lambda number: rows(split=False, max_wait=number), (4, 5)),
    ("Pack.*", lambda split: rows(split=split), (True, False)),
    ("FlatMap: seed", lambda seed: shards().flat_map(lambda sample, rng: [1, 2], seed=seed), (1, 2)),
    ("EqualizeRanks: mode", lambda mode: shards().equalize_ranks(mode=mode), ("drop", "repeat")),
    (".*split", lambda split: shards(split=split), (True, False)),
    (
        "TableReader: filter",
        lambda left_out: IterableWrapper([TABLE]).table_reader(filter=[("n", "!=", left_out)]).take(3),
        (3, 4),
    ),
    ("Mixed: stop", lambda stop: mixed(stop=stop), (30, 31)),
    ("Mixed: stop", lambda stop: mixed(stop=stop), (30, "all_exhausted")),
    ("Mixed: seed", lambda seed: mixed(seed=seed), (0, 1)),
]


@pytest.mark.parametrize(("option", "make", "values"), OTHER_OPTIONS)
def test_a_state_of_other_options_is_refused_with_both_values(
    option: str, make: Callable[[Any], Any], values: Values
) -> None:
    before, after = values
    begun = Resumable(make(before))
    next(iter(begun))
    Resumable(make(before)).load_state_dict(begun.state_dict())
    with pytest.raises(StateError) as caught:
        Resumable(make(after)).load_state_dict(begun.state_dict())
    simple = isinstance(before, int | str | None) and "split" not in option and "Pack.*" not in option
    shown = f" was {before!r}, is {after!r}" if simple and "filter" not in option else ""
    assert re.search(option + re.escape(shown), str(caught.value))


def tokens(num_even: int, num_odd: int, length: int, num_items: int = 20, **options: Any) -> Any:
    """Rows of documents with so many tokens each."""
    return source(num_items).map(lambda at: [at] * (num_odd if at % 2 else num_even)).pack(length, **options)


CHANGED: dict[str, tuple[Callable[[], Any], int, Callable[[], Any]]] = {
    "the tokenizer, or what it reads, has changed": (lambda: tokens(11, 11, 4), 2, lambda: tokens(5, 5, 4)),
    "tokenizer, or what it reads, has changed": (
        lambda: tokens(11, 11, 4, split=False),
        2,
        lambda: tokens(5, 5, 4, split=False),
    ),
    "a document has another number of tokens": (
        lambda: tokens(4, 2, 5, split=False),
        1,
        lambda: tokens(4, 3, 5, split=False),
    ),
    r"had \d items to hold when the state was saved, and gets \d now": (
        lambda: tokens(5, 5, 7, 9, split=False, max_wait=4),
        2,
        lambda: tokens(5, 5, 7, 3, split=False, max_wait=4),
    ),
    r"returned 2 or more items for a sample before .*, and 1 now": (
        lambda: source().flat_map(lambda item: [item] * 3),
        2,
        lambda: source().flat_map(lambda item: [item]),
    ),
}


@pytest.mark.parametrize("message", CHANGED)
def test_data_that_became_others_or_fewer_are_an_error(message: str) -> None:
    before, num_items, after = CHANGED[message]
    begun, resumed = Resumable(before()), Resumable(after())
    list(islice(begun, num_items))
    resumed.load_state_dict(of_chain(begun.state_dict(), resumed))
    with pytest.raises(StateError, match=message):
        list(resumed)


def of_chain(state: Any, data: Resumable) -> Any:
    """The same positions as a state of other data, whose listing is not compared."""
    return edited(state, chain=data.chain, listing=None)


def is_not_the_last(pair: tuple[str, Any]) -> bool:
    return not pair[0].endswith("3.tar")


def test_a_shard_of_the_state_that_the_chain_no_longer_yields_is_an_error() -> None:
    urls = [f"memory://refused-states-gone/{number}.tar" for number in range(4)]
    archive = pack_tar([(f"{letter}.txt", b"") for letter in "abc"])
    fsspec.filesystem("memory").pipe({url.removeprefix("memory:/"): archive for url in urls})
    begun = Resumable(IterableWrapper(urls).async_prefetch().shard_tar_reader(interleave=2))
    list(islice(begun, 9))
    for pipe, message in (
        (IterableWrapper(urls[:3]).async_prefetch(), "expects 4 URLs"),
        (IterableWrapper(urls).async_prefetch().filter(is_not_the_last), "shard number 3"),
    ):
        resumed = Resumable(pipe.shard_tar_reader(interleave=2))
        resumed.load_state_dict(of_chain(begun.state_dict(), resumed))
        with pytest.raises(StateError, match=message):
            list(resumed)


def test_pipes_without_a_place_are_read_and_refused_where_a_state_is_wanted() -> None:
    """Streams of another opener, torch's own shuffle, and an iterator, which cannot be read again."""
    archive = pack_tar([("a.txt", b""), ("b.txt", b"")])
    streams = iter([("s3://b/1.tar", io.BytesIO(archive))])
    for pipe, name in (
        (IterableWrapper(streams, deepcopy=False).shard_tar_reader(), "IterableWrapper holds an iterator"),
        (IterableWrapper(range(9)).shuffle().take(8), r"Shuffler cannot be resumed .* shuffle_samples\(\)"),
    ):
        with pytest.raises(StateError, match=name):
            Resumable(pipe)
        assert list(pipe)
