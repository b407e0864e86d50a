"""Multipart uploads."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
from anyio import to_thread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient

from tests.servers.service import Service
from tests.support.service_clients import (
    LIMITS,
    all_files,
    ask,
    below,
    client_of,
    context_of,
    digest_field,
    new_dataset,
)
from tests.support.shard_places import Place
from torchdata_remote.service.server.blocking import run_blocking
from torchdata_remote.service.server.datasets.dataset_root import CHUNK_BYTES, DatasetRoot
from torchdata_remote.service.server.limits import ServiceLimits
from torchdata_remote.service.server.uploads.request_body import receive_file
from torchdata_remote.service.server.uploads.upload_parts import Part
from torchdata_remote.storage import LocalWriter

ID = "an-upload_1"
DATA = bytes(range(100))


def put(
    client: TestClient, dataset: str, start: int, end: int, total: int | None, *, path: str = "a", **more: Any
) -> Any:
    """Send bytes of ``DATA``, or other ones."""
    content = more.pop("content", DATA[start:end])
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{'*' if total is None else total}", **more.pop("headers", {})}
    upload = more.pop("upload", ID)
    return client.put(f"/datasets/{dataset}/files/{path}?upload={upload}", content=content, headers=headers)


def progress(client: TestClient, dataset: str) -> Any:
    answer = client.get(f"/datasets/{dataset}/files/a?upload={ID}")
    return answer.json() if answer.status_code == 200 else answer.status_code


def test_parts_are_joined_into_a_file(client: TestClient, dataset: str, place: Place) -> None:
    """202 reports the received ranges; the last part gets the response of a whole file, and nothing else is left."""
    first = put(client, dataset, 60, 100, 100)
    assert (first.status_code, first.json()) == (202, {"upload": ID, "received": [[60, 100]], "total": 100})
    assert put(client, dataset, 0, 20, None).json()["received"] == [[0, 20], [60, 100]]
    assert progress(client, dataset) == {"upload": ID, "received": [[0, 20], [60, 100]], "total": 100}
    assert all_files(client, dataset) == []
    last = put(client, dataset, 20, 60, None, headers={"Repr-Digest": digest_field(DATA)})
    assert last.status_code == 200
    metadata = last.json()
    assert (metadata["path"], metadata["size"], metadata["sha256"]) == ("a", 100, hashlib.sha256(DATA).hexdigest())
    assert last.headers["etag"] == metadata["etag"]
    assert client.get(f"/datasets/{dataset}/files/a").content == DATA
    assert progress(client, dataset) == 404
    assert {path for path in place.files() if ".torchdata_remote/" in path} <= {".torchdata_remote/serving.lock"}


cuts = st.lists(st.integers(1, 99), max_size=8, unique=True).map(sorted)


@settings(max_examples=40)
@given(cuts=cuts, data=st.data())
def test_parts_may_have_any_size_and_order(
    shared: TestClient, dataset: str, cuts: list[int], data: st.DataObject
) -> None:
    """Some are sent twice, any of them may state the total: the last missing part completes the file."""
    places = list(zip([0, *cuts], [*cuts, 100], strict=True))
    order = data.draw(st.permutations(places + data.draw(st.lists(st.sampled_from(places), max_size=4))))
    stating = data.draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    path, missing, total_is_known = uuid.uuid4().hex, set(places), False
    for (start, end), states_total in zip([*order, places[0]], [*stating, True], strict=True):
        answer = put(shared, dataset, start, end, 100 if states_total else None, path=path)
        missing.discard((start, end))
        total_is_known = total_is_known or states_total
        if total_is_known and not missing:
            break
        assert answer.status_code == 202, answer.text
        assert answer.json()["total"] == (100 if total_is_known else None)
    assert answer.status_code == 200, answer.text
    assert shared.get(f"/datasets/{dataset}/files/{path}").content == DATA


def test_concurrent_duplicate_parts_are_accepted(served: str) -> None:
    """From many threads, each part twice: all get 200 or 202, and the file is correct."""
    dataset = new_dataset(served)
    content = bytes(range(256)) * 2_000
    part_bytes = 40_000
    answers: list[tuple[int, bytes]] = []

    def send(start: int) -> None:
        data = content[start : start + part_bytes]
        headers = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/{len(content)}"}
        answers.append(ask(served, "PUT", f"/datasets/{dataset}/files/a?upload={ID}", data, headers)[:2])

    threads = [threading.Thread(target=send, args=(start,)) for start in [*range(0, len(content), part_bytes)] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} <= {200, 202}, answers
    assert 200 in {status for status, _ in answers}
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[1] == content


def test_a_part_of_the_same_range_replaces_the_first(shared: TestClient, dataset: str) -> None:
    """Also if it states a total that the first one did not."""
    put(shared, dataset, 0, 50, None, content=b"x" * 50)
    again = put(shared, dataset, 0, 50, 100)
    assert again.json()["received"] == [[0, 50]]
    assert put(shared, dataset, 50, 100, None).status_code == 200
    assert shared.get(f"/datasets/{dataset}/files/a").content == DATA


@pytest.mark.parametrize(
    ("start", "end", "total"), [(40, 60, 100), (0, 20, 100), (49, 51, 100), (50, 60, 90), (50, 101, None)]
)
def test_parts_that_overlap_or_disagree_are_refused(
    shared: TestClient, dataset: str, start: int, end: int, total: int | None
) -> None:
    """409, and the received parts are kept."""
    put(shared, dataset, 0, 50, 100)
    assert put(shared, dataset, start, end, total, content=b"x" * (end - start)).status_code == 409
    assert progress(shared, dataset) == {"upload": ID, "received": [[0, 50]], "total": 100}
    assert put(shared, dataset, 50, 100, 100).status_code == 200
    assert shared.get(f"/datasets/{dataset}/files/a").content == DATA


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(
        st.tuples(st.integers(0, 99), st.integers(1, 100)).filter(lambda part: part[0] < part[1]), max_size=6
    )
)
def test_a_part_replaces_those_that_it_contains(shared: TestClient, dataset: str, parts: list[tuple[int, int]]) -> None:
    """So the whole file completes any upload; a part that overlaps another one otherwise is 409."""
    upload = uuid.uuid4().hex
    received: list[tuple[int, int]] = []
    for start, end in parts:
        others = [one for one in received if not (start <= one[0] and one[1] <= end)]
        answer = put(shared, dataset, start, end, 100, upload=upload, content=b"x" * (end - start))
        if any(start < one[1] and one[0] < end for one in others):
            assert answer.status_code == 409
            continue
        received = [*others, (start, end)]
        is_complete = sum(end - start for start, end in received) == 100
        assert answer.status_code == (200 if is_complete else 202)
        if is_complete:
            received = []
    assert put(shared, dataset, 0, 100, 100, upload=upload).status_code == 200
    assert shared.get(f"/datasets/{dataset}/files/a").content == DATA


@pytest.mark.parametrize("end", [60, 100])
def test_what_arrived_of_a_cut_part_is_kept(served: str, end: int) -> None:
    """The rest completes the file; meanwhile it is invisible."""
    dataset = new_dataset(served)
    target = f"/datasets/{dataset}/files/a?upload={ID}"
    host, _, port = served.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"PUT {target} HTTP/1.1\r\nHost: {served}\r\nContent-Range: bytes 0-{end - 1}/100\r\n"
        connection.sendall(f"{head}Content-Length: {end}\r\n\r\n".encode() + DATA[:40])
    give_up_s = time.monotonic() + 30
    while (answer := ask(served, "GET", target))[0] != 200:
        assert time.monotonic() < give_up_s
    assert json.loads(answer[1]) == {"upload": ID, "received": [[0, 40]], "total": 100}
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[0] == 404
    headers = {"Content-Range": "bytes 40-99/100", "Repr-Digest": digest_field(DATA)}
    assert ask(served, "PUT", target, DATA[40:], headers)[0] == 200
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[1] == DATA


def test_a_cut_part_with_more_bytes_than_its_range_is_dropped(served: str) -> None:
    """Which of them are the range's is unknown; kept, they would move all bytes that follow."""
    dataset = new_dataset(served)
    target = f"/datasets/{dataset}/files/a?upload={ID}"
    assert ask(served, "PUT", target, DATA[90:], {"Content-Range": "bytes 90-99/100"})[0] == 202
    host, _, port = served.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"PUT {target} HTTP/1.1\r\nHost: {served}\r\nContent-Range: bytes 0-39/100\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n".encode() + DATA[:60])
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):  # until the service has ended the request
            pass
    assert json.loads(ask(served, "GET", target)[1])["received"] == [[90, 100]]
    assert ask(served, "PUT", target, DATA[:90], {"Content-Range": "bytes 0-89/100"})[0] == 200
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[1] == DATA


