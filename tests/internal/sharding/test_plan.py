"""What a job of sharding plans, saves for its next run, and hands to workers."""

from __future__ import annotations

import io
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ShardReadError
from torchdata_remote.fetch.sample_table import SampleTable
from torchdata_remote.sharding.plan import cut_evenly, folders_to_drop, packed_bytes
from torchdata_remote.sharding.planned_samples import Naming
from torchdata_remote.sharding.source_index import dump_index, load_index
from torchdata_remote.sharding.workers.pool import Workers, run_tasks
from torchdata_remote.writing.background_md5 import MAX_BEHIND_BYTES
from torchdata_remote.writing.background_upload import MAX_WAITING_BYTES, BackgroundUpload

ARCHIVES = [RemoteUrl(f"https://host/{number}.tar?signature=secret", 7, f"etag{number}") for number in range(3)]
SCRATCH = "s3://bucket/set/_unfinished-"
Found = list[tuple[RemoteUrl, list[list[tuple[str, int, int]]]]]


def table_of(objects: Found) -> SampleTable:
    table = SampleTable()
    for url, samples in objects:
        table.add_object(url)
        for members in samples:
            table.start_sample()
            for member in members:
                table.add_member(*member)
    return table


def named(*names: str, size: int = 1) -> SampleTable:
    return table_of([(ARCHIVES[0], [[(name, 0, size)] for name in names])])


def test_members_above_8_gib_need_a_larger_header() -> None:
    (below,) = packed_bytes(named("a.bin", size=(8 << 30) - 1), None, Naming()).tolist()
    (above,) = packed_bytes(named("a.bin", size=8 << 30), None, Naming()).tolist()
    assert below == 512 + (8 << 30)
    assert above > below


@given(
    num_samples=st.integers(0, 500),
    mean_bytes=st.floats(0, 1e6),
    max_bytes=st.integers(1, 1 << 30),
    max_samples=st.integers(1, 600),
)
def test_even_cuts_differ_by_one_sample_and_leave_a_tenth_of_room(
    num_samples: int, mean_bytes: float, max_bytes: int, max_samples: int
) -> None:
    cuts = list(cut_evenly(num_samples, mean_bytes, max_bytes, max_samples))
    assert [index for cut in cuts for index in range(num_samples)[cut]] == list(range(num_samples))
    lengths = {cut.stop - cut.start for cut in cuts}
    assert not lengths or max(lengths) - min(lengths) <= 1
    for length in lengths:
        assert 1 <= length <= max_samples
        assert length == 1 or length * mean_bytes * 1.1 <= (max_bytes - 1024) * (1 + 1e-9)


def test_equal_hashes_are_not_equal_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdata_remote.sharding.plan.hash", lambda key: len(key), raising=False)
    assert folders_to_drop(named("a.jpg", "b.jpg", "cc.jpg"), Naming(), 1) == Naming(0)
    with pytest.raises(ShardReadError, match="the key 'b'"):
        folders_to_drop(named("a.jpg", "b.jpg", "b.png"), Naming(), 1)


# The saved index

MEMBER = st.tuples(st.text("ab/é.\udc80", min_size=1, max_size=9), st.integers(0, 1 << 45), st.integers(0, 1 << 40))
OBJECTS = st.sampled_from([*ARCHIVES, RemoteUrl(f"{SCRATCH}unpacked-0"), RemoteUrl(f"{SCRATCH}unpacked-1")])
TABLES = st.lists(st.tuples(OBJECTS, st.lists(st.lists(MEMBER, max_size=3), max_size=4)), max_size=5).map(table_of)
SMALL = table_of([(ARCHIVES[1], [[("a.jpg", 512, 3), ("a.cls", 2048, 1)]]), (ARCHIVES[0], [[("b.jpg", 9, 9)]])])


def contents(table: SampleTable) -> Any:
    columns = {name: column.tolist() for name, column in table.columns().items()}
    return columns, [(str(url), url.size, url.etag) for url in table.urls]


@given(TABLES)
def test_a_saved_index_loads_with_the_archives_of_the_present_listing(table: SampleTable) -> None:
    assert contents(load_index(dump_index(table, ARCHIVES, SCRATCH), ARCHIVES, SCRATCH)) == contents(table)


@given(at=st.integers(0), how=st.sampled_from(["flip", "cut", "longer"]), bit=st.integers(0, 7))
def test_any_damage_of_a_saved_index_is_an_error(at: int, how: str, bit: int) -> None:
    data = bytearray(dump_index(SMALL, ARCHIVES, SCRATCH))
    at %= len(data)
    if how == "flip":
        data[at] ^= 1 << bit
    elif how == "cut":
        del data[at:]
    else:
        data += b"\0"
    with pytest.raises(ValueError, match=r"Error: "):
        load_index(bytes(data), ARCHIVES, SCRATCH)


def test_a_saved_index_is_compact_and_holds_no_url() -> None:
    """At most 16 bytes for a sample of one member; a signature in the URL of an archive is not saved."""
    samples = [[(f"train/n{n % 100:08d}/{n * 7919 % 1_000_003:07d}.JPEG", n * 94_208 + 512, 93_000 + n % 999)]
               for n in range(20_000)]  # fmt: skip
    data = dump_index(table_of([(ARCHIVES[2], samples)]), ARCHIVES, SCRATCH)
    assert len(data) < 16 * len(samples)
    columns = np.load(io.BytesIO(zlib.decompress(data[data.index(b"\n") + 17 :])))
    assert all(b"secret" not in column.tobytes() for column in columns.values())


# Tasks, and memory on the way out


class ByHand(Executor):
    """Ends the task that came last whenever another one would be too many."""

    def __init__(self) -> None:
        self.submitted = 0
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*args, **kwargs)))
        self.submitted += 1
        return future


@given(num_tasks=st.integers(0, 600))
def test_each_task_is_submitted_once_within_the_limit_of_pending_ones(num_tasks: int) -> None:
    executor, done, most = ByHand(), dict[int, int](), 0

    def end_last() -> None:
        while not over.is_set():
            while executor.waiting:
                nonlocal most
                most = max(most, len(executor.waiting))
                future, call = executor.waiting.pop()
                future.set_result(call())

    over = threading.Event()
    ending = threading.Thread(target=end_last)
    ending.start()
    try:
        done.update(run_tasks(iter(range(num_tasks)), lambda task: 2 * task, Workers(executor)))
    finally:
        over.set()
        ending.join()
    assert done == {task: 2 * task for task in range(num_tasks)}
    assert executor.submitted == num_tasks
    assert most <= 256


@pytest.mark.parametrize("chunk_bytes", [100_000, 10 << 20])
def test_an_upload_holds_a_few_chunks_however_slow_the_store_is(chunk_bytes: int) -> None:
    written, behind = 0, [0]

    class Slow:
        stored = 0

        def write(self, data: bytes) -> None:
            behind.append(written - self.stored)
            self.stored += len(data)

        def commit(self) -> None: ...

        def abort(self) -> None: ...

    store = Slow()
    outgoing = BackgroundUpload(store)
    for _ in range((80 << 20) // chunk_bytes):
        outgoing.write([bytes(chunk_bytes)])
        written += chunk_bytes
    outgoing.end()
    outgoing.result()
    assert store.stored == written
    assert max(behind) <= MAX_WAITING_BYTES + MAX_BEHIND_BYTES + 2 * chunk_bytes
