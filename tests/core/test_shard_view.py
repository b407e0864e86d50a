"""Views of shards: their URLs hold them completely, and cannot be changed in silence."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.coded_url import coded_url, decode, encode, split_coded_url
from torchdata_remote.core.shard_view import ShardView, key_sum, named_shard, split_view_url, view_url
from torchdata_remote.core.urls import RemoteUrl, redact, split_sample_range
from torchdata_remote.errors import UrlError

BLOCK = 512


@st.composite
def views(draw: st.DrawFn) -> ShardView:
    num_urls = draw(st.integers(1, 4))
    urls = tuple(
        RemoteUrl(f"s3://b/{at}.tar", draw(st.none() | st.integers(0, 9)), draw(st.none() | st.text()))
        for at in range(num_urls)
    )
    ranges = st.lists(
        st.tuples(st.integers(0, num_urls - 1), st.integers(0, 1 << 31), st.integers(1, 1 << 20)),
        min_size=1,
        max_size=5,
    )
    samples = draw(st.lists(ranges, max_size=8))
    rows = np.array([row for sample in samples for row in sample], np.int64).reshape(-1, 3).T
    counts = np.array(list(map(len, samples)), np.int64)
    some = st.lists(st.integers(0, 0x7FFF), min_size=len(samples), max_size=len(samples))
    key_sums = draw(st.none() | some.map(lambda sums: np.array(sums, np.int64)))
    return ShardView(urls, counts, rows[0], rows[1] * BLOCK, (rows[1] + rows[2]) * BLOCK, key_sums)


def same(one: ShardView, other: ShardView) -> bool:
    known = [[(str(url), url.size, url.etag) for url in view.urls] for view in (one, other)]
    if (one.key_sums is None) != (other.key_sums is None):
        return False
    return known[0] == known[1] and all(map(np.array_equal, columns(one), columns(other)))


def columns(view: ShardView) -> list[Any]:
    return [column for column in view[1:] if column is not None]


@given(view=views())
def test_a_url_holds_the_view(view: ShardView) -> None:
    """The view that comes out is the one that went in, also through pickle."""
    url = pickle.loads(pickle.dumps(view_url(view)))
    whole, found = split_view_url(url)
    assert found is not None
    assert same(found, view)
    assert whole == view.urls[0] == named_shard(url)
    assert (url.size, url.num_samples) == (view.num_bytes, len(view.counts))


def test_a_key_takes_three_characters_of_the_url() -> None:
    """Where keys are not verified by a manifest."""
    column = np.arange(1000)
    view = ShardView((RemoteUrl("s3://b/0.tar"),), column * 0 + 1, column * 0, column * BLOCK, (column + 1) * BLOCK)
    key_sums = np.array([key_sum(f"train/{number:06d}") for number in range(1000)])
    assert len(view_url(view._replace(key_sums=key_sums))) - len(view_url(view)) < 3_000


@given(view=views(), data=st.data())
def test_some_samples_of_a_view(view: ShardView, data: st.DataObject) -> None:
    """The parts of a view are all of it, in its order; a part of its URL names them."""
    cut = data.draw(st.integers(0, len(view.counts)))
    head, tail = view.samples(0, cut), view.samples(cut, len(view.counts))
    both = ShardView(view.urls, *map(np.concatenate, zip(columns(head), columns(tail), strict=True)))
    assert same(both, view)
    part = view_url(view).part(0, len(view.counts) + 1)
    assert split_sample_range(part) == (view_url(view), (0, len(view.counts) + 1))


def test_other_urls_are_no_views() -> None:
    """A URL of a store stays as it is."""
    assert split_view_url("s3://b/view+x+view") == ("s3://b/view+x+view", None)
    assert named_shard("s3://b/view+x+view") == "s3://b/view+x+view"


@pytest.mark.parametrize(
    "change", [lambda url: url[:-1], lambda url: url + "x", lambda url: url.replace("view+", "view+A", 1)]
)
def test_a_changed_view_is_refused(change: object) -> None:
    """The end of the URL and its code cannot be changed without an error."""
    column = np.array([0], np.int64)
    url = str(view_url(ShardView((RemoteUrl("s3://b/0.tar"),), column + 1, column, column, column + BLOCK)))
    with pytest.raises(UrlError, match=r"before select\(\)"):
        split_view_url(change(url))  # type: ignore[operator]


def test_errors_show_no_code() -> None:
    """The code may be long, and hold the signatures of further URLs."""
    column = np.arange(1000)
    view = ShardView((RemoteUrl("s3://b/0.tar"),), column * 0 + 1, column * 0, column * BLOCK, (column + 1) * BLOCK)
    assert redact(view_url(view)) == "view+...+s3://b/0.tar+view"
    assert redact(view_url(view).part(1, 2)) == "samples+1-2+view+...+s3://b/0.tar+view+samples+1-2"


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b"\n\x02\x01", b"\n\x02\x00"),  # a sample without ranges
        (b"\n\x02\x01", b"\n\x02\x03"),  # more ranges than there are
        (b"\x00\x00\x01", b"\x00\x00\x02"),  # an object that is not there
        (b"\x00\x00\x01", b"\xff\x00\x01"),
        (b'["|i1",3]', b'["|i1",2]'),
        (b'["|i1",2]', b'["|01",2]'),
        (b'["|i1",2]', b'["|S1",2]'),
        (b"\x05\x06\x07", b"\x05\x00\x07"),  # a range without bytes
        (b"\x02\x00\x04", b"\x02\xf0\x04"),  # a range before the first byte
        (b'["<i2",2]', b'["<i2",1]'),  # a sample without a checksum of its key
        (b'["<i2",2]', b'["<i2",1],["<i2",1]'),
        (b'["",9,null,null]', b'["","9",null,null]'),
        (b'["",9,null,null]', b'["",9,null,null,0]'),
        (b'{"urls"', b'["urls"'),
        (b'"columns"', b'"colums"'),
    ],
)
def test_a_plan_that_fits_no_shards_is_refused(good: bytes, bad: bytes) -> None:
    """Whatever wrote it, for example a program that edits snapshots: no sample is lost and none is made up."""
    urls = (RemoteUrl("s3://b/0.tar", 9), RemoteUrl("s3://b/1.tar", 8))
    starts = np.array([2, 7, 4]) * BLOCK
    stops = starts + np.array([5, 6, 7]) * BLOCK
    view = ShardView(urls, np.array([2, 1]), np.array([0, 0, 1]), starts, stops, np.array([300, 301]))
    found = split_coded_url("view", view_url(view))
    assert found is not None
    plan = decode(found.code)
    assert good in plan
    with pytest.raises(UrlError, match="was changed"):
        split_view_url(coded_url("view", encode(plan.replace(good, bad, 1)), found.url))
