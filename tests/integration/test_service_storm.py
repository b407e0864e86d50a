"""The dataset service among 200 clients that break off, killed in the middle: nothing torn, nothing lost."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.servers.service import Service
from torchdata_remote.storage import PARTIAL_SUFFIX

NUM_CLIENTS = 200
NUM_SHARED = 20  # files that all clients replace
SHARED = [f"shared/{number}" for number in range(NUM_SHARED)]


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
        self.service = Service(root)
        self._port = int(self.service.address.rpartition(":")[2])
        self.seen: dict[str, Seen] = {}
        self.counts: Counter[str] = Counter()
        self._up = asyncio.Event()
        self._up.set()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=120)
        connector = aiohttp.TCPConnector(limit=NUM_CLIENTS)
        async with aiohttp.ClientSession(self.service.url, timeout=timeout, connector=connector) as session:
            async with session.post("/datasets", json={"name": "storm"}) as answer:
                assert answer.status == 201
            async with asyncio.TaskGroup() if hasattr(asyncio, "TaskGroup") else _Group() as group:
                for number in range(NUM_CLIENTS):
                    group.create_task(self._client(number, session))

    def _over(self) -> bool:
        return self.counts["200"] >= self._num_answers

    async def _client(self, number: int, session: aiohttp.ClientSession) -> None:
        chance = random.Random(self._seed * 1000 + number)
        version = 0
        while not self._over():
            await self._up.wait()
            version += 1
            path = chance.choice([f"own/{number}/{chance.randrange(3)}", chance.choice(SHARED)])
            body = body_of(number, version, chance.choice([0, 100, 5_000, 60_000, 300_000]))
            how = chance.choice([self._put, self._put, self._put_parts, self._break_off, self._get])
            try:
                await how(session, path, number, version, body, chance)
            except (aiohttp.ClientError, ConnectionError, asyncio.TimeoutError, OSError):
                self.counts["broken"] += 1  # by the kill

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

    async def _put_parts(
        self, session: aiohttp.ClientSession, path: str, writer: int, version: int, body: bytes, chance: random.Random
    ) -> None:
        seen = self._send(path, writer, version)
        third = -(-len(body) // 3)
        statuses: list[int] = []

        async def part(start: int) -> None:
            piece = body[start : start + third]
            headers = {"Content-Range": f"bytes {start}-{start + len(piece) - 1}/{len(body)}"}
            url = f"/datasets/storm/files/{path}?upload=upload-{writer}-{version}"
            async with session.put(url, data=piece, headers=headers) as answer:
                assert answer.status in (200, 202), await answer.text()
                statuses.append(answer.status)

        await asyncio.gather(*map(part, range(0, len(body), third)))
        assert 200 in statuses
        await self._answered(seen, writer, version)

    async def _break_off(
        self, session: aiohttp.ClientSession, path: str, writer: int, version: int, body: bytes, chance: random.Random
    ) -> None:
        """A body that ends in the middle of it, as when a pod is evicted; nothing of it may appear."""
        reader, connection = await asyncio.open_connection("127.0.0.1", self._port)
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
        del reader

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


class _Group:
    """``asyncio.TaskGroup`` for Python 3.10."""

    async def __aenter__(self) -> _Group:
        self._tasks: list[asyncio.Task[Any]] = []
        return self

    def create_task(self, work: Any) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._tasks)


def check_files(root: Path, seen: dict[str, Seen]) -> int:
    """Each file is one that was sent, whole; those that were answered are there, or a later one."""
    found = {}
    for above, _, names in os.walk(root / "storm"):
        for name in names:
            assert not name.endswith(PARTIAL_SUFFIX), "a temporary file stayed"
            file = Path(above) / name
            found[str(file.relative_to(root / "storm"))] = read_body(file.read_bytes())
    for path, of_path in seen.items():
        if of_path.answered:
            assert path in found, "lost"
        if path in found:
            writer, version = found[path]
            assert (writer, version) in of_path.sent
            assert version >= of_path.answered.get(writer, 0), "lost: an older version is back"
    assert set(found) <= set(seen)
    return len(found)


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
        num_files = check_files(root, storm.seen)
    finally:
        assert again.stop() == 0
    assert storm.counts["kills"] == num_kills
    assert storm.counts["broken off"] > num_answers / 10
    assert storm.counts["read"] > num_answers / 10
    print(f"{NUM_CLIENTS} clients, {num_files} files: {dict(storm.counts)}")  # noqa: T201  # shown with -s


def test_no_upload_is_torn_or_lost(tmp_path: Path) -> None:
    """1,500 uploads by 200 clients, as many interrupted, three kills."""
    weather(tmp_path, 1_500, num_kills=3, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 4))
def test_no_upload_is_torn_or_lost_in_long_storms(tmp_path: Path, seed: int) -> None:
    """Three storms of 20,000 uploads and twelve kills each."""
    weather(tmp_path, 20_000, num_kills=12, seed=seed)
