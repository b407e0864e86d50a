"""What only many or large files would reach of ``push`` and ``pull``: threads, groups of files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.support.transfers import Tree, counts, pull, push, read_tree, trees, write_tree
from torchdata_remote import RetryPolicy
from torchdata_remote.service.transfer import jobs


@given(num=st.integers(0, 30), max_in_flight=st.integers(1, 6))
def test_all_functions_run_once_within_the_bound_of_their_number(num: int, max_in_flight: int) -> None:
    lock, running, done, reports = threading.RLock(), set[int](), list[int](), list[int]()

    def run(number: int) -> None:
        with lock:
            running.add(number)
            assert len(running) <= max_in_flight
        with lock:
            running.remove(number)
            done.append(number)

    with jobs.Jobs(max_in_flight, RetryPolicy()) as pool:
        pool.run((partial(run, number) for number in range(num)), lambda: reports.append(len(reports)))
    assert (sorted(done), len(reports)) == (list(range(num)), num)


@settings(max_examples=10)
@given(tree=trees, batch=st.integers(1, 200))
def test_a_tree_survives_transfers_in_batches_of_any_size(
    tree: Tree, batch: int, served: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    url = f"datasets://{served}/{folder.name}"
    write_tree(folder / "s", tree)
    copies: list[Callable[[], object]] = [lambda: push(folder / "s", url), lambda: pull(url, folder / "t")]
    with mock.patch.multiple(jobs, _BATCH_BYTES=batch, MAX_BATCH_FILE_BYTES=batch):
        for copy in copies:
            assert counts(copy()) == (len(tree), 0, 0, 0)  # type: ignore[arg-type]
    assert read_tree(folder / "t") == tree
