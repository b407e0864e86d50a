"""Archives that a killed service had begun to unpack."""

from __future__ import annotations

import http.client
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.servers.service import Service
from tests.support.service_clients import LIMITS, ask, below, client_of, new_dataset, poll, poll_in_process, tar_bytes
from torchdata_remote.service.server import recovery
from torchdata_remote.service.server.context import ServiceContext
from torchdata_remote.service.server.datasets import archives
from torchdata_remote.service.server.datasets.archives import write_file
from torchdata_remote.service.server.datasets.dataset_root import DatasetRoot
from torchdata_remote.service.server.datasets.digests import publish_held
from torchdata_remote.service.server.maintenance import Maintenance
from torchdata_remote.storage import Entry

WORK = ".torchdata_remote"
NO_RESERVE = ("--min-free-bytes", "0")


def leave_archive(root: Path, files: Mapping[str, bytes], name: str = "d") -> Path:
    """Leave an archive for a dataset, as a service that was killed while it unpacked it; returns its folder."""
    aside = root / WORK / "unpacking" / name / uuid.uuid4().hex
    aside.mkdir(parents=True)
    (root / name).mkdir(exist_ok=True)
    (aside / "archive").write_bytes(tar_bytes(files))
    (aside / "committed").write_text(name)
    return aside


def restarted(root: Path) -> tuple[ServiceContext, Maintenance]:
    """A new service on a root."""
    context = ServiceContext.at(DatasetRoot(str(root)), LIMITS)
    return context, Maintenance(context)


def contents(root: Path) -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path in below(root)}


def versions(root: Path) -> dict[str, tuple[int, int]]:
    """Which version of each file exists."""
    statuses = {path: (root / path).stat() for path in below(root) if not path.endswith("partial")}
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in statuses.items()}


def test_a_service_that_is_killed_again_and_again_unpacks_an_archive(tmp_path: Path) -> None:
    """It answers requests meanwhile. Each attempt begins where the last one ended: no file is written twice."""
    files = {f"{number % 7}/{number}": b"%d" % number for number in range(800)}
    leave_archive(tmp_path, files)
    before: dict[str, tuple[int, int]] = {}
    for attempt in range(1, 4):
        service = Service(tmp_path, *NO_RESERVE)
        poll(service.address, lambda attempt=attempt: len(below(tmp_path / "d")) >= 200 * attempt)  # type: ignore[misc]
        assert ask(service.address, "GET", "/datasets/d/files?limit=10")[0] == 200
        service.kill()
        now = versions(tmp_path / "d")
        assert before.items() <= now.items(), "a file that was complete was written again"
        before = now
    service = Service(tmp_path, *NO_RESERVE)
    poll(service.address, lambda: not below(tmp_path / WORK))
    assert service.stop() == 0
    assert contents(tmp_path / "d") == files
    assert before.items() <= versions(tmp_path / "d").items()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_service_listens_before_it_unpacks_200_000_files(tmp_path: Path) -> None:
    """And ends soon after SIGTERM."""
    leave_archive(tmp_path, {f"{number % 100}/{number}": b"%d" % number for number in range(200_000)})
    leave_archive(tmp_path, {}, "empty")
    seconds = []
    for root in (tmp_path / "nothing", tmp_path):
        start_s = time.monotonic()
        service = Service(root, *NO_RESERVE)
        seconds.append(time.monotonic() - start_s)
        if root != tmp_path:
            service.stop()
    assert seconds[1] < seconds[0] + 1
    poll(service.address, lambda: len(below(tmp_path / "d")) > 1000)
    assert ask(service.address, "GET", "/datasets/empty")[0] == 200
    start_s = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - start_s < 3
    service = Service(tmp_path, *NO_RESERVE)
    poll(service.address, lambda: not below(tmp_path / WORK))
    assert service.stop() == 0
    assert len(below(tmp_path / "d")) == 200_000


paths = st.sampled_from([f"{number % 3}/{number}" for number in range(12)])
contents_of_files = st.binary(min_size=3, max_size=4)  # often of equal size


