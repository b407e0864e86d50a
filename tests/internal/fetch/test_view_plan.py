"""Which requests are made for a view: complete, within the bound on unwanted bytes, and as few as that permits."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.shard_view import ShardView
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.views import ViewPlan, sample_starts

BLOCK = 512


def view_of(counts: list[int], objects: object, starts: object, stops: object) -> ShardView:
    columns = [np.asarray(column, np.int64) for column in (counts, objects, starts, stops)]
    num_urls = int(columns[1].max(initial=0)) + 1
    return ShardView(tuple(RemoteUrl(f"s3://b/{at}.tar") for at in range(num_urls)), *columns)


@st.composite
def views(draw: st.DrawFn) -> ShardView:
    """Samples of one to three ranges of up to three objects, in any order; ranges may overlap."""
    ranges = st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 6))
    samples = draw(st.lists(st.lists(ranges, min_size=1, max_size=3), min_size=1, max_size=12))
    rows = np.array([row for sample in samples for row in sample], np.int64)
    return view_of(list(map(len, samples)), rows[:, 0], rows[:, 1] * BLOCK, (rows[:, 1] + rows[:, 2]) * BLOCK)


@given(view=views(), part_blocks=st.integers(1, 20), data=st.data())
def test_the_requests_bring_every_byte_to_its_place(view: ShardView, part_blocks: int, data: st.DataObject) -> None:
    contents = [np.random.default_rng(at).bytes(50 * BLOCK) for at in range(3)]
    whole = b"".join(
        contents[at][start:stop] for at, start, stop in zip(view.objects, view.starts, view.stops, strict=True)
    )
    starts = sample_starts(view)
    first = data.draw(st.integers(0, len(view.counts) - 1))
    start, stop = int(starts[first]), int(starts[data.draw(st.integers(first + 1, len(view.counts)))])
    plan, found = ViewPlan(view), b""
    while start < stop:
        end = min(plan.border(start, part_blocks * BLOCK), stop)
        assert 0 < end - start <= part_blocks * BLOCK
        assert end in starts or end - start == part_blocks * BLOCK or end == stop
        memory = bytearray(end - start)
        for request in plan.requests(start, end):
            for at, until, offset in request.pieces:
                assert request.start <= at < until <= request.stop
                memory[offset : offset + until - at] = contents[request.object][at:until]
        start, found = end, found + memory
    assert found == whole[int(starts[first]) : stop]
