"""Datasets that are removed while requests write to them."""

from __future__ import annotations

import itertools
import json
import random
import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.support.service_clients import ask, below, context_of, new_dataset, tar_bytes
from tests.support.shard_places import Place
from torchdata_remote.service.server.datasets.archives import write_file
from torchdata_remote.service.server.datasets.dataset_root import DatasetRoot
from torchdata_remote.service.server.datasets.lifetimes import Life, Lifetimes
from torchdata_remote.service.server.problems import Problem

UPLOAD = "?upload=one-upload"
JSON = {"Content-Type": "application/json"}
NUM_WRITERS, NUM_ROUNDS = 8, 12


def work_of(name: str, root: Path) -> list[str]:
    """Temporary files that belong to a dataset."""
    return [path for path in below(root / ".torchdata_remote") if f"/{name}/" in path]


def write_until(removed: threading.Event, address: str, name: str, seed: int, statuses: set[int]) -> None:
    """Write to a dataset in all ways, until it is removed, and once more."""
    generator = random.Random(seed)
    for count in itertools.count():
        was_removed = removed.is_set()
        path = f"/datasets/{name}/files/deep/{seed}/{count}"
        kind = generator.randrange(5)
        if kind == 0:
            status = ask(address, "PUT", path + UPLOAD, b"01234", {"Content-Range": "bytes 0-4/10"})[0]
            if generator.random() < 0.5 and status == 202:
                status = ask(address, "PUT", path + UPLOAD, b"56789", {"Content-Range": "bytes 5-9/10"})[0]
        elif kind == 1:
            status = ask(address, "PUT", f"/datasets/{name}?unpack=1", tar_bytes({path[1:]: b"1", "x": b""}))[0]
        elif kind == 2:
            status = ask(address, "PUT", f"/datasets/{name}", b"%d" % count)[0]
        else:
            status = ask(address, "PUT", path, b"1")[0]
        statuses.add(status)
        if was_removed:
            assert status == 404
            return


def test_a_removed_dataset_stays_removed_under_writes(served: str, served_root: Path) -> None:
    """After the answer to DELETE, and that of all writes, nothing of it exists; each write is stored or 404."""
    for round_ in range(NUM_ROUNDS):
        name = new_dataset(served)
        removed, statuses = threading.Event(), set[int]()
        threads = [
            threading.Thread(target=write_until, args=(removed, served, name, 100 * round_ + number, statuses))
            for number in range(NUM_WRITERS)
        ]
        for thread in threads:
            thread.start()
        while not statuses:
            pass
        assert ask(served, "DELETE", f"/datasets/{name}")[0] == 204
        removed.set()
        for thread in threads:
            thread.join()
        assert statuses <= {200, 202, 404}
        assert ask(served, "GET", f"/datasets/{name}")[0] == 404
        assert not (served_root / name).exists()
        assert work_of(name, served_root) == []


def test_a_dataset_that_is_created_again_has_only_files_of_its_own(served: str, served_root: Path) -> None:
    """Writers that started before the removal fail, or store whole files after the creation; nothing is mixed."""
    name = new_dataset(served)
    is_done = threading.Event()
    statuses: set[int] = set()

    def write(number: int) -> None:
        count = 0
        while not is_done.is_set():
            files = {f"{number}-{count}/{one}": b"" for one in range(20)}
            statuses.add(ask(served, "PUT", f"/datasets/{name}?unpack=1", tar_bytes(files))[0])
            half = {"Content-Range": "bytes 0-4/10"}
            statuses.add(ask(served, "PUT", f"/datasets/{name}/files/{number}{UPLOAD}", b"01234", half)[0])
            count += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        assert ask(served, "DELETE", f"/datasets/{name}")[0] == 204
        assert ask(served, "POST", "/datasets", json.dumps({"name": name}), JSON)[0] == 201
    is_done.set()
    for thread in threads:
        thread.join()
    assert statuses <= {200, 202, 404}
    archives: dict[str, int] = {}
    for path in below(served_root / name):
        archives[path.partition("/")[0]] = archives.get(path.partition("/")[0], 0) + 1
    assert set(archives.values()) <= {20}, "an archive is unpacked into one life of a dataset, as a whole"
    assert ask(served, "DELETE", f"/datasets/{name}")[0] == 204
    assert work_of(name, served_root) == []


def test_files_that_were_opened_before_a_removal_are_not_published_after_it(client: TestClient, place: Place) -> None:
    """On each store; also if a dataset of the name is created again meanwhile, and with parts of uploads."""
    root, digests = context_of(client).root, context_of(client).digests
    for is_created_again in (False, True):
        client.post("/datasets", json={"name": "d"})
        client.put("/datasets/d/files/before", content=b"1")
        half = {"Content-Range": "bytes 0-4/10"}
        assert client.put(f"/datasets/d/files/a{UPLOAD}", content=b"01234", headers=half).status_code == 202
        folder = root.folder("d")
        pending = root.create_file(folder, "deep/a")
        pending.write(b"1")
        assert client.delete("/datasets/d").status_code == 204
        if is_created_again:
            assert client.post("/datasets", json={"name": "d"}).status_code == 201
        with pytest.raises(Problem, match="removed"):
            pending.commit()
        pending.abort()
        with pytest.raises(Problem, match="removed"):
            write_file(root, digests, folder, "b", [b"1"])
        assert client.get("/datasets/d").status_code == (200 if is_created_again else 404)
        left = [path for path in place.files() if "uploads/" in path or path.endswith(("/a", "/b", "/before"))]
        assert left == []
        if is_created_again:
            assert client.get(f"/datasets/d/files/a{UPLOAD}").status_code == 404


def test_a_removal_that_fails_leaves_a_dataset_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = DatasetRoot(str(tmp_path))
    root.create_dataset("d")

    def fail(path: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(root.store, "remove_folder", fail)
        with pytest.raises(OSError, match="space"):
            root.remove_dataset("d")
    root.create_file(root.folder("d"), "a").commit()
    root.remove_dataset("d")
    with pytest.raises(Problem, match="no dataset"):
        root.folder("d")


def test_a_removal_waits_until_files_are_published() -> None:
    """And lets no other one begin."""
    life, order = Life(), []
    began = threading.Event()

    def remove() -> None:
        began.set()
        with life.ended():
            order.append("removed")

    with life.used():
        thread = threading.Thread(target=remove)
        thread.start()
        began.wait()
        while not life.is_over:
            pass
        with pytest.raises(Problem, match="removed"), life.used():
            pass
        with pytest.raises(Problem, match="removed"), life.ended():
            pass
        order.append("published")
    thread.join()
    assert order == ["published", "removed"]


def test_lives_of_datasets_take_memory_only_while_requests_use_them() -> None:
    lifetimes = Lifetimes()
    lives = [lifetimes.current(f"{number}/") for number in range(100)]
    assert lifetimes.current("5/") is lives[5]
    lives.clear()
    assert len(lifetimes._lives) == 0
