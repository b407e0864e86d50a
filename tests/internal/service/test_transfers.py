"""What large files alone would reach of ``push`` and ``pull``: ranges, groups of files, bounds of jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.support.transfers import QUICK, Tree, counts, read_tree, trees, write_tree
from torchdata_remote import RetryPolicy
from torchdata_remote.service.transfer import pull, push
from torchdata_remote.service.transfer.byte_ranges import missing, parts
from torchdata_remote.service.transfer.job_pool import Job, JobPool

spans = st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda span: (span[0], span[0] + span[1]))


@given(existing=st.lists(spans, max_size=8), num_bytes=st.integers(0, 60), part_bytes=st.integers(1, 20))
def test_gaps_complement_the_ranges(existing: list[tuple[int, int]], num_bytes: int, part_bytes: int) -> None:
    cut = list(parts(missing(existing, num_bytes), part_bytes))
    present = {byte for start, end in existing for byte in range(start, end)}
    wanted = [byte for start, end in cut for byte in range(start, end)]
    assert wanted == [byte for byte in range(num_bytes) if byte not in present]
    assert all(start < end and start // part_bytes == (end - 1) // part_bytes for start, end in cut)


@given(sizes=st.lists(st.integers(0, 30), max_size=30), max_in_flight=st.integers(1, 6), part_bytes=st.integers(1, 10))
def test_all_jobs_run_once_within_the_bounds_of_number_and_memory(
    sizes: list[int], max_in_flight: int, part_bytes: int
) -> None:
    lock, running, done, reports = threading.Lock(), list[int](), list[int](), list[int]()

    def job(size: int, num_following: int) -> Job:
        def run() -> Iterable[Job]:
            with lock:
                running.append(size)
                assert len(running) <= max_in_flight
                assert len(running) == 1 or sum(running) <= max_in_flight * part_bytes
            with lock:
                running.remove(size)
                done.append(size)
            return [job(size // 2, num_following - 1)] * num_following

        return Job(size, run)

    with JobPool(max_in_flight, RetryPolicy(), part_bytes=part_bytes) as pool:
        pool.run((job(size, 2) for size in sizes), lambda: reports.append(len(reports)))
    assert sorted(done) == sorted([*sizes, *[size // 2 for size in sizes] * 2, *[size // 4 for size in sizes] * 2])
    assert len(reports) == len(done)


@settings(max_examples=15)
@given(tree=trees, part_bytes=st.integers(1, 200), other=st.integers(1, 200))
def test_a_tree_survives_transfers_in_parts_of_any_size(
    tree: Tree, part_bytes: int, other: int, served: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    url = f"datasets://{served}/{folder.name}"
    write_tree(folder / "s", tree)
    options: dict[str, Any] = {**QUICK, "_batch_bytes": other}
    assert counts(push(folder / "s", url, _part_bytes=part_bytes, **options)) == (len(tree), 0, 0, 0)
    assert counts(pull(url, folder / "t", _part_bytes=other, **options)) == (len(tree), 0, 0, 0)
    assert read_tree(folder / "t") == tree