@settings(max_examples=40)
@given(
    archive=st.dictionaries(paths, contents_of_files, max_size=12),
    existing=st.dictionaries(paths, contents_of_files, max_size=12),
    changes=st.lists(st.tuples(paths, st.none() | contents_of_files), max_size=8),
    num_before_kill=st.integers(0, 12),
    small_bytes=st.sampled_from([3, 100]),
)
def test_what_clients_change_after_the_restart_is_newer_than_the_archive(
    tmp_path: Path,
    archive: dict[str, bytes],
    existing: dict[str, bytes],
    changes: list[tuple[str, bytes | None]],
    num_before_kill: int,
    small_bytes: int,
) -> None:
    """Also after another kill, whatever was there before, for small and large files. All others are the archive's."""
    root = tmp_path / uuid.uuid4().hex
    leave_archive(root, archive)
    for path, data in existing.items():
        (root / "d" / path).parent.mkdir(exist_ok=True)
        (root / "d" / path).write_bytes(data)
    expected = {**existing, **archive}
    context, maintenance = restarted(root)
    folder = context.root.folder("d")
    for path, change in changes:
        if change is not None:
            write_file(context.root, context.digests, folder, path, [change])
            expected[path] = change
        elif context.root.find(folder, path) is not None:
            context.root.delete(folder, path)
            folder.life.changed(path)
            expected.pop(path, None)
    num_written = 0

    def publish_or_stop(*arguments: Any) -> Entry:
        nonlocal num_written
        num_written += 1
        if num_written > num_before_kill:
            context.stopping.set()
            context.stopping.check()
        return publish_held(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "_SMALL_BYTES", small_bytes)
        with pytest.MonkeyPatch.context() as stop:
            stop.setattr("torchdata_remote.service.server.recovery.publish_held", publish_or_stop)
            maintenance.step()
        restarted(root)[1].step()
    found = contents(root / "d")
    assert {path: data for path, data in found.items() if not path.endswith("partial")} == expected
    assert below(root / WORK) == set()


