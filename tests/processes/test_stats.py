"""What the stages of a chain did: counters of this process, and lines of JSON of each process of a job."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from tests.support.paths import ROOT
from tests.support.scripted_store import AT_ONCE, numbered, store_of
from tests.support.waiting import wait_for
from torchdata_remote import record_stats

END_S = 60


class Clock:
    """The time of ``time.perf_counter``, which advances when a test says so."""

    def __init__(self) -> None:
        self.now_s, self._lock = time.perf_counter(), threading.Lock()

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        with self._lock:
            self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def test_items_bytes_requests_and_retries_are_those_of_the_chain() -> None:
    with store_of({f"{number}.txt": b"x" * 2_000 for number in range(30)}) as store:
        failures = iter([True] * 3)

        def before_read(name: str, start: int) -> None:
            if next(failures, False):
                raise ConnectionError("try again")

        store.before_read = before_read
        streams = tdr.IterableWrapper([store.url]).list_remote().async_prefetch(retry=AT_ONCE)
        chain = streams.file_reader().decode_sample()
        before = tdr.stats()
        assert len(list(chain)) == 30
        did = chain.stats() - before
    assert (did.list.items, did.fetch.items, did.decode.items, did.samples) == (30, 30, 30, 30)
    assert did.fetch.num_bytes == did.decode.num_bytes == 60_000
    assert (did.fetch.requests, did.fetch.retries) == (33, 3)
    assert did.list.requests >= 1
    assert did.fetch.busy_s > 0
    waited_s = did.list.wait_s + did.fetch.wait_s + did.read.wait_s + did.decode.wait_s
    assert waited_s + did.rest_s == pytest.approx(did.elapsed_s)


def test_samples_count_at_the_reader_one_by_one(memory_folder: str) -> None:
    tdr.testing.write_small_shards(memory_folder, num_shards=2, samples_per_shard=400)
    before, source = tdr.stats(), iter(tdr.stream_shards(memory_folder, shuffle=False))
    for number in range(1, 700):
        next(source)
        assert (tdr.stats() - before).read.items == number
    del source
    assert (tdr.stats() - before).read.items == 699


def test_the_bottleneck_is_the_longest_wait_or_the_training_step(clock: Clock) -> None:
    def decode(data: bytes) -> bytes:
        clock.advance(3)
        return data

    samples = [{"__key__": f"{number}", "txt": b"x"} for number in range(8)]
    for step_s, bottleneck in ((1, "decode"), (5, "rest")):
        before = tdr.stats()
        for _ in tdr.IterableWrapper(samples).decode_sample({"txt": decode}):
            clock.advance(step_s)
        did = tdr.stats() - before
        assert [did.decode.items, did.decode.wait_s, did.decode.busy_s] == pytest.approx([8, 24, 24])
        assert [did.rest_s, did.elapsed_s] == pytest.approx([8 * step_s, 24 + 8 * step_s])
        assert did.bottleneck == bottleneck
        assert did.as_scalars("s/") == pytest.approx(
            {
                **dict.fromkeys(["s/megabytes_per_s", "s/requests_per_s", "s/retries_per_s"], 0),
                **dict.fromkeys(["s/waiting_list", "s/waiting_fetch", "s/waiting_read"], 0),
                "s/samples_per_s": 8 / did.elapsed_s,
                "s/waiting": 24 / did.elapsed_s,
                "s/waiting_decode": 24 / did.elapsed_s,
            }
        )


def test_a_wait_counts_before_it_has_ended(clock: Clock) -> None:
    gate = threading.Event()
    with store_of(numbered(1, 10)) as store:
        store.before_read = lambda name, start: None if gate.wait(END_S) else pytest.fail("waited in vain")
        before = tdr.stats()
        [(_, stream)] = store.open()
        reader = threading.Thread(target=stream.read)
        reader.start()
        wait_for(lambda: store.running == 1)

        def waits() -> bool:
            clock.advance(30)
            return (tdr.stats() - before).fetch.wait_s >= 30

        wait_for(waits)
        gate.set()
        reader.join()


def test_no_count_is_lost_among_threads(memory_folder: str) -> None:
    tdr.testing.write_small_shards(memory_folder, num_shards=2, samples_per_shard=300)
    before = tdr.stats()
    threads = [threading.Thread(target=lambda: list(tdr.stream_shards(memory_folder))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tdr.stats() - before).read.items == 6 * 600


def test_a_forked_process_begins_with_zero() -> None:
    with store_of(numbered(5, 10)) as store:
        store.read_all()
        child = os.fork()
        if child == 0:
            first = tdr.stats().fetch.items
            store.read_all()
            os._exit(first * 100 + tdr.stats().fetch.items)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


def test_the_text_of_stats_has_a_line_for_each_stage(clock: Clock) -> None:
    with store_of({"a": bytes(2_000_000)}) as store:
        store.before_read = lambda name, start: clock.advance(4)
        before = tdr.stats()
        store.read_all(part_bytes=2_000_000)
        clock.advance(4)
        lines = str(tdr.stats() - before).splitlines()
    assert [line.split()[0] for line in lines] == ["stage", "list", "fetch", "read", "decode", "rest"]
    fetch = lines[2].split()
    assert (fetch[1], fetch[2], fetch[5], fetch[6:]) == ("1", "2.0", "4.00", ["1", "0"])
    assert {len(line) for line in lines[:5]} == {len(lines[0])}


# --- lines of JSON


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("loader_of", [tdr.stateful_loader, DataLoader])
def test_with_workers_it_says_where_their_figures_are(memory_folder: str, loader_of: Any) -> None:
    """Instead of a table in which nothing was read and all time is the training step's."""
    with tdr.ShardWriter(f"{memory_folder}/{{shard}}.tar", max_shard_samples=2) as writer:
        for number in range(4):
            writer.write({"__key__": str(number), "cls": number})
    pipe = tdr.stream_shards(f"{memory_folder}/").to_tuple("__key__")
    before = tdr.stats()
    loader = loader_of(pipe, batch_size=1, num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)
    next(batches)
    used = tdr.stats() - before
    assert used.bottleneck == "workers"
    assert re.search(r"of this process, not of its workers \(\d+\)\. With TORCHDATA_REMOTE_STATS=FOLDER", str(used))
    assert len(list(batches)) == 3


