"""Token sequences in rows of one length: no token is lost or repeated, wherever it is stopped."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.counted_items import Counted
from tests.support.packed_rows import documents_of, same_rows
from tests.support.resumed_loaders import assert_loader_continues
from torchdata_remote import Pack, Resumable, World, stateful_loader, thread_loader
from torchdata_remote.errors import MissingMemberError, SampleError, StateError
from torchdata_remote.pipes.base.window import Window
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

LENGTHS = st.lists(st.integers(0, 30), max_size=25)
CUTS = [{}, {"separator": 7}, {"split": False, "max_wait": 4}, {"split": False, "separator": 7, "max_wait": 100}]


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards("memory://packed/", num_shards=4, samples_per_shard=5)


def numbered(lengths: Sequence[int]) -> list[list[int]]:
    """Documents of these lengths, in which each token is different."""
    tokens = iter(range(1_000, 100_000))
    return [list(islice(tokens, length)) for length in lengths]


def tokens_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {"ids": list(sample["txt"]), "__key__": sample["__key__"]}


def shards(interleave: int = 1, world: World | None = None, folder: str = "memory://packed/") -> Any:
    urls = IterableWrapper([folder]).list_remote(pattern="*.tar").shuffle_shards(seed=2)
    return urls.sharding_filter_rank(world=world).shard_tar_reader(interleave=interleave).map(tokens_of)


@given(lengths=LENGTHS, length=st.integers(1, 20), separator=st.sampled_from([None, 7]))
def test_rows_are_the_documents_one_after_the_other(lengths: list[int], length: int, separator: int | None) -> None:
    documents = numbered(lengths)
    rows = list(Pack(IterableWrapper(documents), length, separator=separator, last="short", cu_seqlens=True))
    expected = chain.from_iterable(document + ([] if separator is None else [separator]) for document in documents)
    assert list(chain.from_iterable(row["input_ids"].tolist() for row in rows)) == list(expected)
    assert all(len(row["input_ids"]) == length for row in rows[:-1])
    for row in rows:
        documents_of(row)


@given(lengths=LENGTHS, length=st.integers(1, 20), max_wait=st.integers(1, 30))
def test_documents_stay_whole_and_each_is_in_one_row(lengths: list[int], length: int, max_wait: int) -> None:
    documents = numbered(lengths)
    rows = list(Pack(IterableWrapper(documents), length, split=False, max_wait=max_wait, cu_seqlens=True))
    assert all(len(row["input_ids"]) == length for row in rows)
    found = sorted(chain.from_iterable(documents_of(row) for row in rows))
    assert [part for part in found if len(part) < length] == [
        rest for document in documents if (rest := document[len(document) // length * length :])
    ]
    assert list(chain.from_iterable(found)) == list(chain.from_iterable(documents))


def test_best_fit_fills_the_row_with_the_least_room() -> None:
    documents = numbered([6, 7, 3, 4])
    rows = list(Pack(IterableWrapper(documents), 10, split=False))
    assert [documents_of(row) for row in rows] == [[documents[1], documents[2]], [documents[0], documents[3]]]


def test_a_row_is_handed_out_at_the_latest_after_max_wait_documents() -> None:
    documents = numbered([4, 8, 8, 8, 8])
    counted = Counted()
    pipe = Pack(IterableWrapper(documents).map(counted), 10, split=False, max_wait=3)
    assert documents_of(next(iter(pipe))) == [documents[0]]
    assert len(counted.taken) == 3


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any),
    length=st.integers(1, 8),
    options=st.sampled_from(CUTS),
    last=st.sampled_from(["pad", "short"]),
)
def test_resumes_after_each_row(lengths: list[int], length: int, options: Any, last: Any) -> None:
    documents = numbered(lengths)
    assert_resumes_everywhere(
        lambda: IterableWrapper(documents).sharding_filter_rank().pack(length, last=last, **options), same=same_rows
    )


@pytest.mark.parametrize("options", CUTS)
def test_resumes_in_chains(options: Any) -> None:
    def packed(source: Any) -> Any:
        return source.pack(16, member="ids", **options)

    for make in (
        lambda: packed(shards(interleave=2)),
        lambda: packed(shards().shuffle_samples(buffer_size=4, seed=1)),
        lambda: packed(shards().repeat_epochs(2)).take(12),
    ):
        assert_resumes_everywhere(make, num_streams=2, same=same_rows)
    assert_resumes_everywhere(
        lambda: packed(shards()).batch(2),
        num_streams=2,
        same=lambda one, other: all(map(same_rows, one, other)),
    )


@pytest.mark.parametrize("options", CUTS)
@pytest.mark.parametrize("num_slots", [1, 2, 4])
def test_all_ranks_together_have_each_token_once(num_slots: int, options: Any) -> None:
    expected = sorted(chain.from_iterable(sample["ids"] for sample in shards(world=World())))
    got: list[int] = []
    for slot in range(num_slots):
        for row in shards(world=World(slot, num_slots)).pack(
            16, member="ids", last="short", **{**options, "separator": None}
        ):
            got += [token for document in documents_of(row) for token in document]
    assert sorted(got) == expected


@pytest.mark.parametrize(("options", "most"), [({}, 1), ({"split": False, "max_wait": 8}, 8)])
def test_a_resumed_pass_reads_one_document_again_or_those_that_wait(options: Any, most: int) -> None:
    documents = numbered([5] * 40)

    def packed(counted: Counted) -> Resumable:
        return Resumable(IterableWrapper(documents).sharding_filter_rank().map(counted).pack(7, **options))

    before, after = Counted(), Counted()
    first = packed(before)
    rows = iter(first)
    for _ in range(12):
        next(rows)
    again = packed(after)
    again.load_state_dict(first.state_dict())
    next(iter(again))
    assert 0 < len(before.taken) - documents.index(after.taken[0]) <= most


def test_a_shorter_source_is_noticed() -> None:
    packed = Resumable(IterableWrapper(numbered([5] * 9)).sharding_filter_rank().pack(7, split=False, max_wait=4))
    rows = iter(packed)
    next(rows), next(rows)
    state = packed.state_dict()["streams"][0][1]["at"]
    fewer = IterableWrapper(numbered([5] * 3)).sharding_filter_rank().pack(7, split=False, max_wait=4)
    fewer.load_state_dict(state)
    with pytest.raises(StateError, match="items before the state was saved"):
        list(fewer)


@pytest.mark.parametrize("split", [True, False])
def test_the_last_rows(split: bool) -> None:
    documents = numbered([3, 6])
    padded, short = (
        list(Pack(IterableWrapper(documents), 5, split=split, last=last, padding=9)) for last in ("pad", "short")
    )
    assert [len(row["input_ids"]) for row in padded] == [5] * len(padded)
    assert padded[-1]["input_ids"][-1] == 9
    assert padded[-1]["document_ids"][-1] == -1
    assert sum(len(row["input_ids"]) for row in short) == 9
    with pytest.warns(RuntimeWarning, match=r"left out 4 tokens in 1 row"):
        dropped = list(Pack(IterableWrapper(documents), 5, split=split, last="drop"))
    assert [row["input_ids"].tolist() for row in dropped] == [row["input_ids"].tolist() for row in short[:1]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(Pack(IterableWrapper(numbered([5, 5])), 5, split=split, last="drop"))) == 2


@pytest.mark.parametrize("split", [True, False])
def test_nothing_gives_no_row(split: bool) -> None:
    empty: list[list[list[int]]] = [[], [[]], [[], []]]
    for documents in empty:
        assert list(Pack(IterableWrapper(documents), 5, split=split)) == []


def test_a_document_that_is_too_long() -> None:
    samples = IterableWrapper([{"__key__": "a", "ids": [1] * 12}])
    with pytest.raises(SampleError, match=r"sample 'a' .* has 12 tokens, and rows have 5: .*too_long=\"split\""):
        list(samples.pack(5, member="ids", split=False, too_long="error"))
    assert [documents_of(row) for row in samples.pack(5, member="ids", split=False)] == [
        [[1] * 5],
        [[1] * 5],
        [[1] * 2],
    ]


@pytest.mark.parametrize(
    "make",
    [list, tuple, np.array, torch.tensor, lambda ids: np.array(ids, np.uint16), lambda ids: torch.tensor(ids).int()],
)
def test_tokens_of_any_kind(make: Any) -> None:
    (row,) = Pack(IterableWrapper([make([1, 2, 3])], deepcopy=False), 3)
    assert row["input_ids"].tolist() == [1, 2, 3]
    assert row["input_ids"].dtype == torch.int64


@pytest.mark.parametrize(
    "wrong",
    [
        *[b"abc", "abc", 3, None, [1.0], [[1, 2], [3, 4]], [[1], [2, 3]], np.zeros((2, 2), int), [True]],
        np.ma.array([1, 2], mask=[False, True]),
    ],
)
def test_what_is_no_token_ids_is_named(wrong: Any) -> None:
    with pytest.raises(
        SampleError, match=r"pack: expected token ids, .* in sample 'k' of an unknown shard\. Put the tok"
    ):
        list(IterableWrapper([{"__key__": "k", "ids": wrong}]).pack(4, member="ids"))


def test_members_are_named() -> None:
    samples = IterableWrapper([{"__key__": "k", "ids": [1]}])
    with pytest.raises(MissingMemberError, match=r"has no 'idss'. It has \['ids'\]; did you mean 'ids'"):
        list(samples.pack(4, member="idss"))
    with pytest.raises(SampleError, match=r"Name the member: member= one of \['ids'\]"):
        list(samples.pack(4))
    with pytest.raises(SampleError, match=r"pack\(member='ids'\): expected samples"):
        list(IterableWrapper([[1, 2]]).pack(4, member="ids"))


def test_rows_are_batched_by_workers(tmp_path: Path) -> None:
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=5)
    data = Resumable(shards(folder=str(tmp_path)).pack(16, member="ids"), num_streams=2)
    expected = sorted(row["input_ids"].tolist() for row in data)
    data.set_epoch(0)
    loader = DataLoader(data, batch_size=3, num_workers=2, multiprocessing_context="forkserver")
    batches = list(loader)
    assert sorted(row.tolist() for batch in batches for row in batch["input_ids"]) == expected
    assert {name: tuple(tensor.shape) for name, tensor in batches[0].items()} == dict.fromkeys(batches[0], (3, 16))


@pytest.mark.parametrize("make_loader", [stateful_loader, thread_loader])
def test_loaders_continue(make_loader: Any) -> None:
    def loader() -> Any:
        return make_loader(shards().pack(16, member="ids", split=False, max_wait=4), batch_size=2, num_streams=2)

    assert_loader_continues(loader, 4, lambda batch: batch["input_ids"].tolist())


@pytest.mark.parametrize("options", CUTS)
def test_ranks_get_equal_numbers_of_rows_from_an_endless_source(options: Any) -> None:
    for slot in range(3):
        pipe = shards(world=World(slot, 3)).repeat_epochs().pack(16, member="ids", **options).take(30)
        assert len(pipe) == len(list(pipe)) == 10


@pytest.mark.parametrize(
    "tokens",
    [
        np.array([2**63 + 5], np.uint64),
        torch.tensor([1.0], dtype=torch.bfloat16),
        torch.tensor([1, 2]).to_sparse(),
        torch.empty(3, device="meta", dtype=torch.int64),
    ],
)
def test_what_is_no_int64_is_an_error(tokens: Any) -> None:
    with pytest.raises(SampleError, match="pack: expected token ids"):
        list(IterableWrapper([tokens]).pack(2))


@pytest.mark.parametrize("name", ["separator", "padding"])
def test_a_token_that_is_no_int64_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a token, an int64"):
        IterableWrapper([[1]]).pack(2, **{name: 2**63})


@pytest.mark.parametrize("split", [True, False])
def test_empty_documents_take_no_memory(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read, held = Window.read, []

    def counted(window: Window) -> Any:
        held.append(window.num_read - window.oldest)
        return read(window)

    monkeypatch.setattr(Window, "read", counted)
    assert len(list(IterableWrapper([[]] * 500 + [[1]]).pack(2, split=split))) == 1
    assert max(held) <= 1
