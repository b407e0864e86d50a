"""The table of byte ranges of samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.sample_table import SampleTable

NAMES = st.binary(max_size=12).map(os.fsdecode)  # of files: bytes that are no UTF-8 become surrogates
MEMBER = st.tuples(NAMES, st.integers(0, 1 << 62), st.integers(0, 1 << 62))
SAMPLES = st.lists(st.lists(MEMBER, max_size=3), max_size=6)
OBJECT = st.builds(RemoteUrl, NAMES, st.none() | st.integers(0, 1 << 62), st.none() | st.text("ab\"'", min_size=1))
OBJECTS = st.lists(st.tuples(OBJECT, SAMPLES), max_size=4)
Filled = list[tuple[RemoteUrl, list[list[tuple[str, int, int]]]]]


def filled(objects: Filled) -> SampleTable:
    table = SampleTable()
    for url, samples in objects:
        table.add_object(url)
        for members in samples:
            table.start_sample()
            for member in members:
                table.add_member(*member)
    return table


def told(url: RemoteUrl) -> tuple[str, int | None, str | None]:
    return str(url), url.size, url.etag


def again_of(table: SampleTable) -> SampleTable:
    return SampleTable.from_columns(table.columns(), table.urls)


WAYS: dict[str, Callable[[SampleTable], SampleTable]] = {
    "filled": lambda table: table,
    "columns": again_of,
}


@given(objects=OBJECTS, data=st.data(), way=st.sampled_from(sorted(WAYS)))
def test_samples_are_selected_in_any_order_also_after_a_dump(objects: Filled, data: st.DataObject, way: str) -> None:
    """What was put in is selected, with its object's size and etag, also from columns."""
    table = WAYS[way](filled(objects))
    every = [(url, members) for url, samples in objects for members in samples]
    wanted = data.draw(st.lists(st.integers(0, len(every) - 1), max_size=8) if every else st.just([]))
    found = table.select(np.array(wanted, np.int64))
    assert found.counts.tolist() == [len(every[index][1]) for index in wanted]
    expected = [(told(every[index][0]), *member) for index in wanted for member in every[index][1]]
    urls = [told(found.urls[index]) for index in found.objects.tolist()]
    assert list(zip(urls, found.names, found.starts.tolist(), found.sizes.tolist(), strict=True)) == expected
    assert len(found.urls) == len(set(found.objects.tolist())), "only objects that are used"


@given(OBJECTS)
def test_counts_sizes_and_borders_of_samples(objects: Filled) -> None:
    """Counts, sizes and borders of samples are those of what was put in."""
    table = filled(objects)
    every = [members for _, samples in objects for members in samples]
    assert (len(table), len(table.urls)) == (len(every), len(objects))
    assert table.firsts().tolist() == [0, *accumulate(map(len, every))]
    assert table.sizes().tolist() == [size for members in every for _, _, size in members]
    if all(every):
        assert list(table.first_names()) == [members[0][0] for members in every]
    assert [told(table.urls[index]) for index in range(len(objects))] == [told(url) for url, _ in objects]


def test_a_loaded_table_can_be_extended() -> None:
    """It also returns the name of each sample's first member."""
    table = filled([(RemoteUrl("a"), [[("x.jpg", 0, 1), ("x.txt", 1, 2)], [("y.jpg", 3, 4)]])])
    assert table.sizes().tolist() == [1, 2, 4]
    assert list(table.first_names()) == ["x.jpg", "y.jpg"]
    again = again_of(table)
    again.start_sample()
    again.add_member("z.jpg", 9, 9)
    assert list(again.first_names()) == ["x.jpg", "y.jpg", "z.jpg"]
