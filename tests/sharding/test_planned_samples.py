"""The samples of one planned shard."""

from __future__ import annotations

import pickle
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.shard_places import memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ShardWriteError
from torchdata_remote.fetch.sample_table import SampleTable
from torchdata_remote.sharding.planned_samples import DatasetSamples, FileSamples, Naming, keep_dataset, sample_of


@given(
    sizes=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=8),
    window_bytes=st.integers(1, 100),
    data=st.data(),
)
def test_samples_are_the_same_for_any_window(sizes: list[list[int]], window_bytes: int, data: st.DataObject) -> None:
    """Samples in their order, with key, members, label and source, through pickle as well."""
    place, table = memory_place(), SampleTable()
    flat = [size for sample in sizes for size in sample]
    content = np.random.default_rng(0).bytes(sum(flat))
    starts = iter([0, *accumulate(flat)])
    place.put({"a.bin": content})
    table.add_object(RemoteUrl(f"{place.url}a.bin", len(content)))
    expected = []
    for number, sample in enumerate(sizes):
        table.start_sample()
        members = {}
        for at, size in enumerate(sample):
            start = next(starts)
            table.add_member(f"part/{number}.X{at}", start, size)
            members[f"x{at}"] = content[start : start + size]
        expected.append((f"part/{number}.X0", {"__key__": str(number), **members, "cls": number * 3}))
    order = np.array(data.draw(st.permutations(range(len(sizes)))))
    options = StorageOptions()
    labels = (order * 3).astype(np.int32)
    samples = FileSamples(table.select(order), labels, Naming(1), options, ("memory://none", options))
    found = list(pickle.loads(pickle.dumps(samples)).draw(window_bytes))
    assert [(source, {name: plain(value) for name, value in made.items()}) for source, made in found] == [
        expected[number] for number in order
    ]


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def test_labels_of_the_source_stay() -> None:
    """Without labels ``cls`` is what the source has, and no sample gets one."""
    place, table, options = memory_place(), SampleTable(), StorageOptions()
    place.put({"a.cls": b"7", "b.jpg": b"8"})
    for name in ("a.cls", "b.jpg"):
        table.start_sample()
        table.add_object(RemoteUrl(f"{place.url}{name}", 1))
        table.add_member(name, 0, 1)
    made = FileSamples(table.select(np.arange(2)), None, Naming(), options, ("memory://none", options)).draw(100)
    assert [sample for _, sample in made] == [{"__key__": "a", "cls": b"7"}, {"__key__": "b", "jpg": b"8"}]


@pytest.mark.parametrize(
    ("name", "num_folders", "expected"),
    [
        ("a/b.c.D", 0, ("a/b", "c.d")),
        ("a/b.c", 1, ("b", "c")),
        ("t/a.d/b.c", 1, ("a.d/b", "c")),
        ("b.c", 0, ("b", "c")),
    ],
)
def test_folders_are_dropped_from_keys(name: str, num_folders: int, expected: tuple[str, str]) -> None:
    """Key and extension, without folders from the front."""
    assert Naming(num_folders)(name) == expected


IMAGE = Image.new("RGB", (2, 2))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ((b"1", 3), {"bin": b"1", "cls": 3}),
        ([bytearray(b"1"), torch.tensor(3)], {"bin": b"1", "cls": 3}),
        (("text", np.int64(3)), {"txt": "text", "cls": 3}),
        ((IMAGE, np.array(3)), {"png": IMAGE, "cls": 3}),
        ((IMAGE, "cat"), {"png": IMAGE, "cls": "cat"}),
        ({"jpg": b"1", "cls": torch.tensor(4)}, {"jpg": b"1", "cls": 4}),
        ({"__key__": "own", "jpg": b"1"}, {"__key__": "own", "jpg": b"1"}),
    ],
)
def test_pairs_and_dicts_become_samples(item: Any, expected: dict[str, Any]) -> None:
    """Pairs and dicts; the key is the number, unless the item has one; numbers of any library are numbers."""
    made = sample_of(item, 12)
    assert made == {"__key__": "000000012", **expected}
    assert "cls" not in made or type(made["cls"]) in (int, str)


@pytest.mark.parametrize("image", [np.arange(6).reshape(2, 3), torch.arange(6).reshape(2, 3)])
def test_arrays_become_npy_members(image: Any) -> None:
    """They become ``npy``, with shape and type."""
    made = sample_of((image, 1), 0)
    assert made.keys() == {"__key__", "npy", "cls"}
    assert made["npy"].dtype == np.int64
    assert made["npy"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("item", [1, None, "ab", b"ab", (b"1",), (b"1", 2, 3), (object(), 1), {1, 2}])
def test_an_item_that_is_not_a_sample_is_an_error(item: Any) -> None:
    """The error names the item's number and type, and what was expected."""
    with pytest.raises(ShardWriteError, match=r"Item 12 of the dataset .*expected"):
        sample_of(item, 12)


def test_items_of_a_dataset_follow_the_indices() -> None:
    """Their source is their number. The dataset may already be in this process."""
    dataset = [(str(number), number) for number in range(5)]
    indices = np.array([4, 0, 2])
    expected = [(str(number), {"__key__": f"{number:09d}", "txt": str(number), "cls": number}) for number in (4, 0, 2)]
    assert list(DatasetSamples(dataset, indices).draw(1)) == expected
    keep_dataset(dataset)
    try:
        assert list(DatasetSamples(None, indices).draw(1)) == expected
    finally:
        keep_dataset(None)
