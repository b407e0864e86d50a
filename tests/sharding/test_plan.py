"""Assign samples to shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ShardReadError, ShardWriteError
from torchdata_remote.fetch.sample_table import SampleTable
from torchdata_remote.sharding.plan import (
    cut_by_bytes,
    cut_evenly,
    folders_to_drop,
    packed_bytes,
    require_writable,
    sample_order,
)
from torchdata_remote.sharding.planned_samples import Naming
from torchdata_remote.writing.packed_sample import pack_sample

END_BYTES = 1024  # of an archive: two empty blocks
STEMS = st.text("ab/é", max_size=8).map(lambda text: f"s{text}x") | st.integers(80, 300).map(
    lambda length: "n" * length
)
EXTENSIONS = st.lists(st.sampled_from(["jpg", "CLS", "cls", "seg.png", "é"]), min_size=1, max_size=3)
SIZES = st.sampled_from([0, 1, 511, 512, 513, 1024, 5000])


def table_of(samples: list[list[tuple[str, int]]]) -> SampleTable:
    table = SampleTable()
    table.add_object(RemoteUrl("memory://a"))
    for members in samples:
        table.start_sample()
        for name, size in members:
            table.add_member(name, 0, size)
    return table


@st.composite
def _samples(draw: st.DrawFn) -> list[list[tuple[str, int]]]:
    made = []
    for stem in draw(st.lists(STEMS, max_size=5)):
        extensions = draw(EXTENSIONS)
        last = {extension.lower(): extension for extension in extensions}  # a sample has an extension once
        made.append([(f"archive/{stem}.{extension}", draw(SIZES)) for extension in last.values()])
    return made


@given(samples=_samples(), num_folders=st.integers(0, 1), data=st.data())
def test_packed_bytes_are_those_of_the_writer(
    samples: list[list[tuple[str, int]]], num_folders: int, data: st.DataObject
) -> None:
    """Long and foreign names, labels of any length that replace others, padding: to the byte."""
    labels = None
    if data.draw(st.booleans()):
        numbers = st.integers(0, 9) | st.integers(0, (1 << 31) - 1)
        labels = np.array(data.draw(st.lists(numbers, min_size=len(samples), max_size=len(samples))), np.int32)
    found = packed_bytes(table_of(samples), labels, Naming(num_folders)).tolist()
    expected = []
    for index, members in enumerate(samples):
        sample: dict[str, Any] = {}
        for name, size in members:
            key, extension = Naming(num_folders)(name)
            sample[extension] = bytes(size)
        if labels is not None:
            sample["cls"] = int(labels[index])
        expected.append(pack_sample({"__key__": key, **sample}).num_bytes)
    assert found == expected


def test_members_above_8_gib_need_a_larger_header() -> None:
    """From 8 GiB on the header's size field does not hold it."""
    (below,) = packed_bytes(table_of([[("a.bin", (8 << 30) - 1)]]), None, Naming()).tolist()
    (above,) = packed_bytes(table_of([[("a.bin", 8 << 30)]]), None, Naming()).tolist()
    assert below == 512 + (8 << 30)
    assert above > below


@given(
    sizes=st.lists(st.integers(0, 50).map(lambda blocks: 512 * blocks), max_size=20),
    max_bytes=st.integers(1, 30_000),
    max_samples=st.integers(1, 6),
)
def test_cuts_are_greedy(sizes: list[int], max_bytes: int, max_samples: int) -> None:
    """All samples once; none above a limit unless it is one sample; none ends before the next does not fit."""
    cuts = list(cut_by_bytes(np.array(sizes, np.int64), max_bytes, max_samples))
    assert [index for cut in cuts for index in range(len(sizes))[cut]] == list(range(len(sizes)))
    for cut in cuts:
        total, count = sum(sizes[cut]) + END_BYTES, cut.stop - cut.start
        assert count == 1 or (total <= max_bytes and 1 < count <= max_samples)
        if cut.stop < len(sizes):
            assert count == max_samples or total + sizes[cut.stop] > max_bytes


