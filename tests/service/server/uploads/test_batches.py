"""Batches: many small files in one request."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import socket
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.support.service_clients import all_files, ask, client_of, new_dataset, tar_bytes
from torchdata_remote.service.server.limits import ServiceLimits
from torchdata_remote.storage.dataset_service.protocol import MAX_BATCH_BYTES, MAX_BATCH_FILE_BYTES, MAX_BATCH_FILES

TREE = {"cat/1": b"meow", "cat/2": b"", "dog/ä/" + "long " * 40: b"woof" * 300}


def with_digests(files: dict[str, tuple[bytes, str]]) -> bytes:
    """A tar of files: data and SHA-256 of each."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, (data, sha256) in files.items():
                member = tarfile.TarInfo(name)
                member.size, member.pax_headers = len(data), {"TORCHDATA_REMOTE.sha256": sha256}
                archive.addfile(member, io.BytesIO(data))
        return buffer.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(client: TestClient, dataset: str, tar: bytes) -> Any:
    return client.put(f"/datasets/{dataset}/files", content=tar, headers={"Content-Type": "application/x-tar"})


def read(client: TestClient, dataset: str, paths: list[str]) -> dict[str, bytes]:
    answer = client.post(f"/datasets/{dataset}/files", json={"paths": paths})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_what_a_batch_stores_a_batch_reads(client: TestClient, dataset: str) -> None:
    """On every kind of store. Paths without a file are left out; the order is that of the paths."""
    stored = put(client, dataset, with_digests({path: (data, sha256(data)) for path, data in TREE.items()}))
    assert stored.status_code == 200
    assert [(one["path"], one["size"], one["sha256"]) for one in stored.json()["files"]] == [
        (path, len(data), sha256(data)) for path, data in TREE.items()
    ]
    assert (stored.json()["failed"], stored.json()["num_skipped"]) == ([], 0)
    for one in stored.json()["files"]:
        assert client.head(f"/datasets/{dataset}/files/{one['path']}").headers["etag"] == one["etag"]
    found = read(client, dataset, [*reversed(TREE), "absent"])
    assert list(found.items()) == [*reversed(TREE.items())]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=12),
    cut=st.floats(0, 1),
    cuts=st.lists(st.floats(0, 1), max_size=5),
)
def test_of_a_tar_that_is_cut_off_the_complete_files_are_stored(
    local: TestClient, dataset: str, sizes: list[int], cut: float, cuts: list[float]
) -> None:
    """In whatever pieces it arrives, and the error says how many there are."""
    local.delete(f"/datasets/{dataset}")
    local.post("/datasets", json={"name": dataset})
    tree = {f"f{number:02d}": bytes([number]) * size for number, size in enumerate(sizes)}
    tar = tar_bytes(tree)
    length = int(cut * len(tar))
    marks = sorted({0, length, *(int(one * length) for one in cuts)})
    answer = local.put(f"/datasets/{dataset}/files", content=iter([tar[a:b] for a, b in itertools.pairwise(marks)]))
    stored = [path for path in tree if path in all_files(local, dataset)]
    complete, position = [], 0
    for path, data in tree.items():
        position += 512 + len(data) + -len(data) % 512
        if position <= length:
            complete.append(path)
    assert stored == complete
    if length >= position + 1024:
        assert [one["path"] for one in answer.json()["files"]] == stored
    else:
        assert answer.status_code == 400
        assert f"{len(stored)} were stored" in answer.json()["error"]


def test_a_file_with_a_wrong_digest_is_not_stored(local: TestClient, dataset: str) -> None:
    """The others are; each is in exactly one of the two lists."""
    files = {"a": (b"1", sha256(b"1")), "b": (b"2", sha256(b"3")), "c": (b"3", "no digest"), "d": (b"4", sha256(b"4"))}
    answer = put(local, dataset, with_digests(files)).json()
    assert [one["path"] for one in answer["files"]] == all_files(local, dataset) == ["a", "d"]
    assert [(one["path"], one["status"]) for one in answer["failed"]] == [("b", 400), ("c", 400)]


@pytest.mark.parametrize(
    "path", ["../evil", "/evil", "a/../../evil", "a//b", ".", "a\\b", "x" * 256, ".a.torchdata_remote-partial"]
)
def test_hostile_names_are_refused_one_by_one(local: TestClient, dataset: str, path: str, tmp_path: Any) -> None:
    """Nothing is written for them, and reading them is 400."""
    before = {str(found) for found in tmp_path.rglob("*")}
    answer = put(local, dataset, tar_bytes({path: b"evil", "good": b"1"})).json()
    assert [(one["path"], one["status"]) for one in answer["failed"]] == [(path, 400)]
    created = {str(found) for found in tmp_path.rglob("*")} - before
    assert created == {str(tmp_path / "root" / dataset / "good")}
    assert local.post(f"/datasets/{dataset}/files", json={"paths": ["good", path]}).status_code == 400