def test_requests_during_the_recovery_are_newer_than_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to write or remove a file, and reading is served."""
    names = ["put", "deleted", "part", "unpacked", "untouched"]
    leave_archive(tmp_path, dict.fromkeys(names, b"old"))
    (tmp_path / "d" / "deleted").write_bytes(b"older")
    may_begin, finish = threading.Event(), recovery.UnfinishedArchive.finish

    def wait_and_finish(archive: recovery.UnfinishedArchive) -> bool:
        may_begin.wait()
        return finish(archive)

    monkeypatch.setattr(recovery.UnfinishedArchive, "finish", wait_and_finish)
    with client_of(tmp_path) as client:
        try:
            assert client.get("/datasets/d/files/deleted").content == b"older"
            answers = [
                client.put("/datasets/d/files/put", content=b"new"),
                client.delete("/datasets/d/files/deleted"),
                client.put(
                    "/datasets/d/files/part?upload=one-upload",
                    content=b"new",
                    headers={"Content-Range": "bytes 0-2/3"},
                ),
                client.put("/datasets/d?unpack=1", content=tar_bytes({"unpacked": b"new"})),
            ]
        finally:
            may_begin.set()
        assert [answer.status_code for answer in answers] == [200, 204, 200, 200]
        poll_in_process(client, lambda: not below(tmp_path / WORK))
    expected = {"put": b"new", "part": b"new", "unpacked": b"new", "untouched": b"old"}
    assert contents(tmp_path / "d") == expected


def test_requests_while_an_archive_is_unpacked_are_newer_than_it_after_a_kill(tmp_path: Path) -> None:
    """Files that it had written, and that clients have replaced or removed since, stay so."""
    service = Service(tmp_path, *NO_RESERVE)
    dataset = new_dataset(service.address)
    files = {f"{number:03}": b"old" for number in range(3_000)}
    target = f"/datasets/{dataset}/files"

    def unpack() -> None:
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(service.address, "PUT", f"/datasets/{dataset}?unpack=1", tar_bytes(files))

    unpacking = threading.Thread(target=unpack)
    unpacking.start()
    poll(service.address, lambda: (tmp_path / dataset / "020").exists())
    assert ask(service.address, "PUT", f"{target}/000", b"new")[0] == 200
    assert ask(service.address, "DELETE", f"{target}/001")[0] == 204
    assert ask(service.address, "PUT", target, tar_bytes({"002": b"new"}))[0] == 200
    service.kill()
    unpacking.join()
    assert len(below(tmp_path / dataset)) < len(files) - 1, "the archive was unpacked before the kill"
    service = Service(tmp_path, *NO_RESERVE)
    poll(service.address, lambda: not below(tmp_path / WORK))
    assert service.stop() == 0
    del files["001"]
    assert contents(tmp_path / dataset) == {**files, "000": b"new", "002": b"new"}


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "torchdata_remote"):
        yield caplog


def test_an_archive_that_does_not_fit_on_the_disk_is_unpacked_later(
    tmp_path: Path, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is kept, and the log says what to do."""
    aside = leave_archive(tmp_path, {"a": b"1", "b": b"2"})
    context, maintenance = restarted(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(context.root, "free_bytes", lambda: -1)
        maintenance.step()
    assert "Delete something" in logged.text
    assert (aside / "archive").exists()
    maintenance.step()
    assert below(tmp_path) == {"d/a", "d/b"}


def test_an_archive_with_a_link_in_its_way_is_unpacked_later(tmp_path: Path, logged: pytest.LogCaptureFixture) -> None:
    """When the link is gone; nothing is written through it."""
    leave_archive(tmp_path, {"a": b"1", "sub/b": b"2"})
    (tmp_path / "far").mkdir()
    os.symlink(tmp_path / "far", tmp_path / "d" / "sub")
    _, maintenance = restarted(tmp_path)
    maintenance.step()
    assert "is a link" in logged.text
    assert below(tmp_path / "far") == set()
    (tmp_path / "d" / "sub").unlink()
    maintenance.step()
    assert below(tmp_path) == {"d/a", "d/sub/b"}


@pytest.mark.parametrize("damage", ["path", "archive", "age"])
def test_an_archive_that_can_never_be_finished_is_dropped(
    tmp_path: Path, logged: pytest.LogCaptureFixture, damage: str
) -> None:
    """A path that is occupied, bytes that are damaged, or a link that was not removed in the time uploads are kept."""
    aside = leave_archive(tmp_path, {"a": b"1", "sub/b": b"2"})
    if damage == "path":
        (tmp_path / "d" / "sub").write_bytes(b"a file")
    elif damage == "archive":
        with open(aside / "archive", "r+b") as file:
            file.seek(1024)
            file.write(b"x" * 512)
    else:
        os.symlink(tmp_path, tmp_path / "d" / "sub")
        then_s = time.time() - LIMITS.upload_lifetime_s - 60
        os.utime(aside / "archive", (then_s, then_s))
    _, maintenance = restarted(tmp_path)
    maintenance.step()
    assert "send an archive again" in logged.text
    assert below(tmp_path / WORK) == set()


def test_a_service_starts_whatever_it_finds(tmp_path: Path) -> None:
    """Archives that can never be finished, and links among its own folders."""
    (leave_archive(tmp_path, {"sub/b": b"2"}) / "archive").write_bytes(b"no tar")
    os.symlink(tmp_path, tmp_path / WORK / "unnamed")
    os.symlink("nowhere", tmp_path / WORK / "unpacking" / "d" / "broken")
    with client_of(tmp_path) as client:
        assert client.get("/datasets").status_code == 200


def test_a_dataset_that_is_removed_before_its_archive_is_finished_stays_removed(tmp_path: Path) -> None:
    """Also if another one of its name is created, and the service is killed again."""
    leave_archive(tmp_path, {"a": b"1"})
    context, maintenance = restarted(tmp_path)
    context.root.remove_dataset("d")
    context.root.create_dataset("d")
    for again in (maintenance, restarted(tmp_path)[1]):
        again.step()
        assert below(tmp_path) == set()


def test_what_running_requests_write_is_no_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says: files under way are published after the clean-up, and folders of requests stay."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / ".old.torchdata_remote-partial").write_bytes(b"1")
    now_s = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now_s + 1e6)
        context, maintenance = restarted(tmp_path)
    folder = context.root.folder("d")
    pending = context.root.create_file(folder, "a/b")
    new = leave_archive(tmp_path, {"c": b"1"})
    maintenance.step()
    pending.commit()
    assert below(tmp_path / "d") == {"a/b"}
    assert (new / "archive").exists()


def test_a_client_that_changes_most_files_ends_the_unpacking(
    tmp_path: Path, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is noted of its changes takes a bounded amount of memory."""
    monkeypatch.setattr("torchdata_remote.service.server.datasets.touched_paths._MAX_TOUCHED", 3)
    leave_archive(tmp_path, {"a": b"1", "b": b"1"})
    context, maintenance = restarted(tmp_path)
    for number in range(5):
        write_file(context.root, context.digests, context.root.folder("d"), f"{number}", [b"2"])
    maintenance.step()
    assert "send an archive again" in logged.text
    assert below(tmp_path) == {f"d/{number}" for number in range(5)}
