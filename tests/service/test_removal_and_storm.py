"""A removed dataset stays removed whatever is written to it, and nothing that was answered with 200 is lost or torn."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.servers.service import Service
from tests.support.ports import free_port
from tests.support.service_clients import JSON, Dataset, ask, begin, below, rest, tar_bytes


def work_of(dataset: Dataset) -> list[str]:
    """Temporary files that belong to a dataset."""
    assert dataset.root is not None
    return [path for path in below(dataset.root / ".torchdata_remote") if f"/{dataset.name}/" in path]


@pytest.mark.parametrize("target", ["?unpack=1", "/files/q/r"])
@pytest.mark.parametrize("is_created_again", [False, True])
def test_an_upload_does_not_bring_a_removed_dataset_back(dataset: Dataset, target: str, is_created_again: bool) -> None:
    body = tar_bytes({"a": b"1"}) + b"\0" * 3_000_000
    lines = ("Expect: 100-continue", f"Content-Length: {len(body)}", "Connection: close")
    with begin(dataset.address, "PUT", f"/datasets/{dataset.name}{target}", *lines) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body[:-1])
        assert dataset.ask("DELETE").status == 204
        if is_created_again:
            assert Dataset(dataset.address, dataset.name)
        connection.sendall(body[-1:])
        answer = rest(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    if is_created_again:
        assert (dataset.paths(), work_of(dataset)) == ([], [])
    else:
        assert dataset.ask("GET").status == 404
        assert (dataset.folder.exists(), work_of(dataset)) == (False, [])


def write_until(removed: threading.Event, dataset: Dataset, seed: int, statuses: set[int]) -> None:
    """Write to a dataset in all ways, until it is removed, and once more."""
    generator = random.Random(seed)
    for count in itertools.count():
        was_removed = removed.is_set()
        path, kind = f"deep/{seed}/{count}", generator.randrange(4)
        if kind == 0:
            status = dataset.unpack(tar_bytes({path: b"1", "x": b""})).status
        elif kind == 1:
            status = dataset.ask("PUT", "", b"1", {"Content-Disposition": f"attachment; filename={count}"}).status
        else:
            status = dataset.put(path, b"1").status
        statuses.add(status)
        if was_removed:
            assert status == 404
            return


def test_after_a_removal_nothing_is_left_of_those_who_write_meanwhile(served: str, served_root: Path) -> None:
    for round_ in range(5):
        dataset = Dataset(served, root=served_root)
        removed, statuses = threading.Event(), set[int]()
        with ThreadPoolExecutor(8) as pool:
            writers = [
                pool.submit(write_until, removed, dataset, 100 * round_ + number, statuses) for number in range(8)
            ]
            while not statuses:
                assert ask(served, "GET", "/healthz").status == 200
            assert dataset.ask("DELETE").status == 204
            removed.set()
            for writer in writers:
                writer.result()
        assert statuses <= {200, 404}
        assert dataset.ask("GET").status == 404
        assert (dataset.folder.exists(), work_of(dataset)) == (False, [])


def test_an_archive_is_unpacked_into_one_life_of_a_dataset_as_a_whole(dataset: Dataset) -> None:
    is_done, statuses = threading.Event(), set[int]()

    def write(number: int) -> None:
        for count in itertools.count():
            files = {f"{number}-{count}/{one}": b"" for one in range(20)}
            statuses.add(dataset.unpack(tar_bytes(files)).status)
            if is_done.is_set():
                return

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, number) for number in range(4)]
        for _ in range(10):
            assert dataset.ask("DELETE").status == 204
            again = json.dumps({"name": dataset.name})
            assert ask(dataset.address, "POST", "/datasets", again, JSON).status == 201
        is_done.set()
        for writer in writers:
            writer.result()
    assert statuses <= {200, 404}
    archives = Counter(path.partition("/")[0] for path in dataset.paths())
    assert set(archives.values()) <= {20}
    assert dataset.ask("DELETE").status == 204
    assert work_of(dataset) == []


# The storm

NUM_CLIENTS = 200
SHARED = [f"shared/{number}" for number in range(20)]  # files that all clients replace


def body_of(writer: int, version: int, num_bytes: int) -> bytes:
    """Make a body that names its writer and version, with a digest."""
    name = f"{writer:04d} {version:06d} {num_bytes:08d} ".encode()
    content = random.Random(name).randbytes(num_bytes)
    return name + hashlib.sha256(content).hexdigest().encode() + content


def read_body(body: bytes) -> tuple[int, int]:
    """Check a body; return writer and version."""
    writer, version, num_bytes = map(int, body[:21].split())
    content = body[21 + 64 :]
    assert len(content) == num_bytes, "torn"
    assert hashlib.sha256(content).hexdigest().encode() == body[21 : 21 + 64], "mixed"
    return writer, version


@dataclass
class Seen:
    """What clients know of one file: the last version of each that was answered with 200, and all that were sent."""

    answered: dict[int, int] = field(default_factory=dict)
    sent: set[tuple[int, int]] = field(default_factory=set)


class Storm:
    """200 clients and a service that is killed.

    Args:
        root: of the service.
        num_answers: after which the storm is over.
        kill_at: numbers of answers at which the service is killed and started again.
        seed: of the clients.
    """

    def __init__(self, root: Path, num_answers: int, kill_at: list[int], seed: int) -> None:
        self._root, self._num_answers, self._kill_at, self._seed = root, num_answers, kill_at, seed
        self._port = free_port()
        self.service = Service(root, port=self._port)
        self.seen: dict[str, Seen] = {}
        self.counts: Counter[str] = Counter()
        self._up = asyncio.Event()
        self._up.set()

    async def run(self) -> None:
        timeout, connector = aiohttp.ClientTimeout(total=300), aiohttp.TCPConnector(limit=NUM_CLIENTS)
        async with aiohttp.ClientSession(self.service.url, timeout=timeout, connector=connector) as session:
            async with session.post("/datasets", json={"name": "storm"}) as answer:
                assert answer.status == 201
            await asyncio.gather(*(self._client(number, session) for number in range(NUM_CLIENTS)))

    async def _client(self, number: int, session: aiohttp.ClientSession) -> None:
        chance = random.Random(self._seed * 1000 + number)
        version = 0
        while self.counts["200"] < self._num_answers:
            await self._up.wait()
            version += 1
            path = chance.choice([f"own/{number}/{chance.randrange(3)}", chance.choice(SHARED)])
            body = body_of(number, version, chance.choice([0, 100, 5_000, 60_000, 300_000]))
            how = chance.choice([self._put, self._put, self._put, self._break_off, self._get])
            with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError):  # by the kill
                await how(session, path, number, version, body, chance)

    def _send(self, path: str, writer: int, version: int) -> Seen:
        seen = self.seen.setdefault(path, Seen())
        seen.sent.add((writer, version))
        return seen

    async def _answered(self, seen: Seen, writer: int, version: int) -> None:
        seen.answered[writer] = version
        self.counts["200"] += 1
        if self._kill_at and self.counts["200"] >= self._kill_at[0]:
            del self._kill_at[0]
            self._up.clear()
            self.service.kill()
            self.counts["kills"] += 1
            self.service = await asyncio.to_thread(Service, self._root, port=self._port)
            self._up.set()

    async def _put(
        self, session: aiohttp.ClientSession, path: str, writer: int, version: int, body: bytes, chance: random.Random
    ) -> None:
        seen = self._send(path, writer, version)
        async with session.put(f"/datasets/storm/files/{path}", data=body) as answer:
            assert answer.status == 200, await answer.text()
            metadata = await answer.json()
        assert metadata["sha256"] == hashlib.sha256(body).hexdigest()
        await self._answered(seen, writer, version)

    async def _break_off(
        self, session: aiohttp.ClientSession, path: str, writer: int, version: int, body: bytes, chance: random.Random
    ) -> None:
        """A body that ends in the middle of it, as when a pod is evicted; nothing of it may appear."""
        _, connection = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            f"PUT /datasets/storm/files/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) + 1}\r\n\r\n"
        )
        connection.write(head.encode() + body[: chance.randrange(len(body) + 1)])
        await connection.drain()
        if chance.random() < 0.5:
            connection.transport.abort()  # a reset
        else:
            connection.close()
        self.counts["broken off"] += 1

    async def _get(
        self, session: aiohttp.ClientSession, path: str, writer: int, version: int, body: bytes, chance: random.Random
    ) -> None:
        before = dict(self.seen[path].answered) if path in self.seen else {}
        async with session.get(f"/datasets/storm/files/{path}") as answer:
            found = await answer.read()
        if answer.status == 404:
            assert not before, "lost"
            return
        assert answer.status in (200, 503), answer.status  # 503: replaced between two reads
        if answer.status == 200:
            by, that = read_body(found)
            assert (by, that) in self.seen[path].sent
            assert that >= before.get(by, 0), "an older version than the one that was answered before"
            self.counts["read"] += 1


def check_files(root: Path, seen: dict[str, Seen]) -> None:
    """Each file is one that was sent, whole; those that were answered are there, or a later one."""
    found = {path: read_body((root / "storm" / path).read_bytes()) for path in below(root / "storm")}
    for path, of_path in seen.items():
        assert path in found or not of_path.answered, "lost"
        if path in found:
            writer, version = found[path]
            assert (writer, version) in of_path.sent
            assert version >= of_path.answered.get(writer, 0), "lost: an older version is back"
    assert set(found) <= set(seen)


def weather(root: Path, num_answers: int, num_kills: int, seed: int) -> None:
    kill_at = [num_answers * (number + 1) // (num_kills + 1) for number in range(num_kills)]

    async def main() -> Storm:
        storm = Storm(root, num_answers, kill_at, seed)
        try:
            await storm.run()
        finally:
            storm.service.kill()
        return storm

    storm = asyncio.run(main())
    again = Service(root)  # removes incomplete files
    try:
        while any("partial" in os.path.basename(path) for path in below(root / "storm")):
            assert ask(again.address, "GET", "/healthz").status == 200
        check_files(root, storm.seen)
    finally:
        assert again.stop() == 0
    assert storm.counts["kills"] == num_kills
    assert min(storm.counts["broken off"], storm.counts["read"]) > num_answers / 10


def test_no_upload_of_200_clients_is_torn_or_lost_when_the_service_is_killed(tmp_path: Path) -> None:
    weather(tmp_path, 400, num_kills=2, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 4))
def test_no_upload_is_torn_or_lost_in_a_long_storm(tmp_path: Path, seed: int) -> None:
    weather(tmp_path, 20_000, num_kills=12, seed=seed)
