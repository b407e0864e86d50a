"""Requests for datasets: each row of the table, on each kind of store."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.service.clients import all_files, ask, below, client_of, digest_field, in_tar, new_dataset, tar_bytes
from tests.support.shard_places import Place
from torchdata_remote.service.server.limits import ServiceLimits

CSV = {"Content-Type": "application/octet-stream", "Content-Disposition": 'attachment; filename="my_file.csv"'}


def test_datasets_are_listed_sorted(client: TestClient) -> None:
    """GET /datasets: none, then each that was made, by name and location."""
    assert client.get("/datasets").json() == {"datasets": []}
    for name in ("b", "a.b", "a", "Z-1_2"):
        assert client.post("/datasets", json={"name": name}).status_code == 201
    told = client.get("/datasets")
    assert told.status_code == 200
    assert told.json() == {
        "datasets": [{"name": name, "location": f"/dataset/{name}"} for name in ("Z-1_2", "a", "a.b", "b")]
    }


def test_a_dataset_is_made_once(client: TestClient) -> None:
    """POST /datasets: 201 with its Location, then 409; also once it has files."""
    made = client.post("/datasets", json={"name": "my_dataset"})
    assert (made.status_code, made.headers["location"]) == (201, "/dataset/my_dataset")
    assert made.json() == {"name": "my_dataset", "location": "/dataset/my_dataset"}
    assert client.get(made.headers["location"]).status_code == 200
    client.put("/datasets/my_dataset/files/a", content=b"1")
    again = client.post("/datasets", json={"name": "my_dataset"})
    assert again.status_code == 409
    assert "my_dataset" in again.json()["error"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"name": "../up"}', "application/json", 400),
        (b'{"name": ""}', "application/json", 400),
        (b'{"name": 1}', "application/json", 400),
        (b'{"name": "x.torchdata_remote-partial"}', "application/json", 400),
        (b'{"name": "\\ud800"}', "application/json", 400),
        (b'{"name": "a", "color": "red"}', "application/json", 400),
        (b'["a"]', "application/json", 400),
        (b"not JSON", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 60_000, "application/json", 400),
        (b"", "application/json", 400),
        (b'{"name": "' + b"a" * 70_000 + b'"}', "application/json", 413),
        (b"name=a", "application/x-www-form-urlencoded", 415),
        (b'{"name": "a"}', "text/plain", 415),
    ],
)
def test_what_cannot_become_a_dataset(local: TestClient, body: bytes, kind: str, status: int) -> None:
    """POST /datasets: 400, 413 and 415 say what was expected, in JSON, and nothing is made."""
    answer = local.post("/datasets", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert local.get("/datasets").json() == {"datasets": []}


def test_one_file_comes_as_it_is(client: TestClient, dataset: str) -> None:
    """PUT and GET /datasets/{name}: the issue's own example; ranges, ETag and conditions work on it."""
    stored = client.put(f"/datasets/{dataset}", content=b"a,b\n1,2\n", headers=CSV)
    assert stored.status_code == 200
    told = stored.json()
    assert told["path"] == "my_file.csv"
    assert told["location"] == f"/dataset/{dataset}/files/my_file.csv"
    assert told["sha256"] == hashlib.sha256(b"a,b\n1,2\n").hexdigest()
    got = client.get(f"/datasets/{dataset}")
    assert got.content == b"a,b\n1,2\n"
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"] == 'attachment; filename="my_file.csv"'
    assert got.headers["etag"] == stored.headers["etag"] == told["etag"]
    part = client.get(f"/datasets/{dataset}", headers={"Range": "bytes=2-3", "If-Match": told["etag"]})
    assert (part.status_code, part.content) == (206, b"b\n")
    assert client.get(f"/datasets/{dataset}", headers={"If-Match": '"x"'}).status_code == 412
    assert client.get(f"/datasets/{dataset}", headers={"If-None-Match": told["etag"]}).status_code == 304


@pytest.mark.parametrize(
    ("content", "extension"),
    [(b"\x89PNG\r\n\x1a\n...", "png"), (b"PK\3\4...", "zip"), (b"some words", "txt"), (b"\0\1", "bin"), (b"", "bin")],
)
def test_a_file_without_a_name_gets_one(client: TestClient, dataset: str, content: bytes, extension: str) -> None:
    """PUT /datasets/{name} without Content-Disposition: a name from the content, the same each time."""
    for _ in range(2):
        told = client.put(f"/datasets/{dataset}", content=content).json()
        assert told["path"] == f"{hashlib.sha256(content).hexdigest()[:16]}.{extension}"
    assert all_files(client, dataset) == [told["path"]]
    assert client.get(f"/dataset/{dataset}").content == content


