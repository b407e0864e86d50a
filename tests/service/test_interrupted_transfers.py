"""Pushes and pulls that are killed, interrupted or cut off at any moment continue; several share a folder."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

import torchdata_remote as tdr
from tests.servers.watched import Exchange, Proxy, running_proxy
from tests.support.service_clients import Dataset, in_tar
from tests.support.transfers import Job, Tree, pull, push, read_tree, write_tree
from tests.support.waiting import wait_for
from torchdata_remote.errors import StorageError

SMALL: Tree = {f"small/{number}": random.Random(number).randbytes(100 + number) for number in range(12)}
PART_BYTES = 16 << 20
LARGE_BYTES = 2 * PART_BYTES + (4 << 20)  # half of it is more than a part
MOST_REQUESTS = 9


@cache
def large() -> bytes:
    """Of more bytes than arrive at once."""
    return random.Random(100).randbytes(LARGE_BYTES)


@cache
def source_of(folder: Path) -> Path:
    write_tree(folder, {**SMALL, "large/a": large()})
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source_of(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def stored(served: str, served_root: Path, source: Path) -> Dataset:
    """A dataset that holds all of the source."""
    made = Dataset(served, "interrupted", served_root)
    push(source, made.url)
    return made


def of_files(exchange: Exchange) -> int:
    """Bytes of files that a request stored or fetched."""
    if exchange.status not in (200, 206):
        return 0
    if exchange.target.endswith(("/files", "?unpack=1")) and exchange.method != "GET":
        return sum(map(len, in_tar(exchange.sent if exchange.method == "PUT" else exchange.received).values()))
    if "/files/" not in exchange.target:
        return 0
    return len(exchange.sent) if exchange.method == "PUT" else len(exchange.received)


def moved(proxy: Proxy) -> int:
    return sum(map(of_files, proxy.exchanges))


def end_at(proxy: Proxy, job: Job, number: int, *, midway: bool, how: signal.Signals) -> None:
    """End a job before a request is forwarded, or when half of a body is."""

    def end(exchange: Exchange) -> None:
        if exchange.number == number:
            with contextlib.suppress(ProcessLookupError):
                job.end(how)
            if midway:
                raise ConnectionError

    setattr(proxy, "midway" if midway else "on_request", end)


TOTAL = sum(map(len, SMALL.values())) + LARGE_BYTES
STOPS = given(
    number=st.integers(1, MOST_REQUESTS), midway=st.booleans(), how=st.sampled_from([signal.SIGKILL, signal.SIGINT])
)


@settings(max_examples=5)
@STOPS
def test_a_killed_or_interrupted_push_is_continued_and_what_was_stored_is_not_sent_again(
    number: int, midway: bool, how: signal.Signals, served: str, served_root: Path, source: Path
) -> None:
    with running_proxy(served) as proxy:
        dataset = Dataset(served, root=served_root)
        url = f"datasets://{proxy.address}/{dataset.name}"
        job = Job("push", source, url)
        end_at(proxy, job, number, midway=midway, how=how)
        job.run()
        proxy.settle()
        assert {**SMALL, "large/a": large()}.items() >= dataset.contents().items(), "what is visible is whole"
        before = moved(proxy)
        proxy.forget()
        done = push(source, url)
        assert done.num_bytes == moved(proxy) <= TOTAL - before
        assert dataset.contents() == {**SMALL, "large/a": large()}
        assert dataset.ask("DELETE").status == 204


@settings(max_examples=5)
@STOPS
def test_a_killed_or_interrupted_pull_is_continued_and_what_was_written_is_not_fetched_again(
    number: int, midway: bool, how: signal.Signals, stored: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("target")
    with running_proxy(stored.address) as proxy:
        url = f"datasets://{proxy.address}/{stored.name}"
        job = Job("pull", url, target)
        end_at(proxy, job, number, midway=midway, how=how)
        job.run()
        proxy.settle()
        visible = {path: data for path, data in read_tree(target).items() if "/." not in f"/{path}"}
        assert {**SMALL, "large/a": large()}.items() >= visible.items(), "what is visible is whole"
        proxy.forget()
        done = pull(url, target)
        assert done.num_bytes == moved(proxy) <= TOTAL - sum(map(len, visible.values()))
    assert read_tree(target) == {**SMALL, "large/a": large()}


def cut_after(proxy: Proxy, num_bytes: int) -> None:
    """Send so many bytes of each file's response, whose head announces all of them, and break the connection."""

    def shorten(exchange: Exchange, body: bytes) -> bytes:
        is_of_file = exchange.method == "GET" and "/files/" in exchange.target
        return (body + bytes(len(body)))[: 2 * num_bytes] if is_of_file and len(body) > num_bytes else body

    def end(exchange: Exchange) -> None:
        if exchange.method == "GET" and "/files/" in exchange.target and len(exchange.received) > num_bytes:
            raise ConnectionError

    proxy.change_response, proxy.midway = shorten, end


CUTS = [1, PART_BYTES, LARGE_BYTES - 1]


@pytest.mark.parametrize("num_bytes", CUTS)
def test_of_a_pull_whose_connection_broke_nothing_incomplete_is_left(
    num_bytes: int, stored: Dataset, proxy: Proxy, tmp_path: Path
) -> None:
    url, target = f"datasets://{proxy.address}/{stored.name}/large", tmp_path / "t"
    cut_after(proxy, num_bytes)
    with pytest.raises(StorageError):
        pull(url, target, retry=tdr.RetryPolicy(max_attempts=1))
    assert read_tree(target) == {}
    proxy.forget()
    assert pull(url, target).num_bytes == moved(proxy) == LARGE_BYTES
    assert read_tree(target) == {"a": large()}


def test_a_pull_goes_on_by_itself_where_each_response_breaks(stored: Dataset, proxy: Proxy, tmp_path: Path) -> None:
    cut_after(proxy, (10 << 20) + 1)
    done = pull(f"datasets://{proxy.address}/{stored.name}", tmp_path / "t")
    assert read_tree(tmp_path / "t") == {**SMALL, "large/a": large()}
    assert (done.num_files, done.num_bytes) == (len(SMALL) + 1, TOTAL)
    assert sum(one.method == "GET" and "/files/" in one.target for one in proxy.exchanges) >= 4


def test_of_pulls_into_one_folder_one_fetches_and_the_others_wait(
    stored: Dataset, proxy: Proxy, tmp_path: Path
) -> None:
    url, target = f"datasets://{proxy.address}/{stored.name}", tmp_path / "t"
    may_go_on = threading.Event()

    def hold(exchange: Exchange) -> None:
        if exchange.method == "POST":
            assert may_go_on.wait(120)
        for path in target.rglob("[!.]*"):
            assert path.is_dir() or path.read_bytes() == {**SMALL, "large/a": large()}[str(path.relative_to(target))]

    proxy.on_request = hold
    first = Job("pull", url, target).start()
    wait_for(lambda: any(one.method == "POST" for one in proxy.exchanges))
    others = [Job("pull", url, target).start() for _ in range(3)]
    for job in others:
        assert "another pull is running there" in job.next_warning()
    others[0].end(signal.SIGINT)
    assert others[0].wait()["error"] == "KeyboardInterrupt: "
    may_go_on.set()
    assert first.wait()["num_files"] == len(SMALL) + 1
    for job in others[1:]:
        done = job.wait()
        assert (done["num_files"], done["num_unchanged"], done["num_bytes"]) == (0, len(SMALL) + 1, 0)
    assert moved(proxy) == TOTAL
    assert read_tree(target) == {**SMALL, "large/a": large()}