def test_a_cut_part_that_could_not_be_written_is_dropped(tmp_path: Path) -> None:
    """The disk is full, and then the connection breaks: what was written is not known."""
    kept: list[int] = []

    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "full")

        def commit(self) -> None:
            raise AssertionError

        def abort(self) -> None:
            pass

    class Cut:
        headers: ClassVar[dict[str, str]] = {}

        async def stream(self) -> AsyncIterator[bytes]:
            yield bytes(CHUNK_BYTES)
            await anyio.sleep(0.1)  # longer than a write that fails takes
            raise ClientDisconnect

    async def on_cut(num_bytes: int) -> None:
        kept.append(num_bytes)

    root: Any = DatasetRoot(str(tmp_path))
    request: Any = Cut()
    with pytest.raises(OSError, match="full"):
        anyio.run(lambda: receive_file(request, Full(), root, LIMITS, num_bytes=2 * CHUNK_BYTES, on_cut=on_cut))
    assert kept == []


def test_cut_parts_that_wait_for_one_upload_take_no_threads(local: TestClient, dataset: str) -> None:
    """Of those that the request needs that holds the upload's lock: the service would never write again."""
    uploads = context_of(local).uploads

    async def main() -> None:
        to_thread.current_default_thread_limiter().total_tokens = 1
        folder = context_of(local).root.folder(dataset)
        upload = uploads.upload(dataset, folder, "a", ID)
        parts = [uploads.start_part(upload, Part(start, start + 10, 100)) for start in range(0, 30, 10)]
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks, uploads._locks.held_in_loop(upload.parts_folder):
                for part, pending in parts:
                    pending.write(b"12345")
                    tasks.start_soon(uploads.keep_cut_part, upload, part, pending, 5)
                await anyio.wait_all_tasks_blocked()
                await run_blocking(lambda: None)
        assert uploads.progress(upload).received == [[0, 5], [10, 15], [20, 25]]

    anyio.run(main)