def test_many_files_come_as_a_tar(client: TestClient, dataset: str) -> None:
    """GET /datasets/{name}: a tar with all files, byte for byte; of an empty dataset, an empty one."""
    assert in_tar(client.get(f"/datasets/{dataset}").content) == {}
    files = {"a": b"1", "cat/" + "x" * 200 + ".jpg": b"2" * 3_000_000, "cat/é.txt": b"", "z": b"3" * 512}
    for path, data in files.items():
        assert client.put(f"/datasets/{dataset}/files/{path}", content=data).status_code == 200
    got = client.get(f"/datasets/{dataset}")
    assert got.status_code == 200
    assert got.headers["content-disposition"] == f'attachment; filename="{dataset}.tar"'
    assert list(in_tar(got.content)) == sorted(files)
    assert in_tar(got.content) == files
    assert client.head(f"/datasets/{dataset}").headers["content-disposition"] == got.headers["content-disposition"]


@pytest.mark.parametrize("num_files", [0, 1, 2, 3])
def test_one_file_is_told_from_several(client: TestClient, dataset: str, num_files: int) -> None:
    """Only a dataset of exactly one file is that file, however the store marks folders."""
    for number in range(num_files):
        client.put(f"/datasets/{dataset}/files/{number}.txt", content=b"x")
    filename = "0.txt" if num_files == 1 else f"{dataset}.tar"
    assert client.get(f"/datasets/{dataset}").headers["content-disposition"] == f'attachment; filename="{filename}"'


def test_a_dataset_is_removed_with_its_files(client: TestClient, dataset: str, place: Place) -> None:
    """DELETE /datasets/{name}: 204, then 404; nothing of it is left, and its name can be used again."""
    for path in ("a", "b/c", "b/d/e"):
        client.put(f"/datasets/{dataset}/files/{path}", content=b"1")
    assert client.delete(f"/datasets/{dataset}").status_code == 204
    assert client.delete(f"/datasets/{dataset}").status_code == 404
    assert client.get("/datasets").json() == {"datasets": []}
    assert [path for path in place.files() if "serving.lock" not in path] == []
    assert client.post("/datasets", json={"name": dataset}).status_code == 201
    assert all_files(client, dataset) == []


def test_an_archive_becomes_files(client: TestClient, dataset: str) -> None:
    """PUT /datasets/{name}?unpack=1: what was in the archive is there, and counted."""
    files = {"cat/1.jpg": b"1", "dog/2.jpg": b"22", "x.txt": b""}
    answer = client.put(f"/datasets/{dataset}?unpack=1", content=tar_bytes(files))
    assert (answer.status_code, answer.json()) == (
        200,
        {"name": dataset, "num_files": 3, "num_bytes": 3, "num_skipped": 0},
    )
    assert all_files(client, dataset) == sorted(files)
    assert in_tar(client.get(f"/datasets/{dataset}").content) == files


