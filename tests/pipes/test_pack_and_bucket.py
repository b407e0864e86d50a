"""Rows of packed tokens and batches of like length: those of a small model; nothing is lost, and bounds hold."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.counted_items import Counted
from tests.support.packed_rows import documents_of
from torchdata_remote import IterableWrapper, Resumable, World
from torchdata_remote.errors import MissingMemberError, SampleError
from torchdata_remote.pipes import Bucket, Pack

LENGTHS = st.lists(st.integers(0, 30), max_size=25)


def numbered(lengths: Sequence[int]) -> list[list[int]]:
    """Documents of these lengths, in which each token is different."""
    tokens = iter(range(1_000, 100_000))
    return [list(islice(tokens, length)) for length in lengths]


def source(items: Any) -> Any:
    return IterableWrapper(list(items), deepcopy=False)


# Pack


def cut(documents: list[list[int]], length: int) -> list[list[list[int]]]:
    """Rows of documents that follow each other."""
    rows: list[list[list[int]]] = [[]]
    for document in documents:
        while document:
            room = length - sum(map(len, rows[-1]))
            rows[-1].append(document[:room])
            document = document[room:]
            if sum(map(len, rows[-1])) == length:
                rows.append([])
    return rows if rows[-1] else rows[:-1]


def fitted(documents: list[list[int]], length: int, max_wait: int) -> list[list[list[int]]]:
    """Rows of whole documents: each in the row where it leaves the least room; of equals, in the oldest."""
    rows: list[list[list[int]]] = []
    open_rows: list[tuple[int, list[list[int]]]] = []  # with the number of the first document
    for number, document in enumerate(documents):
        while open_rows and number - open_rows[0][0] >= max_wait:
            rows.append(open_rows.pop(0)[1])
        whole = len(document) // length * length
        rows += [[document[start : start + length]] for start in range(0, whole, length)]
        if not (rest := document[whole:]):
            continue
        rooms = [length - sum(map(len, row)) for _, row in open_rows]
        fitting = [(room, at) for at, room in enumerate(rooms) if room >= len(rest)]
        if not fitting:
            open_rows.append((number, [rest]))
            continue
        room, at = min(fitting)
        open_rows[at][1].append(rest)
        if room == len(rest):
            rows.append(open_rows.pop(at)[1])
    return rows + [row for _, row in open_rows]


@given(
    lengths=LENGTHS,
    length=st.integers(1, 20),
    separator=st.sampled_from([None, 7]),
    split=st.booleans(),
    max_wait=st.integers(1, 30),
    last=st.sampled_from(["pad", "short"]),
)
def test_rows_have_the_documents_one_after_the_other_or_whole_where_they_fit_best(
    lengths: list[int], length: int, separator: int | None, split: bool, max_wait: int, last: Any
) -> None:
    """With ids, positions and boundaries that say the same."""
    documents = [document + ([] if separator is None else [separator]) for document in numbered(lengths)]
    expected = cut(documents, length) if split else fitted(documents, length, max_wait)
    options: dict[str, Any] = {"separator": separator, "last": last, "cu_seqlens": True, "padding": 3}
    rows = list(Pack(source(numbered(lengths)), length, split=split, max_wait=max_wait, **options))
    assert [documents_of(row) for row in rows] == expected
    for row, parts in zip(rows, expected, strict=True):
        size = sum(map(len, parts))
        padding = length - size if last == "pad" else 0
        assert row["input_ids"].tolist() == [*chain.from_iterable(parts), *[3] * padding]
        assert row["document_ids"].tolist()[size:] == [-1] * padding


@pytest.mark.parametrize("options", [{}, {"split": False, "max_wait": 4}])
@pytest.mark.parametrize("num_slots", [1, 3])
def test_all_ranks_together_have_each_token_once_and_equal_numbers_of_rows_without_end(
    num_slots: int, options: Any
) -> None:
    documents, got = numbered([9, 0, 4, 30, 1, 7, 12]), []
    for slot in range(num_slots):
        share = source(documents).sharding_filter_rank(world=World(slot, num_slots))
        got += [token for row in share.pack(8, last="short", **options) for token in row["input_ids"].tolist()]
        endless = share.repeat_epochs().pack(8, **options).take(30)
        assert len(endless) == len(list(endless)) == 30 // num_slots
    assert sorted(got) == sorted(chain.from_iterable(documents))


@pytest.mark.parametrize("split", [True, False])
def test_the_last_rows_are_dropped_with_a_warning_that_counts_their_tokens(split: bool) -> None:
    with pytest.warns(RuntimeWarning, match=r"left out 4 tokens in 1 row"):
        dropped = list(Pack(source(numbered([3, 6])), 5, split=split, last="drop"))
    short = list(Pack(source(numbered([3, 6])), 5, split=split, last="short"))
    assert [row["input_ids"].tolist() for row in dropped] == [row["input_ids"].tolist() for row in short[:1]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(Pack(source(numbered([5, 5])), 5, split=split, last="drop"))) == 2
        for count in range(3):
            assert list(Pack(source([[]] * count), 5, split=split)) == []


def test_a_document_that_is_longer_than_a_row_is_an_error_on_request() -> None:
    samples = source([{"__key__": "a", "ids": [1] * 5}, {"__key__": "b", "ids": [1] * 6}])
    rows = iter(samples.pack(5, member="ids", split=False, too_long="error"))
    assert len(next(rows)["input_ids"]) == 5
    with pytest.raises(SampleError, match=r"sample 'b' .* has 6 tokens, and rows have 5: .*too_long=\"split\""):
        next(rows)


@pytest.mark.parametrize(
    "make",
    [list, tuple, np.array, torch.tensor, lambda ids: np.array(ids, np.uint16), lambda ids: torch.tensor(ids).int()],
)
def test_tokens_of_any_kind_become_int64(make: Any) -> None:
    (row,) = Pack(source([make([1, 2, 3])]), 3)
    assert row["input_ids"].tolist() == [1, 2, 3]
    assert row["input_ids"].dtype == torch.int64


@pytest.mark.parametrize(
    "wrong",
    [
        *[b"abc", 3, None, [1.0], [[1, 2], [3, 4]], [[1], [2, 3]], [True]],
        np.ma.array([1, 2], mask=[False, True]),
        np.array([2**63 + 5], np.uint64),
    ],
)
def test_what_is_no_token_ids_is_an_error_that_names_the_sample(wrong: Any) -> None:
    with pytest.raises(
        SampleError, match=r"pack: expected token ids, .* in sample 'k' of an unknown shard\. Put the tok"
    ):
        list(source([{"__key__": "k", "ids": wrong}]).pack(4, member="ids"))


def test_the_member_with_the_tokens_or_the_length_is_named() -> None:
    samples = source([{"__key__": "k", "ids": [1]}])
    for pipe, error, message in (
        (samples.pack(4, member="idss"), MissingMemberError, r"has no 'idss'. It has \['ids'\]; did you mean 'ids'"),
        (source([[1, 2]]).pack(4, member="ids"), SampleError, r"pack\(member='ids'\): expected samples"),
        (samples.bucket(2), SampleError, r"Name the member: length= one of \['ids'\]"),
    ):
        with pytest.raises(error, match=message):
            list(pipe)
    assert [documents_of(row) for row in samples.pack(4, member="IDS")] == [[[1]]]
    assert [len(batch) for batch in samples.bucket(2, length="IDS")] == [1]


@pytest.mark.parametrize("split", [True, False])
def test_empty_documents_take_no_memory(split: bool) -> None:
    """What a resumed pass would read again are no documents that wait: here only the one that is not handed out."""
    data = Resumable(source([[]] * 50 + [[1], [2], [3]]).sharding_filter_rank().pack(2, split=split))
    next(iter(data))
    assert data.state_dict()["streams"][0][1]["at"][0] >= 51


# Bucket

Items = list[tuple[int, int]]
LIMITS: list[dict[str, Any]] = [
    {"batch_size": 3},
    {"batch_size": 3, "boundaries": [4, 9]},
    {"max_tokens": 20, "boundaries": [4, 9]},
    {"batch_size": 2, "max_tokens": 20, "boundaries": [9]},
    {"max_tokens": 20},
]


def length_of(item: tuple[int, int]) -> int:
    return item[1]


def bucketed(
    items: Items,
    max_wait: int,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    boundaries: list[int] | None = None,
) -> list[Items]:
    """Batches of a source that numbers its items."""
    batches: list[Items] = []
    waiting: dict[int, Items] = {}

    def close(key: int) -> None:
        batches.append(waiting.pop(key))

    def oldest() -> int:
        return min(waiting, key=lambda key: waiting[key][0])

    def tokens(batch: Items) -> int:
        return max(length for _, length in batch) * len(batch)

    for number, length in items:
        while waiting and number - waiting[oldest()][0][0] >= max_wait:
            close(oldest())
        key = length if boundaries is None else sum(length > edge for edge in boundaries)
        with_it = [*waiting.get(key, []), (number, length)]
        if max_tokens is not None and key in waiting and tokens(with_it) > max_tokens:
            close(key)
            with_it = [(number, length)]
        waiting[key] = with_it
        longest = max(length for _, length in with_it)
        if len(with_it) == batch_size or (max_tokens is not None and longest * (len(with_it) + 1) > max_tokens):
            close(key)
    while waiting:
        close(oldest())
    return batches


@given(lengths=st.lists(st.integers(0, 25), max_size=40), limits=st.sampled_from(LIMITS), max_wait=st.integers(1, 50))
def test_batches_are_those_of_a_small_model(lengths: list[int], limits: Any, max_wait: int) -> None:
    items = list(enumerate(lengths))
    batches = list(Bucket(source(items), length=length_of, max_wait=max_wait, **limits))
    assert batches == bucketed(items, max_wait, **limits)
    assert sorted(chain.from_iterable(batches)) == items
    for batch in batches:
        assert len(batch) == 1 or max(map(length_of, batch)) * len(batch) <= limits.get("max_tokens", 10_000)


@given(lengths=st.lists(st.integers(0, 20), max_size=40), max_wait=st.integers(1, 20))
def test_no_item_waits_longer_than_max_wait_and_no_more_are_held(lengths: list[int], max_wait: int) -> None:
    counted, num_left = Counted(), 0
    for batch in Bucket(source(enumerate(lengths)).map(counted), 5, length=length_of, max_wait=max_wait):
        assert len(counted.taken) - num_left <= max_wait
        num_left += len(batch)
        if len(counted.taken) < len(lengths):
            assert len(counted.taken) - batch[0][0] <= max_wait


def test_lengths_may_be_any_keys_and_are_len_by_default() -> None:
    assert list(Bucket(source(["ccc", "a", "bb", "dd", "e", "f"]), 3)) == [["a", "e", "f"], ["ccc"], ["bb", "dd"]]
    images = source([(32, 32), (64, 32), (32, 32), (64, 32)])
    assert list(images.bucket(2, length=tuple)) == [[(32, 32), (32, 32)], [(64, 32), (64, 32)]]
    for make in (torch.tensor, np.array):
        batches = source(range(6)).bucket(3, length=lambda number, make=make: make(number % 2))
        assert list(batches) == [[0, 2, 4], [1, 3, 5]], "equal tensors are equal lengths"


@pytest.mark.parametrize("length", [[1], None, float("nan"), torch.tensor([1, 2]), (1, [2])])
def test_a_length_that_is_no_key_is_an_error(length: Any) -> None:
    with pytest.raises(SampleError, match="bucket: the length of a sample must be a number, or another key"):
        list(source(range(3)).bucket(2, length=lambda _: length))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            {"length": lambda _: "3", "max_tokens": 8},
            SampleError,
            r"sample 'k' .* must be a number .*, got '3' \(str\)",
        ),
        ({"length": lambda _: 1 / 0}, ZeroDivisionError, "division by zero"),
        ({"length": "num"}, TypeError, r"no len\(\)"),
    ],
)
def test_what_has_no_length_where_a_number_is_needed_is_an_error(options: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        list(source([{"__key__": "k", "num": 3}]).bucket(2, **options))


def test_all_ranks_together_have_each_item_once_and_equal_numbers_of_batches_without_end() -> None:
    items = list(enumerate([3, 1, 2, 2, 5, 4, 1, 1, 3]))
    got: list[Any] = []
    for slot in range(2):
        share = source(items).sharding_filter_rank(world=World(slot, 2))
        got += chain.from_iterable(share.bucket(2, length=length_of, boundaries=[2]))
        endless = share.repeat_epochs().bucket(3, length=length_of).take(20)
        assert len(endless) == len(list(endless)) == 10
    assert sorted(got) == items