def test_a_whole_file_in_one_part_is_not_copied(local: TestClient, dataset: str, tmp_path: Path) -> None:
    """Its digest is compared before it becomes visible, and its precondition at that moment."""
    wrong = put(local, dataset, 0, 100, 100, headers={"Repr-Digest": digest_field(b"other")})
    assert wrong.status_code == 400
    assert all_files(local, dataset) == []
    inodes: list[int] = []

    class Watched(LocalWriter):
        def commit(self) -> None:
            super().commit()
            inodes.append(os.stat(self._path).st_ino)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdata_remote.storage.local.store.LocalWriter", Watched)
        answer = put(local, dataset, 0, 100, 100, headers={"Repr-Digest": digest_field(DATA), "If-None-Match": "*"})
    assert answer.status_code == 200
    assert answer.json()["sha256"] == hashlib.sha256(DATA).hexdigest()
    assert inodes == [(tmp_path / "root" / dataset / "a").stat().st_ino] * 2
    assert put(local, dataset, 0, 100, 100, headers={"If-None-Match": "*"}, upload="another-id").status_code == 412


@pytest.mark.parametrize("arguments", [("-t", "tmpfs", "tmpfs"), ("--bind", ".")])
def test_a_whole_file_in_one_part_is_copied_into_another_mount(
    local: TestClient, dataset: str, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Of another file system or of the same: there it cannot be renamed."""
    mounted = tmp_path / "root" / dataset / "below"
    mounted.mkdir()
    try:
        subprocess.run(["mount", *arguments, mounted], check=True, capture_output=True, cwd=tmp_path)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here")
    try:
        answer = put(local, dataset, 0, 100, 100, path="below/a", headers={"Repr-Digest": digest_field(DATA)})
        assert answer.status_code == 200, answer.text
        assert local.get(f"/datasets/{dataset}/files/below/a").content == DATA
        assert os.listdir(tmp_path / "root" / ".torchdata_remote" / "uploads" / dataset) == []
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)


def test_of_concurrent_overlapping_parts_one_is_refused(served: str) -> None:
    """So the upload can be completed."""
    dataset = new_dataset(served)
    target = f"/datasets/{dataset}/files/a?upload={ID}"

    def inside() -> Any:
        yield DATA[:10]
        assert ask(served, "PUT", target, DATA[50:], {"Content-Range": "bytes 50-99/100"})[0] == 202
        yield DATA[10:60]

    assert ask(served, "PUT", target, inside(), {"Content-Range": "bytes 0-59/100"})[0] == 409
    assert ask(served, "PUT", target, DATA[:50], {"Content-Range": "bytes 0-49/100"})[0] == 200
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[1] == DATA


def test_a_duplicate_of_the_last_part_gets_the_same_response(served: str) -> None:
    """Even if it is received while the file is completed."""
    dataset = new_dataset(served)
    target, headers = f"/datasets/{dataset}/files/a?upload={ID}", {"Content-Range": "bytes 0-99/100"}

    def inside() -> Any:
        yield DATA[:10]
        assert ask(served, "PUT", target, DATA, headers)[0] == 200
        yield DATA[10:]

    status, response, _ = ask(served, "PUT", target, inside(), headers)
    assert status == 200, response
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[1] == DATA


def test_the_last_part_can_be_repeated(shared: TestClient, dataset: str) -> None:
    """It gets the same response."""
    put(shared, dataset, 0, 50, 100)
    once, again = put(shared, dataset, 50, 100, 100), put(shared, dataset, 50, 100, 100)
    assert once.status_code == again.status_code == 200
    assert once.json() == again.json()
    assert progress(shared, dataset) == 404


def test_a_part_of_another_file_is_not_taken_for_a_repeated_one(shared: TestClient, dataset: str) -> None:
    """Its bytes are the same, but Repr-Digest says of which file they are: that is not stored yet."""
    other = DATA[:50] + bytes(50)
    for content in (DATA, other):
        headers = {"Repr-Digest": digest_field(content)}
        assert put(shared, dataset, 0, 50, 100, content=content[:50], headers=headers).status_code == 202
        assert put(shared, dataset, 50, 100, 100, content=content[50:], headers=headers).status_code == 200
        assert shared.get(f"/datasets/{dataset}/files/a").content == content


def test_an_upload_id_can_be_used_again(shared: TestClient, dataset: str) -> None:
    """Parts of the new upload are never taken for those of the completed one."""
    for content in (DATA, bytes(reversed(DATA)), b"short"):
        half, total = len(content) // 2, len(content)
        first = put(shared, dataset, 0, half, total, content=content[:half])
        assert first.status_code == 202
        assert put(shared, dataset, half, total, total, content=content[half:]).status_code == 200
        assert shared.get(f"/datasets/{dataset}/files/a").content == content


def test_an_upload_belongs_to_one_path(shared: TestClient, dataset: str) -> None:
    """The same ID with another path or dataset is another upload."""
    shared.post("/datasets", json={"name": "other"})
    put(shared, dataset, 0, 50, 100)
    for where, path in [(dataset, "b"), ("other", "a")]:
        assert put(shared, where, 50, 100, 100, path=path).json()["received"] == [[50, 100]]
    assert progress(shared, dataset)["received"] == [[0, 50]]


def test_parts_with_a_wrong_digest_are_discarded(shared: TestClient, dataset: str) -> None:
    """Of a part: 400, and it is not stored. Of the file: 400, and all its parts are removed."""
    wrong = put(shared, dataset, 0, 50, 100, headers={"Content-Digest": digest_field(b"")})
    assert wrong.status_code == 400
    assert progress(shared, dataset) == 404
    right = {"Content-Digest": digest_field(DATA[:50]), "Repr-Digest": digest_field(DATA)}
    assert put(shared, dataset, 0, 50, 100, headers=right).status_code == 202
    assert put(shared, dataset, 50, 100, 100, headers={"Repr-Digest": digest_field(b"")}).status_code == 400
    assert progress(shared, dataset) == 404
    assert all_files(shared, dataset) == []


def test_a_part_whose_length_is_not_its_range_is_refused(shared: TestClient, dataset: str) -> None:
    """400, and it is not stored."""
    for content in (b"x" * 9, b"x" * 11, b""):
        assert put(shared, dataset, 0, 10, 100, content=content).status_code == 400
    assert progress(shared, dataset) == 404


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes 0-9",
        "bytes 5-4/10",
        "bytes 0-10/10",
        "bytes */10",
        "0-9/10",
        "bytes 0-9/x",
        "bytes -1-2/3",
        f"bytes 0-{'9' * 20}/*",
        "bytes 0-0/0",
    ],
)
def test_an_invalid_content_range_is_refused(shared: TestClient, dataset: str, header: str | None) -> None:
    """400 says which form is expected."""
    headers = {} if header is None else {"Content-Range": header}
    answer = shared.put(f"/datasets/{dataset}/files/a?upload={ID}", content=b"x", headers=headers)
    assert answer.status_code == 400
    assert "bytes first-last" in answer.json()["error"]


@pytest.mark.parametrize("upload", ["", "short", "x" * 65, "a/b/c/d/e", "........", "%00%00%00%00%00%00%00%00"])
def test_an_invalid_upload_id_is_refused(shared: TestClient, dataset: str, upload: str) -> None:
    """400, for each method."""
    for method in ("GET", "PUT", "DELETE"):
        content = b"x" if method == "PUT" else None
        path = f"/datasets/{dataset}/files/a?upload={upload}"
        assert (
            shared.request(method, path, content=content, headers={"Content-Range": "bytes 0-0/1"}).status_code == 400
        )


def test_preconditions_are_checked_when_an_upload_completes(client: TestClient, dataset: str) -> None:
    """412 keeps the existing file and the parts."""
    path = f"/datasets/{dataset}/files/a"
    etag = client.put(path, content=b"old").headers["etag"]
    put(client, dataset, 0, 50, 100)
    assert put(client, dataset, 50, 100, 100, headers={"If-None-Match": "*"}).status_code == 412
    assert put(client, dataset, 50, 100, 100, headers={"If-Match": '"x"'}).status_code == 412
    assert client.get(path).content == b"old"
    assert put(client, dataset, 50, 100, 100, headers={"If-Match": etag}).status_code == 200
    assert client.get(path).content == DATA


def test_an_upload_can_be_discarded(client: TestClient, dataset: str) -> None:
    """DELETE: 204, also for an unknown one. No part is left, and the existing file is kept."""
    client.put(f"/datasets/{dataset}/files/a", content=b"old")
    put(client, dataset, 0, 50, 100)
    for _ in range(2):
        assert client.delete(f"/datasets/{dataset}/files/a?upload={ID}").status_code == 204
    assert progress(client, dataset) == 404
    assert client.get(f"/datasets/{dataset}/files/a").content == b"old"


def test_limits_of_numbers_and_sizes_of_parts(tmp_path: Path) -> None:
    """413 before the body is read."""
    with client_of(tmp_path, limits=ServiceLimits(min_free_bytes=0, max_parts=3, max_file_bytes=80)) as client:
        client.post("/datasets", json={"name": "d"})
        assert put(client, "d", 0, 10, 81).status_code == 413
        assert put(client, "d", 75, 85, None).status_code == 413
        for start in (0, 10, 20):
            assert put(client, "d", start, start + 10, 80).status_code == 202
        assert put(client, "d", 30, 40, 80).status_code == 413
        assert put(client, "d", 20, 30, 80).status_code == 202, "a stored part may be sent again"


def test_an_upload_can_be_resumed_after_the_service_was_killed(tmp_path: Path) -> None:
    """Parts that were answered with 202 need not be sent again."""
    service = Service(tmp_path, "--min-free-bytes", "0")
    dataset = new_dataset(service.address)
    target = f"/datasets/{dataset}/files/a?upload={ID}"
    assert ask(service.address, "PUT", target, DATA[50:], {"Content-Range": "bytes 50-99/100"})[0] == 202
    service.kill()
    with client_of(tmp_path) as client:
        assert progress(client, dataset)["received"] == [[50, 100]]
        assert put(client, dataset, 0, 50, None).status_code == 200
        assert client.get(f"/datasets/{dataset}/files/a").content == DATA


def test_an_abandoned_upload_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its lifetime, counted from its last part."""
    with client_of(tmp_path) as client:
        client.post("/datasets", json={"name": "d"})
        put(client, "d", 0, 50, 100)
        context = context_of(client)
        context.uploads.remove_abandoned()
        assert progress(client, "d")["received"] == [[0, 50]]
        now_s = time.time() + LIMITS.upload_lifetime_s
        monkeypatch.setattr("torchdata_remote.service.server.uploads.uploads.time.time", lambda: now_s + 60)
        context.uploads.remove_abandoned()
        assert progress(client, "d") == 404
        assert below(tmp_path) == set()
