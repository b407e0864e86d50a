"""Requests for datasets: each row of the table, on each kind of store."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.support.service_clients import all_files, ask, below, client_of, digest_field, in_tar, new_dataset, tar_bytes
from tests.support.shard_places import Place
from tests.support.small_disk import fill_blocks, fill_inodes, small_disk
from torchdata_remote.errors import StorageError
from torchdata_remote.service.server.limits import ServiceLimits

CSV = {"Content-Type": "application/octet-stream", "Content-Disposition": 'attachment; filename="my_file.csv"'}


def test_datasets_are_listed_sorted(client: TestClient) -> None:
    """By name, with location."""
    assert client.get("/datasets").json() == {"datasets": []}
    for name in ("b", "a.b", "a", "Z-1_2"):
        assert client.post("/datasets", json={"name": name}).status_code == 201
    response = client.get("/datasets")
    assert response.status_code == 200
    assert response.json() == {
        "datasets": [{"name": name, "location": f"/datasets/{name}"} for name in ("Z-1_2", "a", "a.b", "b")]
    }


def test_a_dataset_is_created_once(client: TestClient) -> None:
    """201 with Location, then 409, also if it has files."""
    made = client.post("/datasets", json={"name": "my_dataset"})
    assert (made.status_code, made.headers["location"]) == (201, "/datasets/my_dataset")
    assert made.json() == {"name": "my_dataset", "location": "/datasets/my_dataset"}
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
def test_invalid_requests_create_no_dataset(shared: TestClient, body: bytes, kind: str, status: int) -> None:
    """400, 413 and 415 say in JSON what was expected."""
    before = shared.get("/datasets").json()
    answer = shared.post("/datasets", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert shared.get("/datasets").json() == before


def test_a_dataset_of_one_file_is_sent_as_that_file(client: TestClient, dataset: str) -> None:
    """With its name; ranges, ETag and preconditions work on it."""
    stored = client.put(f"/datasets/{dataset}", content=b"a,b\n1,2\n", headers=CSV)
    assert stored.status_code == 200
    metadata = stored.json()
    assert metadata["path"] == "my_file.csv"
    assert metadata["location"] == f"/datasets/{dataset}/files/my_file.csv"
    assert metadata["sha256"] == hashlib.sha256(b"a,b\n1,2\n").hexdigest()
    got = client.get(f"/datasets/{dataset}")
    assert got.content == b"a,b\n1,2\n"
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"] == 'attachment; filename="my_file.csv"'
    assert got.headers["etag"] == stored.headers["etag"] == metadata["etag"]
    part = client.get(f"/datasets/{dataset}", headers={"Range": "bytes=2-3", "If-Match": metadata["etag"]})
    assert (part.status_code, part.content) == (206, b"b\n")
    assert client.get(f"/datasets/{dataset}", headers={"If-Match": '"x"'}).status_code == 412
    assert client.get(f"/datasets/{dataset}", headers={"If-None-Match": metadata["etag"]}).status_code == 304


def test_a_file_without_a_name_is_named_by_its_content(client: TestClient) -> None:
    """PUT /datasets/{name} without Content-Disposition: equal content gets an equal name."""
    contents = {b"\x89PNG\r\n\x1a\n...": "png", b"PK\3\4...": "zip", b"some words": "txt", b"\0\1": "bin", b"": "bin"}
    for number, (content, extension) in enumerate(contents.items()):
        assert client.post("/datasets", json={"name": f"d{number}"}).status_code == 201
        for _ in range(2):
            stored = client.put(f"/datasets/d{number}", content=content).json()
            assert stored["path"] == f"{hashlib.sha256(content).hexdigest()[:16]}.{extension}"
        assert all_files(client, f"d{number}") == [stored["path"]]
        assert client.get(f"/dataset/d{number}").content == content


def test_a_dataset_of_many_files_is_sent_as_a_tar(client: TestClient, dataset: str) -> None:
    """Byte for byte; an empty dataset is an empty tar."""
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


def test_only_a_dataset_of_one_file_is_sent_as_that_file(client: TestClient, dataset: str) -> None:
    """Others are sent as a tar, however the store marks folders."""
    for num_files in range(4):
        filename = "0.txt" if num_files == 1 else f"{dataset}.tar"
        disposition = client.get(f"/datasets/{dataset}").headers["content-disposition"]
        assert disposition == f'attachment; filename="{filename}"'
        client.put(f"/datasets/{dataset}/files/{num_files}.txt", content=b"x")


def test_a_dataset_is_removed_with_its_files(client: TestClient, dataset: str, place: Place) -> None:
    """204, then 404; nothing is left, and the name can be used again."""
    for path in ("a", "b/c", "b/d/e"):
        client.put(f"/datasets/{dataset}/files/{path}", content=b"1")
    assert client.delete(f"/datasets/{dataset}").status_code == 204
    assert client.delete(f"/datasets/{dataset}").status_code == 404
    assert client.get("/datasets").json() == {"datasets": []}
    assert [path for path in place.files() if "serving.lock" not in path] == []
    assert client.post("/datasets", json={"name": dataset}).status_code == 201
    assert all_files(client, dataset) == []


def test_an_uploaded_archive_is_unpacked(client: TestClient, dataset: str) -> None:
    """Its files are stored and counted."""
    files = {"cat/1.jpg": b"1", "dog/2.jpg": b"22", "x.txt": b""}
    answer = client.put(f"/datasets/{dataset}?unpack=1", content=tar_bytes(files))
    assert (answer.status_code, answer.json()) == (
        200,
        {"name": dataset, "num_files": 3, "num_bytes": 3, "num_skipped": 0},
    )
    assert all_files(client, dataset) == sorted(files)
    assert in_tar(client.get(f"/datasets/{dataset}").content) == files


def test_requests_about_an_unknown_dataset_are_404(client: TestClient) -> None:
    """In JSON; or 405 with Allow where the path does not support the method."""
    paths = ["", "?unpack=1", "/files", "/files/a", "/files/a?upload=12345678", "/summary"]
    for method, path in itertools.product(["GET", "HEAD", "PUT", "DELETE"], paths):
        headers = {"Content-Range": "bytes 0-0/1"} if "upload=" in path else {}
        content = b"1" if method == "PUT" else None
        answer = client.request(method, f"/datasets/nobody{path}", content=content, headers=headers)
        if answer.status_code == 405:
            assert answer.headers["allow"]
            assert path in ("/files", "/summary")
        else:
            assert answer.status_code == 404, (method, path)
        if method != "HEAD":
            assert set(answer.json()) == {"error"}, (method, path)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/datasets", "GET, HEAD, POST"),
        ("PATCH", "/datasets", "GET, HEAD, POST"),
        ("POST", "/datasets/a", "DELETE, GET, HEAD, PUT"),
        ("OPTIONS", "/datasets/a/files/b", "DELETE, GET, HEAD, PUT"),
        ("DELETE", "/datasets/a/files", "GET, HEAD, POST, PUT"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("PUT", "/", "GET, HEAD"),
    ],
)
def test_unsupported_methods_are_405(shared: TestClient, method: str, path: str, allowed: str) -> None:
    """Allow lists the supported ones."""
    answer = shared.request(method, path)
    assert answer.status_code == 405
    assert sorted(answer.headers["allow"].split(", ")) == sorted(allowed.split(", "))
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("path", ["/nothing", "/datasets/", "/datasets/a/b", "/page/x", "/datasets/a/files/b/../c"])
def test_unknown_paths_are_404(shared: TestClient, path: str) -> None:
    """Or 400, in JSON."""
    answer = shared.get(path)
    assert answer.status_code in (400, 404)
    assert set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    "path", ["", "/DATASET", "/DATASET/files", "/DATASET/files/a.txt", "/DATASET/summary", "/../healthz"]
)
def test_dataset_is_an_alias_of_datasets(shared: TestClient, dataset: str, path: str) -> None:
    """In all paths."""
    shared.put(f"/dataset/{dataset}/files/a.txt", content=b"x")
    path = path.replace("DATASET", dataset)
    one, other = shared.get(f"/dataset{path}"), shared.get(f"/datasets{path}")
    assert (one.status_code, one.content) == (other.status_code, other.content)
    assert one.status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/page/app.js",
        "/page/sha256.js",
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
def test_head_is_get_without_a_body(shared: TestClient, dataset: str, path: str) -> None:
    """The same status and headers."""
    shared.put(f"/dataset/{dataset}/files/a.txt", content=b"x")
    path = path.replace("DATASET", dataset)
    head, got = shared.head(path), shared.get(path)
    assert head.status_code == got.status_code == 200
    if path != "/metrics":
        assert dict(head.headers) == dict(got.headers)


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", ["", "?unpack=1", "/files/a", "/files/a?upload=12345678"])
def test_forms_are_refused(shared: TestClient, dataset: str, kind: str, path: str) -> None:
    """415 says how to send a file instead."""
    answer = shared.put(f"/datasets/{dataset}{path}", content=b"x", headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "--data-binary" in answer.json()["error"]
    assert all_files(shared, dataset) == []


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
        ("attachment; filename*=iso-8859-1'en'%e9.csv", "é.csv"),
        ("attachment; filename*=UTF-8''%e9.csv", None),
        ("attachment; filename*=y.csv", None),
        ('attachment; filename="x.csv', None),
        ('attachment; filename="x.csv" y', None),
        ("attachment; filename=x.csv; filename=y.csv", None),
        ('attachment ; FILENAME = "a\\"b.csv" ;', 'a"b.csv'),
    ],
)
def test_content_disposition_names_the_file(shared: TestClient, dataset: str, header: str, path: str | None) -> None:
    """In all forms of RFC 6266; 400 for an invalid name."""
    answer = shared.put(f"/datasets/{dataset}", content=b"x", headers={"Content-Disposition": header})
    if path is None:
        assert answer.status_code == 400
    else:
        assert answer.json()["path"] == path


@pytest.mark.parametrize("query", ["", "?unpack=1", "/files/q/r", f"/files/q/r?upload={'u' * 8}"])
def test_an_upload_does_not_restore_a_removed_dataset(served: str, served_root: Path, query: str) -> None:
    """It is 404 if the dataset is removed meanwhile."""
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

    status, response, _ = ask(served, "PUT", f"/datasets/{name}{query}", removing(), headers)
    assert status == 404, response
    assert ask(served, "GET", f"/datasets/{name}")[0] == 404
    assert not (served_root / name).exists()


def test_a_dataset_folder_may_be_a_link(tmp_path: Path) -> None:
    """It is listed, read and written. Other entries of the root are ignored."""
    (tmp_path / "far" / "sub").mkdir(parents=True)
    (tmp_path / "far" / "sub" / "x").write_bytes(b"1")
    (tmp_path / "root").mkdir()
    os.symlink(tmp_path / "far", tmp_path / "root" / "near")
    os.symlink(tmp_path / "nowhere", tmp_path / "root" / "dangling")
    (tmp_path / "root" / "notes.txt").write_bytes(b"not a dataset")
    with client_of(tmp_path / "root") as client:
        assert [entry["name"] for entry in client.get("/datasets").json()["datasets"]] == ["near"]
        assert client.get("/datasets/near/files/sub/x").content == b"1"
        assert client.put("/datasets/near/files/y", content=b"2").status_code == 200
        assert all_files(client, "near") == ["sub/x", "y"]
        assert (tmp_path / "far" / "y").read_bytes() == b"2"
        for name in ("dangling", "notes.txt"):
            assert client.get(f"/datasets/{name}").status_code == 404
            assert client.post("/datasets", json={"name": name}).status_code == 409
        assert client.delete("/datasets/near").status_code == 204
        assert (tmp_path / "far" / "y").exists(), "only the link was the service's"


def test_an_archive_with_a_wrong_digest_is_refused(shared: TestClient, dataset: str) -> None:
    """Nothing of it is written."""
    data = tar_bytes({"a": b"1"})
    for header in ("Repr-Digest", "Content-Digest"):
        wrong = shared.put(f"/datasets/{dataset}?unpack=1", content=data, headers={header: digest_field(b"")})
        assert wrong.status_code == 400
        assert all_files(shared, dataset) == []
        right = shared.put(f"/datasets/{dataset}?unpack=1", content=data, headers={header: digest_field(data)})
        assert right.status_code == 200
        shared.delete(f"/datasets/{dataset}/files/a")


@pytest.mark.parametrize("query", ["unpack=2", "unpack=", "unpack=true"])
def test_boolean_parameters_are_0_or_1(shared: TestClient, dataset: str, query: str) -> None:
    """400 for other values."""
    assert shared.put(f"/datasets/{dataset}?{query}", content=b"x").status_code == 400


@pytest.mark.parametrize("kind", ["archive", "file", "range"])
def test_a_download_of_a_replaced_file_is_never_mixed(served: str, served_root: Path, kind: str) -> None:
    """A file was opened, and is sent as it was; of a tar the client sees that it ends too early."""
    name = new_dataset(served)
    old, new = served_root / name / "a", served_root / name / "b"
    old.write_bytes(b"a" * 40_000_000)  # more than sockets keep
    new.write_bytes(b"b" * 40_000_000)
    with contextlib.closing(http.client.HTTPConnection(served, timeout=60)) as connection:
        path = f"/datasets/{name}" if kind == "archive" else f"/datasets/{name}/files/a"
        connection.request("GET", path, headers={"Range": "bytes=1-"} if kind == "range" else {})
        answer = connection.getresponse()
        assert answer.status == (206 if kind == "range" else 200)
        assert answer.read(1000).count(b"a") >= 400
        os.replace(new, old)
        if kind == "archive":
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                answer.read()
        else:
            assert answer.read() == b"a" * (int(answer.headers["Content-Length"]) - 1000)


def test_of_concurrent_creations_one_succeeds(local: TestClient) -> None:
    """The others get 409."""
    statuses: list[int] = []

    def make() -> None:
        statuses.append(local.post("/datasets", json={"name": "d"}).status_code)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [201, *[409] * 7]


def test_a_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    """413, by Content-Length or while it is received; nothing is left of it."""
    limits = ServiceLimits(max_file_bytes=1000, min_free_bytes=0)
    with client_of(tmp_path, limits=limits) as client:
        client.post("/datasets", json={"name": "d"})
        for path in ("", "?unpack=1", "/files/a"):
            assert client.put(f"/datasets/d{path}", content=b"x" * 1001).status_code == 413
            assert client.put(f"/datasets/d{path}", content=iter([b"x" * 600] * 2)).status_code == 413
        assert below(tmp_path) == set()
        assert client.put("/datasets/d/files/a", content=b"x" * 1000).status_code == 200


def test_uploads_to_a_full_disk_are_refused(tmp_path: Path) -> None:
    """507 before the body is read, if less than the reserved space would be left."""
    with client_of(tmp_path, limits=ServiceLimits(min_free_bytes=1 << 60)) as client:
        client.post("/datasets", json={"name": "d"})
        for path in ("", "?unpack=1", "/files/a", "/files/b?upload=12345678"):
            headers = {"Content-Range": "bytes 0-0/1"} if "upload" in path else {}
            assert client.put(f"/datasets/d{path}", content=b"x", headers=headers).status_code == 507
        assert below(tmp_path) == set()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT"])
def test_json_ends_with_a_line_feed(shared: TestClient, dataset: str, method: str) -> None:
    """Of documents, errors and refusals, so that a shell's prompt is on a line of its own."""
    for path in ("/datasets", f"/datasets/{dataset}/files", f"/datasets/{dataset}/files/a", "/nothing", "/healthz"):
        for host in ("localhost", "evil.example"):
            response = shared.request(method, path, content=b"1", headers={"Host": host})
            if response.headers.get("content-type") == "application/json":
                response.json()
                assert response.content.endswith(b"}\n")
            else:
                assert response.content == b""