@pytest.mark.parametrize("path", ["", "?unpack=1", "/files", "/files/a", "/files/a?upload=12345678", "/summary"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_an_unknown_dataset(client: TestClient, method: str, path: str) -> None:
    """404 in JSON, whatever is asked of it; or 405 with Allow where the method is not known there."""
    headers = {"Content-Range": "bytes 0-0/1"} if "upload=" in path else {}
    content = b"1" if method == "PUT" else None
    answer = client.request(method, f"/datasets/nobody{path}", content=content, headers=headers)
    if answer.status_code == 405:
        assert answer.headers["allow"]
        assert path in ("/files", "/summary")
    else:
        assert answer.status_code == 404
    if method != "HEAD":
        assert set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/datasets", "GET, HEAD, POST"),
        ("PATCH", "/datasets", "GET, HEAD, POST"),
        ("POST", "/datasets/a", "DELETE, GET, HEAD, PUT"),
        ("OPTIONS", "/datasets/a/files/b", "DELETE, GET, HEAD, PUT"),
        ("POST", "/datasets/a/files", "GET, HEAD"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("PUT", "/", "GET, HEAD"),
    ],
)
def test_methods_that_are_not_known(local: TestClient, method: str, path: str, allowed: str) -> None:
    """405 says which there are."""
    answer = local.request(method, path)
    assert answer.status_code == 405
    assert sorted(answer.headers["allow"].split(", ")) == sorted(allowed.split(", "))
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("path", ["/nothing", "/datasets/", "/datasets/a/b", "/page/x", "/datasets/a/files/b/../c"])
def test_addresses_that_are_not_known(local: TestClient, path: str) -> None:
    """404, or 400, in JSON."""
    answer = local.get(path)
    assert answer.status_code in (400, 404)
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    "path", ["", "/DATASET", "/DATASET/files", "/DATASET/files/a.txt", "/DATASET/summary", "/../healthz"]
)
def test_the_alias(local: TestClient, dataset: str, path: str) -> None:
    """``/dataset`` is ``/datasets``, in all addresses below it."""
    local.put(f"/dataset/{dataset}/files/a.txt", content=b"x")
    path = path.replace("DATASET", dataset)
    one, other = local.get(f"/dataset{path}"), local.get(f"/datasets{path}")
    assert (one.status_code, one.content) == (other.status_code, other.content)
    assert one.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/page/app.js",
        "/healthz",
        "/metrics",
        "/openapi.json",
        "/datasets",
        "/datasets/DATASET",
        "/datasets/DATASET/files",
        "/datasets/DATASET/files/a.txt",
        "/datasets/DATASET/summary",
    ],
)
def test_head_is_get_without_a_body(local: TestClient, dataset: str, path: str) -> None:
    """The same status and headers."""
    local.put(f"/dataset/{dataset}/files/a.txt", content=b"x")
    path = path.replace("DATASET", dataset)
    head, got = local.head(path), local.get(path)
    assert head.status_code == got.status_code == 200
    if path != "/metrics":
        assert dict(head.headers) == dict(got.headers)


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", ["", "?unpack=1", "/files/a", "/files/a?upload=12345678"])
def test_forms_are_refused(local: TestClient, dataset: str, kind: str, path: str) -> None:
    """415: a form is not the file, and the answer says how to send one."""
    answer = local.put(f"/datasets/{dataset}{path}", content=b"x", headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "--data-binary" in answer.json()["error"]
    assert all_files(local, dataset) == []


@pytest.mark.parametrize(
    ("header", "path"),
    [
        ("attachment; filename=plain.csv", "plain.csv"),
        ("attachment; filename*=UTF-8''%c3%a9%20x.csv", "é x.csv"),
        ("attachment; filename=\"x.csv\"; filename*=UTF-8''y.csv", "y.csv"),
        ("attachment; FileName=x.csv", "x.csv"),
        ('attachment; filename="../x"', None),
        ('attachment; filename="a\\\\b"', None),
        ('attachment; filename=""', None),
        ("attachment; filename*=utf-8''%00", None),
        ("attachment; filename*=idna''%ff%2e%2e", None),
    ],
)
def test_the_name_in_content_disposition(local: TestClient, dataset: str, header: str, path: str | None) -> None:
    """RFC 6266's forms are read; one that is not a file's name is 400."""
    answer = local.put(f"/datasets/{dataset}", content=b"x", headers={"Content-Disposition": header})
    if path is None:
        assert answer.status_code == 400
    else:
        assert answer.json()["path"] == path


@pytest.mark.parametrize("query", ["", "?unpack=1", "/files/q/r", f"/files/q/r?upload={'u' * 8}"])
def test_a_dataset_that_is_removed_takes_no_more(served: str, served_root: Path, query: str) -> None:
    """An upload into a dataset that is removed meanwhile is 404, and does not bring the dataset back."""
    name, body = new_dataset(served), tar_bytes({"a": b"1"}) + b"\0" * 3_000_000
    headers = {}
    if "upload" in query:
        put, half = f"/datasets/{name}{query}", len(body) // 2
        headers = {"Content-Range": f"bytes 0-{half - 1}/{len(body)}"}
        assert ask(served, "PUT", put, body[:half], headers)[0] == 202
        headers, body = {"Content-Range": f"bytes {half}-{len(body) - 1}/{len(body)}"}, body[half:]

    def removing() -> Iterator[bytes]:
        yield body[:-1]
        assert ask(served, "DELETE", f"/datasets/{name}")[0] == 204
        yield body[-1:]

    status, said, _ = ask(served, "PUT", f"/datasets/{name}{query}", removing(), headers)
    assert status == 404, said
    assert ask(served, "GET", f"/datasets/{name}")[0] == 404
    assert not (served_root / name).exists()


def test_a_folder_elsewhere_that_the_owner_linked(tmp_path: Path) -> None:
    """A dataset's own folder may be a link; it is listed, read and written. Others beside it do no harm."""
    (tmp_path / "far" / "sub").mkdir(parents=True)
    (tmp_path / "far" / "sub" / "x").write_bytes(b"1")
    (tmp_path / "root").mkdir()
    os.symlink(tmp_path / "far", tmp_path / "root" / "near")
    os.symlink(tmp_path / "nowhere", tmp_path / "root" / "dangling")
    (tmp_path / "root" / "notes.txt").write_bytes(b"not a dataset")
    with client_of(tmp_path / "root") as client:
        assert [told["name"] for told in client.get("/datasets").json()["datasets"]] == ["near"]
        assert client.get("/datasets/near/files/sub/x").content == b"1"
        assert client.put("/datasets/near/files/y", content=b"2").status_code == 200
        assert all_files(client, "near") == ["sub/x", "y"]
        assert (tmp_path / "far" / "y").read_bytes() == b"2"
        for name in ("dangling", "notes.txt"):
            assert client.get(f"/datasets/{name}").status_code == 404
            assert client.post("/datasets", json={"name": name}).status_code == 409
        assert client.delete("/datasets/near").status_code == 204
        assert (tmp_path / "far" / "y").exists(), "only the link was the service's"


def test_digest_of_an_archive(local: TestClient, dataset: str) -> None:
    """Repr-Digest and Content-Digest are of the archive, and nothing is written if they differ."""
    data = tar_bytes({"a": b"1"})
    for header in ("Repr-Digest", "Content-Digest"):
        wrong = local.put(f"/datasets/{dataset}?unpack=1", content=data, headers={header: digest_field(b"")})
        assert wrong.status_code == 400
        assert all_files(local, dataset) == []
        right = local.put(f"/datasets/{dataset}?unpack=1", content=data, headers={header: digest_field(data)})
        assert right.status_code == 200
        local.delete(f"/datasets/{dataset}/files/a")


@pytest.mark.parametrize("query", ["unpack=2", "unpack=", "unpack=true"])
def test_flags_are_0_or_1(local: TestClient, dataset: str, query: str) -> None:
    """400 for what somebody may have meant otherwise."""
    assert local.put(f"/datasets/{dataset}?{query}", content=b"x").status_code == 400


@pytest.mark.parametrize("path", ["", "/files/a"])
def test_a_file_that_is_replaced_while_it_is_sent(served: str, served_root: Path, path: str) -> None:
    """The client gets an error, never a tar or a file that is short or mixed."""
    name = new_dataset(served)
    old, new = served_root / name / "a", served_root / name / "b"
    old.write_bytes(b"a" * 40_000_000)  # more than sockets keep
    new.write_bytes(b"b" * 40_000_000)
    with contextlib.closing(http.client.HTTPConnection(served, timeout=60)) as connection:
        connection.request("GET", f"/datasets/{name}{path}")
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.read(1000).count(b"a") >= 400
        os.replace(new, old)
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            answer.read()


def test_many_clients_make_one_dataset(local: TestClient) -> None:
    """One of them makes it, and the others are told so."""
    statuses: list[int] = []

    def make() -> None:
        statuses.append(local.post("/datasets", json={"name": "d"}).status_code)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201, *[409] * 7]


def test_a_body_beyond_the_limit(tmp_path: Path) -> None:
    """413, told by Content-Length or found out on the way; nothing is left of it."""
    limits = ServiceLimits(max_file_bytes=1000, min_free_bytes=0)
    with client_of(tmp_path, limits=limits) as client:
        client.post("/datasets", json={"name": "d"})
        for path in ("", "?unpack=1", "/files/a"):
            assert client.put(f"/datasets/d{path}", content=b"x" * 1001).status_code == 413
            assert client.put(f"/datasets/d{path}", content=iter([b"x" * 600] * 2)).status_code == 413
        assert below(tmp_path) == set()
        assert client.put("/datasets/d/files/a", content=b"x" * 1000).status_code == 200


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """507 before a byte is taken, where less than the chosen room would be left."""
    with client_of(tmp_path, limits=ServiceLimits(min_free_bytes=1 << 60)) as client:
        client.post("/datasets", json={"name": "d"})
        for path in ("", "?unpack=1", "/files/a", "/files/b?upload=12345678"):
            headers = {"Content-Range": "bytes 0-0/1"} if "upload" in path else {}
            assert client.put(f"/datasets/d{path}", content=b"x", headers=headers).status_code == 507
        assert below(tmp_path) == set()
