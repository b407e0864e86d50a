"""Which requests are made for a view: complete, within the bound on unwanted bytes, and as few as that permits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.options import MIB
from torchdata_remote.core.shard_view import ShardView
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.view_plan import MAX_GAP_BYTES, PART_BYTES, ViewWindows, sample_starts

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


@given(view=views(), part_blocks=st.integers(1, 20), data=st.data(), local=st.sets(st.integers(0, 2)))
def test_the_requests_bring_every_byte_to_its_place(
    view: ShardView, part_blocks: int, data: st.DataObject, local: set[int]
) -> None:
    """From any sample to any other, whatever the ranges, their order and the length of the windows."""
    contents = [np.random.default_rng(at).bytes(50 * BLOCK) for at in range(3)]
    whole = b"".join(
        contents[at][start:stop] for at, start, stop in zip(view.objects, view.starts, view.stops, strict=True)
    )
    starts = sample_starts(view)
    first = data.draw(st.integers(0, len(view.counts) - 1))
    start, stop = int(starts[first]), int(starts[data.draw(st.integers(first + 1, len(view.counts)))])
    windows = ViewWindows(view, start, stop, part_blocks * BLOCK, local)
    borders = windows.borders.tolist()
    assert (borders[0], borders[-1]) == (start, stop)
    found, num_requests, num_bytes = b"", 0, 0
    for window, (begin, end) in enumerate(pairwise(borders)):
        assert 0 < end - begin <= part_blocks * BLOCK
        assert end in starts or end - begin == part_blocks * BLOCK or end == stop
        memory = bytearray(end - begin)
        for request in windows.requests(window):
            num_requests += 1
            for at, until, offset in zip(*request.pieces, strict=True):
                assert request.start <= at < until <= request.stop
                memory[offset : offset + until - at] = contents[request.object][at:until]
                num_bytes += until - at if request.object in local else 0
            num_bytes += 0 if request.object in local else request.stop - request.start
        found += memory
    assert found == whole[start:stop]
    assert windows.costs() == (num_requests, num_bytes)


def shard_of(num_samples: int, sample_bytes: int) -> np.ndarray:
    """Offsets of samples of about this size."""
    sizes = np.random.default_rng(0).integers(sample_bytes // 1024, 3 * sample_bytes // 1024, num_samples) * BLOCK
    return np.append(0, np.cumsum(sizes))


def chosen(num_samples: int, fraction: float, *, clustered: bool) -> np.ndarray:
    generator = np.random.default_rng(1)
    if not clustered:
        return np.flatnonzero(generator.random(num_samples) < fraction)
    run = num_samples // 20
    wanted = np.zeros(num_samples, bool)
    while wanted.mean() < fraction:
        start = generator.integers(num_samples)
        wanted[start : start + max(1, int(run * min(1, 2 * fraction)))] = True
    return np.flatnonzero(wanted)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("sample_bytes", [3_000, 94_000])
def test_unwanted_bytes_stay_within_their_bound(fraction: float, clustered: bool, sample_bytes: int) -> None:
    """1.3 times the wanted bytes and 8 MiB, for all parts of a view together."""
    offsets = shard_of(200_000_000 // sample_bytes, sample_bytes)
    at = chosen(len(offsets) - 1, fraction, clustered=clustered)
    view = view_of([1] * len(at), at * 0, offsets[at], offsets[at + 1])
    starts = sample_starts(view)
    for num_parts in (1, 3):
        cuts = starts[np.linspace(0, len(at), num_parts + 1).astype(int)].tolist()
        costs = [ViewWindows(view, start, stop, 8 * MIB).costs() for start, stop in pairwise(cuts)]
        assert view.num_bytes <= sum(num_bytes for _, num_bytes in costs) <= 1.3 * view.num_bytes + 8 * MIB


def test_half_of_the_samples_of_a_shard_are_few_requests() -> None:
    """Of 100 kB each, at random: more than half a mebibyte per request, and fewer bytes than the shard has."""
    offsets = shard_of(2_000, 94_000)
    at = chosen(2_000, 0.5, clustered=False)
    view = view_of([1] * len(at), at * 0, offsets[at], offsets[at + 1])
    num_requests, num_bytes = ViewWindows(view, 0, view.num_bytes, 8 * MIB).costs()
    assert num_bytes / num_requests > MIB / 2
    assert num_bytes < offsets[-1] * 0.75


def test_nearly_all_samples_are_read_by_large_requests() -> None:
    """A request for each window, and one more for each gap that is too long."""
    offsets = shard_of(60_000, 3_000)
    at = np.flatnonzero(np.arange(60_000) % 100)
    view = view_of([1] * len(at), at * 0, offsets[at], offsets[at + 1])
    windows = ViewWindows(view, 0, view.num_bytes, 8 * MIB)
    assert windows.costs()[0] == len(windows.borders) - 1 <= 1 + view.num_bytes // (8 * MIB - 6_000)


def test_the_smallest_gaps_are_read_first() -> None:
    """As many as the bound has room for; none that costs more than a request."""
    sizes = np.full(4, 9 * MIB // BLOCK * BLOCK)
    gaps = np.array([MAX_GAP_BYTES, 3 * BLOCK, MAX_GAP_BYTES + BLOCK])
    starts = np.append(0, np.cumsum(sizes[:-1] + gaps))
    view = view_of([1] * 4, [0] * 4, starts, starts + sizes)
    windows = ViewWindows(view, 0, view.num_bytes, 1 << 40)
    assert [(request.start, request.stop) for request in windows.requests(0)] == [
        (0, starts[2] + sizes[2]),
        (starts[3], starts[3] + sizes[3]),
    ]
    small = view_of([1] * 3, [0] * 3, np.array([0, 5, 7]) * BLOCK, np.array([1, 6, 8]) * BLOCK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdata_remote.fetch.view_plan.PART_BYTES", 0)
        patch.setattr("torchdata_remote.fetch.view_plan.MOST_UNWANTED", 0.4)
        requests = ViewWindows(small, 0, small.num_bytes, PART_BYTES).requests(0)
    assert [(request.start // BLOCK, request.stop // BLOCK) for request in requests] == [(0, 1), (5, 8)]
