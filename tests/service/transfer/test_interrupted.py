"""Transfers that are killed at any moment, and several that share a folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.service.transfer.jobs import Job, Jobs
from tests.service.transfer.proxy import Exchange, Proxy, running_proxy
from tests.service.transfer.trees import Tree, read_tree, small_pull, small_push, write_tree
from torchdata_remote.service.transfer.names import LOCK_NAME, STATE_NAME, is_partial, ranges_name

PART_BYTES = 1000
TREE: Tree = {
    **{f"small/{n}": random.Random(n).randbytes(100 + n) for n in range(12)},
    "large/a": random.Random(100).randbytes(7 * PART_BYTES + 1),
    "large/b": random.Random(101).randbytes(5 * PART_BYTES),
}
TOTAL_BYTES = sum(map(len, TREE.values()))
MOST_REQUESTS = 2 + 6 + 2 * (1 + 1)


def end_at(proxy: Proxy, job: list[Job], number: int, *, midway: bool, how: signal.Signals = signal.SIGKILL) -> None:
    """End a job before a request is forwarded, or when half of a body is."""

    def end(exchange: Exchange) -> None:
        if exchange.number == number:
            os.kill(job[0].pid, how)
            if midway:
                raise ConnectionError

    if midway:
        proxy.midway = end
    else:
        proxy.on_request = end


@settings(max_examples=12)
@given(number=st.integers(1, MOST_REQUESTS), midway=st.booleans())
def test_a_killed_push_is_resumed(
    number: int, midway: bool, service: str, jobs: Jobs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files and parts that the service has are not sent again."""
    folder = tmp_path_factory.mktemp("tree")
    write_tree(folder / "s", TREE)
    with running_proxy(service) as proxy:
        url = f"datasets://{proxy.address}/{folder.name}"
        job: list[Job] = []
        end_at(proxy, job, number, midway=midway)
        job.append(jobs.start("push", str(folder / "s"), url, part_bytes=PART_BYTES, max_in_flight=3, hold=True))
        job[0].let_go()
        job[0].wait()
        proxy.settle()
        before = proxy.sent_bytes()
        proxy.forget()
        done = jobs.run("push", str(folder / "s"), url, part_bytes=PART_BYTES)
        assert done["num_bytes"] == proxy.sent_bytes() <= TOTAL_BYTES - before  # less, if a part of a body is kept
        small_pull(url, folder / "t")
    assert read_tree(folder / "t") == TREE


@settings(max_examples=12)
@given(number=st.integers(1, MOST_REQUESTS), midway=st.booleans())
def test_a_killed_pull_is_resumed(
    number: int, midway: bool, service: str, jobs: Jobs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Complete files and parts are not fetched again; an incomplete file is never visible."""
    folder = tmp_path_factory.mktemp("tree")
    write_tree(folder / "s", TREE)
    small_push(folder / "s", f"datasets://{service}/{folder.name}", part_bytes=1 << 20)
    target = folder / "t"
    with running_proxy(service) as proxy:
        url = f"datasets://{proxy.address}/{folder.name}"
        job: list[Job] = []
        end_at(proxy, job, number, midway=midway)
        job.append(jobs.start("pull", url, str(target), part_bytes=PART_BYTES, max_in_flight=3, hold=True))
        job[0].let_go()
        job[0].wait()
        proxy.settle()
        num_stored = 0
        stored = read_tree(target) if target.exists() else {}
        for path, data in stored.items():
            if not is_partial(path.rpartition("/")[2]):
                assert path == f"{STATE_NAME}.torchdata_remote-partial" or data == TREE[path]
                num_stored += len(data) if path in TREE else 0
        for path in TREE.keys() - stored.keys():  # a list of ranges may outlive the end of its file
            folder_of = path.partition("/")[0]
            ranges = stored.get(f"{folder_of}/{ranges_name(path, hashlib.sha256(TREE[path]).hexdigest())}", b"")
            num_stored += sum(int(end) - int(start) for start, end in map(bytes.split, ranges.splitlines()))
        proxy.forget()
        done = jobs.run("pull", url, str(target), part_bytes=PART_BYTES)
        assert done["num_bytes"] == proxy.fetched_bytes() == TOTAL_BYTES - num_stored
    assert read_tree(target) == TREE


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_an_interrupted_transfer_is_resumed(
    kind: str, url: str, proxy: Proxy, proxy_url: str, jobs: Jobs, tmp_path: Path
) -> None:
    """Ctrl-C ends it at once. Files of the first pull are known to be pulled."""
    write_tree(tmp_path / "s", TREE)
    if kind == "pull":
        small_push(tmp_path / "s", url)
    ends = (str(tmp_path / "s"), proxy_url) if kind == "push" else (proxy_url, str(tmp_path / "t"))
    job: list[Job] = []
    end_at(proxy, job, 6, midway=False, how=signal.SIGINT)
    job.append(jobs.start(kind, *ends, part_bytes=PART_BYTES, max_in_flight=1, hold=True))
    job[0].let_go()
    assert "KeyboardInterrupt" in job[0].wait()["error"]
    proxy.forget()
    if kind == "pull":
        write_tree(tmp_path / "s", {"other": b"1"})
        small_push(tmp_path / "s", url, delete=True)
    done = jobs.run(kind, *ends, part_bytes=PART_BYTES)
    assert 0 < done["num_bytes"] < TOTAL_BYTES
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == (TREE if kind == "push" else {"other": b"1"})


def test_concurrent_pulls_into_one_folder_fetch_once(
    url: str, proxy: Proxy, proxy_url: str, jobs: Jobs, tmp_path: Path
) -> None:
    """The others wait and find a complete folder. Meanwhile files are whole or absent."""
    write_tree(tmp_path / "s", TREE)
    small_push(tmp_path / "s", url)
    target = tmp_path / "t"
    running: list[Job] = []

    def start_others(exchange: Exchange) -> None:
        if exchange.is_of_a_file and len(running) < 4:
            running.extend(jobs.start("pull", proxy_url, str(target), part_bytes=PART_BYTES) for _ in range(3))
        for path in target.rglob("[!.]*"):
            assert path.is_dir() or path.read_bytes() == TREE[str(path.relative_to(target))]

    proxy.on_request = start_others
    running.append(jobs.start("pull", proxy_url, str(target), part_bytes=PART_BYTES, max_in_flight=1))
    first = running[0].wait()
    others = [job.wait() for job in running[1:]]
    assert first["num_files"] == len(TREE)
    assert [(done["num_files"], done["num_unchanged"]) for done in others] == [(0, len(TREE))] * 3
    assert proxy.fetched_bytes() == TOTAL_BYTES
    assert read_tree(target) == TREE


@pytest.mark.parametrize("then", ["let go", "interrupt"])
def test_a_waiting_pull_warns_and_can_be_interrupted(then: str, url: str, jobs: Jobs, tmp_path: Path) -> None:
    """After a second; it continues when the other one ends."""
    write_tree(tmp_path / "s", {"a": b"1"})
    small_push(tmp_path / "s", url)
    (tmp_path / "t").mkdir()
    with open(tmp_path / "t" / LOCK_NAME, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = jobs.start("pull", url, str(tmp_path / "t"))
        assert "another pull is running there" in job.next_warning()
        if then == "interrupt":
            os.kill(job.pid, signal.SIGINT)
            assert "KeyboardInterrupt" in job.wait()["error"]
    if then == "let go":
        assert job.wait()["num_files"] == 1
