"""Slow work and locks leave threads for other requests."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.servers.service import Service
from tests.support.service_clients import ask, client_of, digest_field, new_dataset, poll_in_process, tar_bytes
from torchdata_remote.service.server.datasets.digests import Digests
from torchdata_remote.storage import LocalStore
from torchdata_remote.storage.local.writer import LocalWriter

NUM_REQUESTS = 160  # more than there are threads
RESCUE_S = 60  # after which a test that would hang fails
PART = {"Content-Range": "bytes 5-9/10"}
HASHED = {"Want-Repr-Digest": "sha-256=1"}


class Gate:
    """Holds every call that passes it until it is opened."""

    def __init__(self) -> None:
        self._opened, self.was_rescued = threading.Event(), False
        self._timer = threading.Timer(RESCUE_S, self._rescue)
        self._timer.start()

    def _rescue(self) -> None:
        self.was_rescued = True
        self._opened.set()

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any, **more: Any) -> Any:
            assert self._opened.wait(2 * RESCUE_S)
            return call(*arguments, **more)

        return held

    def open(self) -> None:
        self._timer.cancel()
        self._opened.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


def hold(gate: Gate, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    server = "torchdata_remote.service.server"
    if what == "hash":
        monkeypatch.setattr(Digests, "sha256", gate.around(Digests.sha256))
    elif what == "remove":
        monkeypatch.setattr(LocalStore, "remove_folder", gate.around(LocalStore.remove_folder))
    elif what == "commit":
        monkeypatch.setattr(LocalWriter, "commit", gate.around(LocalWriter.commit))
    else:
        module, _, name = f"{server}.{what}".rpartition(".")
        monkeypatch.setattr(f"{module}.{name}", gate.around(getattr(importlib.import_module(module), name)))


@pytest.mark.parametrize(
    ("held", "method", "target", "content", "headers"),
    [
        ("app.summarize", "GET", "/datasets/slow/summary", None, {}),
        ("app.draw_sheet", "GET", "/datasets/slow/sheet.png", None, {}),
        ("hash", "GET", "/datasets/slow/files?digests=1", None, {}),
        ("hash", "GET", "/datasets/slow/files/unhashed", None, HASHED),
        ("commit", "PUT", "/datasets/slow/files/a", b"1", {}),
        ("commit", "PUT", "/datasets/slow/files/{number}", b"1", {}),
        ("commit", "PUT", "/datasets/slow/files/b?upload=one-upload", b"56789", PART),
        ("uploads.uploads.filled_file", "PUT", "/datasets/slow/files/b?upload=one-upload", b"56789", PART),
        ("commit", "PUT", "/datasets/slow", b"1", {}),
        ("routes.dataset_routes.check", "PUT", "/datasets/slow?unpack=1", tar_bytes({"x": b"1"}), {}),
        ("remove", "DELETE", "/datasets/slow-{number}", None, {}),
    ],
)
def test_requests_that_wait_take_no_threads_from_others(
    tmp_path: Path,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    held: str,
    method: str,
    target: str,
    content: bytes | None,
    headers: dict[str, str],
) -> None:
    """Requests for slow work, or for one lock: others are answered at once, and these are when it is done."""
    with client_of(tmp_path) as client:
        names = ["slow", "other"] + [f"slow-{number}" for number in range(NUM_REQUESTS) if held == "remove"]
        for name in names:
            assert client.post("/datasets", json={"name": name}).status_code == 201
        (tmp_path / "slow" / "unhashed").write_bytes(b"1")
        client.put("/datasets/other/files/a", content=b"1")
        begun = {"Content-Range": "bytes 0-4/10", "Content-Digest": digest_field(b"01234")}
        client.put("/datasets/slow/files/b?upload=one-upload", content=b"01234", headers=begun)
        hold(gate, monkeypatch, held)
        answers: list[int] = []

        def send(number: int) -> None:
            url = target.format(number=number)
            answers.append(client.request(method, url, content=content, headers=headers).status_code)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(NUM_REQUESTS)]
        for thread in threads:
            thread.start()
        poll_in_process(client, lambda: in_flight(client) > NUM_REQUESTS)
        for _ in range(20):
            assert client.get("/healthz").status_code == 200
            assert client.get("/datasets/other/files/a").content == b"1"
            assert client.get("/datasets/other/files").json()["files"][0]["path"] == "a"
        assert not gate.was_rescued, "the requests were answered only after the slow work was done"
        assert answers == []
        gate.open()
        for thread in threads:
            thread.join()
        assert set(answers) <= {200, 204, 404 if "sheet" in target else 200}
        assert len(answers) == NUM_REQUESTS


def in_flight(client: TestClient) -> float:
    """Number of requests that the service has not answered, with this one."""
    match = re.search(r"^torchdata_remote_service_requests_in_flight (.*)$", client.get("/metrics").text, re.MULTILINE)
    assert match is not None
    return float(match[1])


def test_batches_that_wait_for_one_file_take_no_threads_from_its_holder(tmp_path: Path) -> None:
    """Clients that write the same file, alone and in batches, all get there."""
    service = Service(tmp_path, "--min-free-bytes", "0")
    try:
        dataset = new_dataset(service.address)
        tar = tar_bytes([("a", b"1"), ("a", b"2")])
        requests = [("/files", tar), ("/files/a", b"3")] * NUM_REQUESTS
        with ThreadPoolExecutor(NUM_REQUESTS) as pool:
            answers = pool.map(
                lambda request: ask(service.address, "PUT", f"/datasets/{dataset}{request[0]}", request[1])[0], requests
            )
            assert set(answers) == {200}
    finally:
        service.kill()