def test_messages_do_not_show_where_the_datasets_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They begin with the dataset's name; the log has the whole URL."""
    root = tmp_path / "root"
    with client_of(root) as client, caplog.at_level("INFO", "torchdata_remote"):
        name = "pets"
        assert client.post("/datasets", json={"name": name}).status_code == 201

        def refused(*arguments: object, **options: object) -> None:
            raise StorageError(f"file://{root}/{name}/cat/1.jpg: [Errno 5] I/O error: '{root}/{name}/cat/1.jpg'")

        monkeypatch.setattr("torchdata_remote.service.server.datasets.dataset_root.DatasetRoot.stat", refused)
        response = client.get(f"/datasets/{name}/files/cat/1.jpg")
    assert response.status_code == 502
    assert response.json() == {"error": f"{name}/cat/1.jpg: [Errno 5] I/O error: '{name}/cat/1.jpg'"}
    assert f"file://{root}/{name}/cat/1.jpg" in caplog.text


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
@pytest.mark.parametrize("fill", [fill_blocks, fill_inodes])
def test_everything_can_be_deleted_on_a_full_disk(tmp_path: Path, kind: str, fill: Callable[[Path], None]) -> None:
    """A file, the parts of an upload, a dataset, and one that is a link: nothing is created for that."""
    with small_disk(tmp_path, kind) as disk:
        (disk / "far").mkdir()
        (disk / "far" / "kept").write_bytes(b"1")
        with client_of(disk / "root") as client:
            client.post("/datasets", json={"name": "d"})
            for path in ("a/b/c", "e"):
                assert client.put(f"/datasets/d/files/{path}", content=b"x").status_code == 200
            upload = "/datasets/d/files/big?upload=12345678"
            assert client.put(upload, content=b"x", headers={"Content-Range": "bytes 0-0/2"}).status_code == 202
            os.symlink(disk / "far", disk / "root" / "near")
            fill(disk)
            assert client.put("/datasets/d/files/new", content=b"x" * 5000).status_code == 507
            for path in ("/datasets/d/files/a/b/c", upload, "/datasets/d", "/datasets/near"):
                assert client.delete(path).status_code == 204, path
                fill(disk)  # what was freed
            assert client.get("/datasets").json() == {"datasets": []}
        assert below(disk / "root") == set()
        assert (disk / "far" / "kept").read_bytes() == b"1"


def test_a_dataset_is_removed_where_even_a_new_name_needs_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder on ext4 whose last block is full: then in place."""

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with client_of(tmp_path) as client:
        client.post("/datasets", json={"name": "d"})
        client.put("/datasets/d/files/a/b", content=b"x")
        with monkeypatch.context() as patched:
            patched.setattr("torchdata_remote.storage.local.store.os.rename", full)
            assert client.delete("/datasets/d").status_code == 204
        assert client.get("/datasets").json() == {"datasets": []}
        assert below(tmp_path) == set()