def test_recorded_lines_have_the_counters_and_say_who_wrote_them_and_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    path, before_s = tmp_path / "stats.jsonl", time.time()
    with record_stats(path, every_s=0.01):
        wait_for(lambda: path.read_text().count("\n") > 0)
        path.rename(tmp_path / "old")  # as a program that rotates logs does
        wait_for(path.exists)
    [*lines, last] = [*lines_of(tmp_path / "old"), *lines_of(path)]
    assert [line["ended"] for line in (*lines, last)] == [False] * len(lines) + [True]
    assert (last["rank"], last["world_size"], last["worker"], last["num_workers"]) == (3, 4, None, 0)
    assert (last["pid"], last["host"], last["every_s"]) == (os.getpid(), socket.gethostname(), 0.01)
    assert 0 <= last["idle_s"] <= last["elapsed_s"]
    assert before_s - 1 <= last["time"] <= time.time() + 1
    assert set(last["fetch"]) == {"items", "num_bytes", "wait_s", "busy_s", "requests", "retries"}
    assert {"elapsed_s", "list", "fetch", "read", "decode", "rest_s"} < set(last)


def test_an_unknown_rank_is_recorded_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    record_stats(tmp_path / "stats.jsonl", every_s=3600).close()
    assert lines_of(tmp_path / "stats.jsonl")[0]["rank"] is None


def test_a_recording_may_be_closed_twice_and_wrong_arguments_are_refused(tmp_path: Path) -> None:
    writing = record_stats(tmp_path / "stats.jsonl", every_s=3600)
    writing.close()
    writing.close()
    assert (tmp_path / "stats.jsonl").read_text().count("\n") == 1
    with pytest.raises(ValueError, match="every_s must be positive"):
        record_stats(tmp_path / "stats.jsonl", every_s=0)
    with pytest.raises(OSError, match="missing"):
        record_stats(tmp_path / "missing" / "stats.jsonl")
    with pytest.raises(ValueError, match=r"^record_stats: path must be a local path .* got a URL"):
        record_stats("s3://bucket/stats.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_disk_is_said_once_and_ends_no_training(caplog: pytest.LogCaptureFixture) -> None:
    writing = record_stats("/dev/full", every_s=0.001)
    wait_for(lambda: bool(caplog.records))
    writing.close()
    assert [record.getMessage() for record in caplog.records] == [
        "/dev/full: statistics are not recorded: [Errno 28] No space left on device"
    ]


JOB = """
import os, sys
import torchdata_remote as tdr
from torch.utils.data import DataLoader
os.chdir("/")
pipe = tdr.stream_files(sys.argv[1], shuffle=False).map(len)
print(sum(1 for _ in DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")))
print(sum(1 for _ in pipe))
"""


def test_each_process_of_a_job_records_itself_where_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(6):
        (tmp_path / "data" / f"{number}.txt").write_bytes(b"x")
    # A relative folder is that of the start
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHDATA_REMOTE_STATS": "new/stats"}
    command = [sys.executable, "-c", JOB, str(tmp_path / "data")]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["6", "6"]
    files = {path.name: lines_of(path)[-1] for path in (tmp_path / "new" / "stats").iterdir()}
    assert len(files) == 3
    assert set(files) == {f"{socket.gethostname()}-{line['pid']}.jsonl" for line in files.values()}
    workers = sorted((line["worker"], line["num_workers"]) for line in files.values() if line["worker"] is not None)
    assert workers == [(0, 2), (1, 2)]
    assert sum(line["fetch"]["items"] for line in files.values()) == 12
    assert all(line["ended"] for line in files.values() if line["worker"] is None)


@pytest.mark.parametrize("folder", ["{file}/stats", "s3://bucket/stats"])
def test_an_unusable_folder_is_a_warning(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHDATA_REMOTE_STATS", folder.format(file=tmp_path / "file"))
    with store_of(numbered(5, 10)) as store:
        child = os.fork()
        if child == 0:
            said: list[str] = []
            handler = logging.Handler()
            handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
            logging.getLogger("torchdata_remote").addHandler(handler)
            right = store.read_all() == store.objects
            told = [one for one in said if "TORCHDATA_REMOTE_STATS=" in one and "statistics are not recorded" in one]
            os._exit(7 if right and len(told) == 1 else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