def test_conflicts_and_links_are_reported(local: TestClient, dataset: str, tmp_path: Any) -> None:
    """A file below a file is 409; a link in the dataset's folder is 403; links and devices in the tar are counted."""
    (tmp_path / "root" / dataset / "link").symlink_to("/etc")
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            link = tarfile.TarInfo("hostname")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(link)
            for name in ("a", "a/b", "link/passwd", "c"):
                archive.addfile(tarfile.TarInfo(name), io.BytesIO())
        answer = put(local, dataset, buffer.getvalue()).json()
    assert [one["path"] for one in answer["files"]] == ["a", "c"]
    assert [(one["path"], one["status"]) for one in answer["failed"]] == [("a/b", 409), ("link/passwd", 403)]
    assert answer["num_skipped"] == 1


def test_limits(shared: TestClient, dataset: str) -> None:
    """Of files, of bytes of one file, of bytes of all, of paths: 413."""
    many = put(shared, dataset, tar_bytes({f"{number:05d}": b"" for number in range(MAX_BATCH_FILES + 1)}))
    assert many.status_code == 413
    assert f"{MAX_BATCH_FILES:,} were stored" in many.json()["error"]
    large = put(shared, dataset, tar_bytes({"large": bytes(MAX_BATCH_FILE_BYTES + 1)}))
    assert (large.status_code, "0 were stored" in large.json()["error"]) == (400, True)
    assert put(shared, dataset, iter([bytes(MAX_BATCH_BYTES), b"1"])).status_code == 413  # type: ignore[arg-type]
    paths = {"paths": ["a"] * (MAX_BATCH_FILES + 1)}
    assert shared.post(f"/datasets/{dataset}/files", json=paths).status_code == 413


@pytest.mark.parametrize(
    "body", ["[]", "{}", '{"paths": "a"}', '{"paths": [1]}', '{"paths": [], "more": 1}', "[" * 10_000]
)
def test_another_document_is_400(shared: TestClient, dataset: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    assert shared.post(f"/datasets/{dataset}/files", content=body, headers=headers).status_code == 400
    assert shared.post(f"/datasets/{dataset}/files", content=body).status_code == 415


def test_headers_without_a_file_are_not_kept(shared: TestClient, dataset: str) -> None:
    """Any number of extended headers may come before a member; they are refused before they fill the memory."""
    comment = tarfile.TarInfo("x")
    comment.type, comment.size = tarfile.XGLTYPE, 1 << 19
    record = b"524288 comment=".ljust(524_287, b"x") + b"\n"
    answer = put(shared, dataset, iter([comment.tobuf() + record] * 20))  # type: ignore[arg-type]
    assert answer.status_code == 413


def test_the_longest_paths_are_read(shared: TestClient, dataset: str) -> None:
    """As JSON that is ASCII, which takes three times their bytes."""
    path = "/".join(["é" * 127] * 4)
    assert len(path.encode()) > 1000
    body = json.dumps({"paths": [path] * MAX_BATCH_FILES})
    headers = {"Content-Type": "application/json"}
    assert shared.post(f"/datasets/{dataset}/files", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize("header", ["If-Match", "If-None-Match", "Content-Range", "Content-Digest", "Repr-Digest"])
def test_headers_about_one_file_are_refused(shared: TestClient, dataset: str, header: str) -> None:
    """A condition or a digest that nobody checks would be a promise that is not kept."""
    answer = shared.put(f"/datasets/{dataset}/files", content=tar_bytes({"a": b"1"}), headers={header: "*"})
    assert answer.status_code == 400
    assert header in answer.json()["error"]
    assert all_files(shared, dataset) == []


def test_an_unknown_dataset_is_404(shared: TestClient) -> None:
    assert put(shared, "absent", tar_bytes({"a": b"1"})).status_code == 404
    assert shared.post("/datasets/absent/files", json={"paths": ["a"]}).status_code == 404


def test_after_a_broken_connection_the_complete_files_are_stored(served: str) -> None:
    """The last one, of which bytes are missing, is not."""
    dataset = new_dataset(served)
    tar = tar_bytes({"a": b"1", "b": b"2" * 600, "c": b"3" * 600})
    host, _, port = served.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"PUT /datasets/{dataset}/files HTTP/1.1\r\nHost: {served}\r\nContent-Length: {len(tar)}\r\n\r\n"
        connection.sendall(head.encode() + tar[: 512 + 512 + 512 + 1024 + 512 + 1])
    give_up_s = time.monotonic() + 30
    found: list[str] = []
    while found != ["a", "b"]:
        assert time.monotonic() < give_up_s
        found = [one["path"] for one in json.loads(ask(served, "GET", f"/datasets/{dataset}/files")[1])["files"]]


def test_the_limit_of_a_file_holds_for_each_of_a_batch(tmp_path: Path) -> None:
    """And not for all of them together, nor for the JSON of requests."""
    with client_of(tmp_path, limits=ServiceLimits(min_free_bytes=0, max_file_bytes=10)) as client:
        assert client.post("/datasets", json={"name": "a-name-of-more-bytes"}).status_code == 201
        stored = put(client, "a-name-of-more-bytes", tar_bytes({"a": b"x" * 10, "b": b"x" * 11, "c": b"x" * 9}))
        assert stored.status_code == 200
        assert [one["path"] for one in stored.json()["files"]] == ["a", "c"]
        assert [(one["path"], one["status"]) for one in stored.json()["failed"]] == [("b", 413)]