@given(
    num_samples=st.integers(0, 500),
    mean_bytes=st.floats(0, 1e6),
    max_bytes=st.integers(1, 1 << 30),
    max_samples=st.integers(1, 600),
)
def test_even_cuts_differ_by_one_sample_at_most(
    num_samples: int, mean_bytes: float, max_bytes: int, max_samples: int
) -> None:
    """All samples once, in runs whose lengths differ by one at most, with a tenth of room for larger ones."""
    cuts = list(cut_evenly(num_samples, mean_bytes, max_bytes, max_samples))
    assert [index for cut in cuts for index in range(num_samples)[cut]] == list(range(num_samples))
    lengths = {cut.stop - cut.start for cut in cuts}
    assert not lengths or max(lengths) - min(lengths) <= 1
    for length in lengths:
        assert 1 <= length <= max_samples
        assert length == 1 or length * mean_bytes * 1.1 <= (max_bytes - END_BYTES) * (1 + 1e-9)


def test_even_cuts_are_no_more_than_needed() -> None:
    """Few large shards: 100 samples of 1,000 bytes are two shards of 60 at the most."""
    cuts = list(cut_evenly(100, 1000, 66_000 + END_BYTES, 1000))
    assert cuts == [slice(0, 50), slice(50, 100)]


def test_the_order_is_a_permutation_that_depends_on_the_seed() -> None:
    """Its own without a seed; with one, each sample once, another order for another seed."""
    assert sample_order(5, None).tolist() == [0, 1, 2, 3, 4]
    orders = {tuple(sample_order(30, seed).tolist()) for seed in range(4)}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(30)) for order in orders)


@pytest.mark.parametrize(
    ("names", "num_archives", "expected"),
    [
        (["a/1.jpg", "a/2.jpg"], 1, 0),
        (["t0/1.jpg", "t0/2.jpg", "t1/3.jpg"], 2, 1),
        (["t0/1.jpg", "t1/1.jpg"], 2, 0),
        (["t0/d/1.jpg", "t1/e/1.jpg"], 2, 1),
        ([], 3, 1),
        ([], 0, 0),
    ],
)
def test_folders_are_dropped_where_keys_stay_apart(names: list[str], num_archives: int, expected: int) -> None:
    """Names of archives are no part of keys, unless the archives use keys again."""
    assert folders_to_drop(table_of([[(name, 1)] for name in names]), Naming(), num_archives) == Naming(expected)


@pytest.mark.parametrize("num_archives", [0, 1, 2])
def test_a_duplicate_key_is_named(num_archives: int) -> None:
    """It is named."""
    table = table_of([[("t/a.jpg", 1)], [("t/b.jpg", 1)], [("t/a.png", 1)]])
    with pytest.raises(ShardReadError, match="the key 't/a'"):
        folders_to_drop(table, Naming(), num_archives)


def test_equal_hashes_are_not_equal_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes only find suspects."""
    monkeypatch.setattr("torchdata_remote.sharding.plan.hash", lambda key: len(key), raising=False)
    assert folders_to_drop(table_of([[("a.jpg", 1)], [("b.jpg", 1)], [("cc.jpg", 1)]]), Naming(), 1) == Naming(0)
    with pytest.raises(ShardReadError, match="the key 'b'"):
        folders_to_drop(table_of([[("a.jpg", 1)], [("b.jpg", 1)], [("b.png", 1)]]), Naming(), 1)


@pytest.mark.parametrize(
    ("name", "size", "labelled", "says"),
    [
        ("x" * 4_093 + ".cl", 5, False, None),
        ("x" * 4_093 + ".cl", 5, True, "4,097 characters"),
        ("x" * 4_094 + ".cl", 5, False, "4,097 characters"),
        ("caf\udce9.jpg", 5, False, "surrogate"),
        ("a//b.jpg", 5, False, "absolute"),
        ("a/b.jpg", 1_000, False, None),
        ("a/b.jpg", 1_001, False, "max_member_bytes=1,000"),
    ],
)
def test_members_that_cannot_be_written_are_found_first(name: str, size: int, labelled: bool, says: str | None) -> None:
    """By the names that they will have, labels included, and by their sizes."""
    table = table_of([[("a/good.jpg", 5)], [(name, size)]])
    num_folders = name.startswith("a/")
    if says is None:
        require_writable(table, Naming(num_folders), labelled, 1_000)
        return
    with pytest.raises(ShardWriteError, match=says):
        require_writable(table, Naming(num_folders), labelled, 1_000)
