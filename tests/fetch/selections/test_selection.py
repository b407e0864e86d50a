"""The plan of a selection: the bytes of a view are those of the chosen members, in as few ranges as there can be."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shard_places import tar_of
from torchdata_remote.core.shard_view import split_view_url
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.selections.key_set import KeySearch, key_column
from torchdata_remote.fetch.selections.selection import IndexedSample, Selection, planned_views
from torchdata_remote.formats.key_index import key_index
from torchdata_remote.formats.sample import split_key

NAMES = ("jpg", "cls", "txt")
SHARDS = st.lists(
    st.lists(st.tuples(st.sets(st.sampled_from(NAMES), min_size=1), st.booleans()), min_size=1, max_size=8),
    min_size=1,
    max_size=3,
)


@given(shards=SHARDS, size=st.integers(0, 1_500), some=st.booleans())
def test_views_hold_what_is_chosen(shards: list[Any], size: int, some: bool) -> None:
    """Their bytes are a tar of the chosen members; adjacent members of a sample are one range."""
    indexes, tars, expected, keys = [], [], [], []
    for number, samples in enumerate(shards):
        members, offset, rows = [], 0, []
        for at, (names, is_chosen) in enumerate(samples):
            key, row = f"{number}-{at}", []
            for name in sorted(names):
                members.append((f"{key}.{name}", bytes([at]) * size))
                row.append((name, offset + 512, size))
                offset += 512 + size + -size % 512
            rows.append((key, row))
            if is_chosen:
                keys.append(key)
                first = next(name for name in ("txt", "cls", "jpg") if name in names)
                expected += [f"{key}.{name}" for name in sorted(names) if not some or name == first]
        tars.append(tar_of(members, tar_format=tarfile.USTAR_FORMAT))
        indexes.append((RemoteUrl(f"s3://b/{number}.tar", len(tars[-1])), key_index(rows)))
    if not keys:
        return
    views = planned_views(
        indexes, Selection(members=(("txt", "cls", "jpg"),) if some else None), KeySearch(key_column(keys))
    )
    found, counts = [], []
    for url in views:
        name, view = split_view_url(url)
        assert view is not None
        tar = tars[int(name[7])]
        data = b"".join(tar[start:stop] for start, stop in zip(view.starts, view.stops, strict=True))
        assert (len(data), len(view.counts)) == (url.size, url.num_samples)
        with tarfile.open(fileobj=io.BytesIO(data + bytes(1024))) as archive:
            found += archive.getnames()
        counts += view.counts.tolist()
    assert found == expected
    assert len(counts) == len(keys) == len({split_key(name)[0] for name in expected})
    assert set(counts) == {1}  # all members, or one


def test_the_function_sees_only_what_keys_select() -> None:
    """A function is not called for samples that the keys leave out."""
    seen: list[IndexedSample] = []
    index = key_index([("a", [("jpg", 512, 7), ("cls", 1536, 1)]), ("b", [("jpg", 2560, 9)])])

    def is_wanted(sample: IndexedSample) -> Any:
        seen.append(sample)
        return np.bool_(True)

    planned_views([(RemoteUrl("s3://b/0.tar", 9_000), index)], Selection(is_wanted), KeySearch(key_column(["a"])))
    assert seen == [IndexedSample("a", "s3://b/0.tar", {"jpg": 7, "cls": 1})]


def test_an_error_of_the_function_is_raised() -> None:
    """It is not taken for an answer."""
    index = key_index([("a", [("jpg", 512, 7)])])
    with pytest.raises(ZeroDivisionError):
        planned_views([(RemoteUrl("s3://b/0.tar", 9_000), index)], Selection(lambda sample: 1 / 0), None)
