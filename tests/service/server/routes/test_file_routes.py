"""Requests for single files: paths, ranges, conditions, digests, listings."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import socket
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.support.service_clients import all_files, ask, below, client_of, digest_field, new_dataset
from tests.support.shard_places import Place
from torchdata_remote.service.server.routes import file_routes

DATA = bytes(range(256)) * 3


def test_a_file_is_stored_sent_and_removed(client: TestClient, dataset: str) -> None:
    """PUT reports its metadata; GET and HEAD have equal headers."""
    path = f"/datasets/{dataset}/files/cat/my file.csv"
    put = client.put(path, content=DATA)
    assert put.status_code == 200
    metadata = put.json()
    assert set(metadata) == {"path", "size", "etag", "modified", "sha256", "location"}
    assert (metadata["path"], metadata["size"]) == ("cat/my file.csv", len(DATA))
    assert metadata["location"] == f"/datasets/{dataset}/files/cat/my%20file.csv"
    assert metadata["sha256"] == hashlib.sha256(DATA).hexdigest()
    assert put.headers["repr-digest"] == digest_field(DATA)
    got, head = client.get(metadata["location"]), client.head(metadata["location"])
    assert (got.status_code, got.content) == (200, DATA)
    assert (head.status_code, head.content) == (200, b"")
    assert dict(got.headers) == dict(head.headers)
    assert got.headers["etag"] == put.headers["etag"] == metadata["etag"]
    assert got.headers["accept-ranges"] == "bytes"
    assert got.headers["content-length"] == str(len(DATA))
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"] == 'attachment; filename="my file.csv"'
    assert got.headers["last-modified"].endswith("GMT")
    listed = client.get(f"/datasets/{dataset}/files").json()["files"]
    assert listed == [{name: metadata[name] for name in ("path", "size", "etag", "modified")}]
    assert client.delete(path).status_code == 204
    for method in ("GET", "HEAD", "DELETE"):
        assert client.request(method, path).status_code == 404
    assert all_files(client, dataset) == []


def test_a_file_can_be_replaced(client: TestClient, dataset: str) -> None:
    """The second PUT gives another etag; an empty file is a file."""
    path = f"/datasets/{dataset}/files/a"
    first = client.put(path, content=b"1").headers["etag"]
    second = client.put(path, content=b"").headers["etag"]
    assert first != second
    got = client.get(path)
    assert (got.status_code, got.content, got.headers["etag"]) == (200, b"", second)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=5-", (5, 768)),
        ("bytes=-5", (763, 768)),
        ("bytes=-9999", (0, 768)),
        ("bytes=700-9999", (700, 768)),
        ("bytes=768-", None),
        ("bytes=-0", None),
        ("bytes=9-5", (0, 0)),
        ("lines=1-2", (0, 0)),
        ("bytes=1-2,4-5", (0, 0)),
        ("bytes=", (0, 0)),
        ("bytes=\u0661-\u0662", (0, 0)),
        ("bytes=0-99999999999999999999999", (0, 0)),
    ],
)
def test_range_requests(shared: TestClient, dataset: str, header: str, expected: tuple[int, int] | None) -> None:
    """206 with the bytes; 416 without any; 200 for a header that is ignored."""
    path = f"/datasets/{dataset}/files/a"
    shared.put(path, content=DATA)
    got = shared.get(path, headers={b"Range": header.encode()})
    if expected is None:
        assert got.status_code == 416
        assert got.headers["content-range"] == "bytes */768"
        assert set(got.json()) == {"error"}
    elif expected == (0, 0):
        assert (got.status_code, got.content) == (200, DATA)
    else:
        start, end = expected
        assert (got.status_code, got.content) == (206, DATA[start:end])
        assert got.headers["content-range"] == f"bytes {start}-{end - 1}/768"
        assert got.headers["content-length"] == str(end - start)


@settings(max_examples=60)
@given(data=st.data(), size=st.integers(0, 40))
def test_any_range_is_a_slice(shared: TestClient, dataset: str, data: st.DataObject, size: int) -> None:
    """For all first and last bytes."""
    path = f"/datasets/{dataset}/files/{size}"
    content = bytes(range(size))
    shared.put(path, content=content)
    first = data.draw(st.integers(0, 50))
    last = data.draw(st.none() | st.integers(first, 60))
    got = shared.get(path, headers={"Range": f"bytes={first}-{'' if last is None else last}"})
    expected = content[first : None if last is None else last + 1]
    assert (got.status_code, got.content if expected else b"") == (206 if expected else 416, expected)


def test_preconditions_of_reads(shared: TestClient, dataset: str) -> None:
    """If-Match, If-None-Match and If-Range as in RFC 9110."""
    path = f"/datasets/{dataset}/files/a"
    etag = shared.put(path, content=DATA).headers["etag"]
    for header, value, status in [
        ("If-Match", etag, 200),
        ("If-Match", "*", 200),
        ("If-Match", f'"x", {etag}', 200),
        ("If-Match", f"W/{etag}", 412),
        ("If-Match", '"x"', 412),
        ("If-None-Match", etag, 304),
        ("If-None-Match", f"W/{etag}", 304),
        ("If-None-Match", "*", 304),
        ("If-None-Match", '"x"', 200),
    ]:
        for method in ("GET", "HEAD"):
            assert shared.request(method, path, headers={header: value}).status_code == status, (method, header, value)
    not_modified = shared.get(path, headers={"If-None-Match": etag})
    assert not_modified.content == b""
    assert not_modified.headers["etag"] == etag
    for value, status in [(etag, 206), ('"x"', 200), (f"W/{etag}", 200), ("Sat, 01 Jan 2000 00:00:00 GMT", 200)]:
        assert shared.get(path, headers={"Range": "bytes=1-2", "If-Range": value}).status_code == status
    gone = shared.get(f"/datasets/{dataset}/files/gone", headers={"If-Match": "*"})
    assert gone.status_code in (404, 412)


def test_preconditions_of_writes(client: TestClient, dataset: str) -> None:
    """PUT and DELETE change only the version that the client has seen."""
    path = f"/datasets/{dataset}/files/a"
    assert client.put(path, content=b"1", headers={"If-Match": "*"}).status_code == 412
    assert client.put(path, content=b"1", headers={"If-Match": '"x"'}).status_code == 412
    assert client.get(path).status_code == 404
    first = client.put(path, content=b"1", headers={"If-None-Match": "*"})
    assert first.status_code == 200
    assert client.put(path, content=b"2", headers={"If-None-Match": "*"}).status_code == 412
    assert client.put(path, content=b"2", headers={"If-None-Match": first.headers["etag"]}).status_code == 412
    assert client.get(path).content == b"1"
    other = client.put(path, content=b"22", headers={"If-None-Match": '"another"'})
    assert other.status_code == 200, "the existing file is not the excluded version"
    assert client.put(path, content=b"3", headers={"If-Match": first.headers["etag"]}).status_code == 412
    assert client.delete(path, headers={"If-Match": first.headers["etag"]}).status_code == 412
    assert client.get(path).content == b"22"
    third = client.put(path, content=b"333", headers={"If-Match": other.headers["etag"]})
    assert third.status_code == 200
    assert client.delete(path, headers={"If-Match": third.headers["etag"]}).status_code == 204


def together(*calls: Callable[[], object]) -> None:
    """Call all of them at once, each in a thread."""
    barrier = threading.Barrier(len(calls))

    def call(one: Callable[[], object]) -> None:
        barrier.wait()
        one()

    threads = [threading.Thread(target=call, args=(one,)) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("condition", ["If-Match", "If-None-Match"])
def test_of_concurrent_conditional_writes_one_succeeds(shared: TestClient, dataset: str, condition: str) -> None:
    """No update is lost."""
    path = f"/datasets/{dataset}/files/a"
    etag = shared.put(path, content=b"0").headers["etag"] if condition == "If-Match" else "*"
    answers: dict[int, int] = {}

    def write(number: int) -> None:
        answer = shared.put(path, content=b"%d" % number, headers={condition: etag})
        answers[answer.status_code if answer.status_code != 200 else 1000 + number] = number

    together(*[lambda number=number: write(number) for number in range(8)])
    winners = [number for status, number in answers.items() if status >= 1000]
    assert len(winners) == 1
    assert shared.get(path).content == b"%d" % winners[0]


def test_concurrent_writes_never_mix(client: TestClient, dataset: str, place: Place) -> None:
    """Body, etag and digest of a response belong together."""
    if place.url.startswith("memory:"):
        pytest.skip("fsspec's memory knows no versions")
    path = f"/datasets/{dataset}/files/a"
    contents = [bytes([65 + number]) * (1_000 + number) for number in range(4)]
    client.put(path, content=contents[0])
    seen: dict[str, bytes] = {}
    wrong: list[object] = []

    def write(number: int) -> None:
        for _ in range(5):
            metadata = client.put(path, content=contents[number]).json()
            if metadata.get("sha256") != hashlib.sha256(contents[number]).hexdigest():
                wrong.append(metadata)
            elif metadata["size"] != len(contents[number]):
                wrong.append(("size of another's", metadata))

    def read() -> None:
        for _ in range(10):
            got = client.get(path, headers={"Want-Repr-Digest": "sha-256=1"})
            if got.status_code == 503:
                continue
            if got.status_code != 200 or got.headers["repr-digest"] != digest_field(got.content):
                wrong.append((got.status_code, got.headers, got.content[:10]))
            elif seen.setdefault(got.headers["etag"], got.content) != got.content:
                wrong.append("two contents with one etag")

    together(*[lambda number=number: write(number) for number in range(4)], read, read)
    assert wrong == []


HOSTILE = [
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/x",
    "%2e%2e%2fx",
    "a/%2e%2e/%2e%2e/x",
    "a%2f..%2f..%2fx",
    "%2fetc%2fpasswd",
    "%2f",
    "a%00b",
    "a%5cb",
    "..%5cx",
    "a%0ab",
    "a%0a",
    "a%7fb",
    "a%ffb",
    "%c0%ae%c0%ae/x",
    "%ed%a0%80",
    "a//b",
    "a/",
    "a/./b",
    "a/%2e/b",
    "x.torchdata_remote-partial",
    "a.torchdata_remote-partial/b",
    "x" * 256,
    "/".join(["x" * 250] * 4) + "/" + "y" * 100,
    "%C3%A9" * 128,
]


@pytest.mark.parametrize("path", HOSTILE)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_hostile_paths_are_refused(served: str, served_root: Path, method: str, path: str) -> None:
    """400, and nothing is read or written; sent unchanged, unlike by most clients."""
    name = new_dataset(served)
    (served_root / "x").write_bytes(b"beside")
    for query in ("", f"?upload={'u' * 8}"):
        headers = {"Content-Range": "bytes 0-0/1"} if query and method == "PUT" else {}
        target = f"/datasets/{name}/files/{path}{query}"
        status, response, _ = ask(served, method, target, b"1" if method == "PUT" else None, headers)
        assert status == 400, response
        assert response.startswith(b'{"error":')
    assert below(served_root / name) == set()
    assert (served_root / "x").read_bytes() == b"beside"


@pytest.mark.parametrize("name", ["..", ".", "%2e%2e", ".torchdata_remote", "a%00", "%ff", "-a", "a" * 129, "a%20b"])
def test_hostile_dataset_names_are_refused(served: str, name: str) -> None:
    """400, for all requests."""
    for method, rest in [("GET", ""), ("GET", "/files"), ("PUT", "/files/a"), ("PUT", ""), ("DELETE", "")]:
        body = b"1" if method == "PUT" else None
        assert ask(served, method, f"/datasets/{name}{rest}", body)[0] in (400, 404)


@pytest.mark.parametrize(
    "path",
    [
        "x" * 255,
        "/".join(["x" * 255] * 4),
        "é" * 127,
        "日本/😀.bin",
        "%20",
        "a?b#c&d=e;f+g",
        " ",
        "...",
        "..a",
        "~",
        "CON",
        "é",
        "é",
        "\u202egpj.exe",
        "files",
        "a:b",
        "'\"<>|*",
        "\U0010ffff",
        ".hidden/.too",
        "-rf",
    ],
)
def test_unusual_paths_are_accepted(shared: TestClient, dataset: str, path: str) -> None:
    """They are unchanged in listings, locations and headers."""
    if len(path.encode()) == 1023:
        path = path[:1000]  # a bucket's keys have the folder's name as well
    put = shared.put(f"/datasets/{dataset}/files/{quote(path)}", content=path.encode())
    assert put.status_code == 200, put.text
    assert put.json()["path"] == path
    assert shared.get(put.json()["location"]).content == path.encode()
    assert all_files(shared, dataset) == [path]
    disposition = shared.get(f"/datasets/{dataset}").headers["content-disposition"]
    assert disposition.startswith("attachment; filename=")
    assert (
        shared.put(f"/datasets/{dataset}", content=b"", headers={"Content-Disposition": disposition}).json()["path"]
        == path.rpartition("/")[2]
    )
    assert shared.delete(put.json()["location"]).status_code == 204


def test_unusual_paths_in_every_kind_of_store(client: TestClient, dataset: str) -> None:
    """Names that URLs, keys and listings encode differently are stored and listed as they were sent."""
    paths = sorted(["日本/😀.bin", "%20", "a?b#c&d=e;f+g", " ", "...", ".hidden/.too", "'\"<>|*", "x" * 255])
    for path in paths:
        stored = client.put(f"/datasets/{dataset}/files/{quote(path)}", content=path.encode())
        assert (stored.status_code, stored.json()["path"]) == (200, path)
        assert client.get(stored.json()["location"]).content == path.encode()
    assert all_files(client, dataset) == paths


@settings(max_examples=60)
@given(path=st.text(st.sampled_from("./\\%2eaé\0 ~"), max_size=12) | st.text(max_size=20))
def test_an_accepted_path_stays_below_the_dataset(local: TestClient, tmp_path: Path, path: str) -> None:
    """Whatever the path: 200 and a file in the dataset's folder and nowhere else, or 400 and no file at all."""
    name = f"d-{uuid.uuid4().hex[:8]}"
    local.post("/datasets", json={"name": name})
    before = below(tmp_path)
    encoded = "".join(f"%{byte:02x}" for byte in path.encode("utf-8", "surrogatepass"))  # or clients resolve the dots
    answer = local.put(f"/datasets/{name}/files/{encoded}", content=b"1")
    made = below(tmp_path) - before
    if answer.status_code == 200:
        assert made == {f"root/{name}/{path}"}
        assert local.get(f"/datasets/{name}").content == b"1"
    else:
        assert answer.status_code == 400
        assert made == set()


@pytest.mark.parametrize("path", ["a\n", "a\nb", "\n", "a/\n"])
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_a_path_with_a_line_break_is_refused(client: TestClient, dataset: str, method: str, path: str) -> None:
    """Not taken for the path without it, whose file would be replaced."""
    client.put(f"/datasets/{dataset}/files/a", content=b"before")
    answer = client.request(method, f"/datasets/{dataset}/files/{quote(path)}", content=b"1")
    assert answer.status_code == 400
    assert "line break" in answer.json()["error"]
    assert client.get(f"/datasets/{dataset}/files/a").content == b"before"


def linked(tmp_path: Path) -> Path:
    """Create a dataset, and files outside that must stay out of reach."""
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "secret").write_bytes(b"secret")
    (outside / "sub" / "secret").write_bytes(b"secret")
    folder = tmp_path / "root" / "d"
    (folder / "real").mkdir(parents=True)
    (folder / "real" / "x").write_bytes(b"1")
    return outside


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("file", "outside/secret", "file"),
        ("folder", "outside", "folder/secret"),
        ("folder", "outside", "folder/sub/secret"),
        ("folder", "outside", "folder/new"),
        ("real/deep", "outside/sub", "real/deep/secret"),
        ("dangling", "outside/new", "dangling"),
        ("loop", "root/d/loop", "loop"),
        ("up", "root", "up/d/real/x"),
        ("inside", "root/d/real/x", "inside"),
    ],
)
def test_links_are_never_followed(tmp_path: Path, link: str, target: str, path: str) -> None:
    """403 for reading, writing, removing and listing through one; what it points to stays as it was."""
    outside = linked(tmp_path)
    os.symlink(tmp_path / target, tmp_path / "root" / "d" / link)
    before = {name: (outside / name).read_bytes() for name in below(outside)}
    with client_of(tmp_path / "root") as client:
        for method in ("GET", "HEAD", "DELETE"):
            assert client.request(method, f"/datasets/d/files/{path}").status_code == 403, method
        assert client.put(f"/datasets/d/files/{path}", content=b"2").status_code == 403
        part = {"Content-Range": "bytes 0-0/1"}
        assert client.put(f"/datasets/d/files/{path}?upload=12345678", content=b"2", headers=part).status_code == 403
        folder = path.rpartition("/")[0]
        for prefix in {"", link, f"{folder}/" if folder else ""}:
            query = {"prefix": prefix, "recursive": "1"}
            assert client.get("/datasets/d/files", params=query).status_code == 403, query
        for whole in ("", "/summary", "/summary?inside=0", "/sheet.png", "/files?digests=1"):
            assert client.get(f"/datasets/d{whole}").status_code == 403, whole
    assert {name: (outside / name).read_bytes() for name in below(outside)} == before


def test_a_listing_does_not_follow_links(tmp_path: Path) -> None:
    """Not in the prefix, either."""
    linked(tmp_path)
    os.symlink(tmp_path / "outside", tmp_path / "root" / "d" / "folder")
    with client_of(tmp_path / "root") as client:
        for prefix in ("folder/", "folder/s", "folder/sub/", "folder/sub/s"):
            for recursive in "01":
                answer = client.get("/datasets/d/files", params={"prefix": prefix, "recursive": recursive})
                assert answer.status_code == 403, (prefix, recursive)


def test_folders_pipes_and_sockets_are_404(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And never block a request."""
    folder = tmp_path / "root" / "d"
    (folder / "sub").mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(folder)  # such names have 108 bytes at most
        listening.bind("socket")
        monkeypatch.undo()
        with client_of(tmp_path / "root") as client:
            for name in ("sub", "pipe", "socket", "sub/x", "pipe/x"):
                assert client.get(f"/datasets/d/files/{name}").status_code == 404
                assert client.delete(f"/datasets/d/files/{name}").status_code == 404
            assert all_files(client, "d") == []
            assert client.get("/datasets/d/files?digests=1").json()["files"] == []


def test_file_names_that_are_not_utf8_are_an_error(tmp_path: Path) -> None:
    """It names the file, rather than leaving it out."""
    folder = tmp_path / "root" / "d"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"1")
    with open(os.fsencode(folder) + b"/b\xff", "wb"):
        pass
    with client_of(tmp_path / "root") as client:
        for path in ("/datasets/d/files", "/datasets/d"):
            answer = client.get(path)
            assert answer.status_code == 403
            assert "UTF-8" in answer.json()["error"]


def test_a_file_and_a_folder_of_one_name_conflict(shared: TestClient, dataset: str) -> None:
    """409 while the other one exists; an empty folder does not conflict."""
    files = f"/datasets/{dataset}/files"
    assert shared.put(f"{files}/a/b/c", content=b"1").status_code == 200
    for path in ("a", "a/b", "a/b/c/d", "a/b/c/d/e"):
        answer = shared.put(f"{files}/{path}", content=b"2")
        assert answer.status_code == 409, path
    assert shared.delete(f"{files}/a/b/c").status_code == 204
    assert shared.get(f"{files}?recursive=0").json()["folders"] == []
    assert shared.put(f"{files}/a", content=b"2").status_code == 200
    assert shared.delete(f"{files}/a").status_code == 204
    refused = shared.put(f"{files}/x/y/z", content=b"1", headers={"Content-Digest": digest_field(b"other")})
    assert refused.status_code == 400
    assert shared.put(f"{files}/x", content=b"2").status_code == 200


def test_a_file_with_a_wrong_digest_is_refused(client: TestClient, dataset: str, place: Place) -> None:
    """A file appears if its digest is the promised one; else 400, and the old one stays."""
    path = f"/datasets/{dataset}/files/a"
    client.put(path, content=b"old")
    before = place.files()
    cases = [
        (digest_field(b"other"), 400),
        ("sha-256=:AAAA:", 400),
        ("sha-256=:not base64:", 400),
        ("sha-256=" + "ab" * 32, 400),
        (f"md5=:AAAA:, {digest_field(b'other')}", 400),
        (f"sha-512=:AAAA:, {digest_field(b'new')}", 200),
        ("sha-512=:AAAA:", 200),
        (digest_field(b"new"), 200),
    ]
    for header, (value, status) in itertools.product(["Repr-Digest", "Content-Digest"], cases):
        answer = client.put(path, content=b"new", headers={header: value})
        assert answer.status_code == status, value
        if status == 400:
            assert place.files() == before
            assert set(answer.json()) == {"error"}
        else:
            before = place.files()
    assert client.get(path).content == b"new"


def test_want_repr_digest_returns_the_digest(shared: TestClient, dataset: str) -> None:
    """In all responses with a file, also with a range."""
    path = f"/datasets/{dataset}/files/a"
    shared.put(path, content=DATA)
    assert "repr-digest" not in shared.get(path).headers
    for value in ("sha-256=1", "sha-512=3, sha-256=10", "SHA-256=1"):
        for extra in ({}, {"Range": "bytes=1-2"}):
            for method in ("GET", "HEAD"):
                got = shared.request(method, path, headers={"Want-Repr-Digest": value, **extra})
                assert got.headers["repr-digest"] == digest_field(DATA)
    for value in ("sha-256=0", "sha-512=1", "nonsense"):
        assert "repr-digest" not in shared.get(path, headers={"Want-Repr-Digest": value}).headers


def test_content_range_without_an_upload_id_is_refused(shared: TestClient, dataset: str) -> None:
    """400: a part is never taken for a whole file."""
    answer = shared.put(f"/datasets/{dataset}/files/a", content=b"1", headers={"Content-Range": "bytes 0-0/2"})
    assert answer.status_code == 400
    assert "upload" in answer.json()["error"]


PATHS = ["a", "a.b", "a/b", "a/c/d", "a/c/e", "a0", "b/", "b/a", "c/é", "c/😀", "z"]


@pytest.fixture
def full(client: TestClient, dataset: str) -> list[str]:
    """The sorted paths of a dataset that is listed."""
    paths = sorted(path for path in PATHS if not path.endswith("/") and path != "a")
    for path in paths:
        assert client.put(f"/datasets/{dataset}/files/{quote(path)}", content=path.encode()).status_code == 200
    return paths


PREFIXES = ["", "a", "a/", "a/c", "a/c/", "c/", "b/a", "nothing", "nothing/at/all", "z/"]


def test_pages_make_up_the_listing(client: TestClient, dataset: str, full: list[str]) -> None:
    """All files with a prefix, sorted, each once; with ``recursive=0`` those of one folder, and the folders in it."""
    for limit, prefix, recursive in itertools.product([1, 2, 1000], PREFIXES, [True, False]):
        files: list[str] = []
        folders: list[str] = []
        query: dict[str, str | int] = {"prefix": prefix, "limit": limit, "recursive": int(recursive), "after": ""}
        while True:
            page = client.get(f"/datasets/{dataset}/files", params=query).json()
            assert len(page["files"]) + len(page["folders"]) <= limit
            files += [file["path"] for file in page["files"]]
            folders += page["folders"]
            if page["next"] is None:
                break
            query["after"] = page["next"]
        matching = [path for path in full if path.startswith(prefix)]
        depth = prefix.count("/")
        if recursive:
            assert (files, folders) == (matching, []), query
        else:
            deeper = {"/".join(path.split("/")[: depth + 1]) + "/" for path in matching if path.count("/") > depth}
            assert files == [path for path in matching if path.count("/") == depth], query
            assert folders == sorted(deeper), query


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=10001",
        "limit=-1",
        "limit=x",
        "limit=",
        "limit=%D9%A1",
        "recursive=2",
        "digests=yes",
        "prefix=../",
        "prefix=a/../b",
        "prefix=/",
        "prefix=/etc/",
        "prefix=a%00",
        "after=%00",
        "prefix=a//b",
        f"prefix={'x' * 256}/",
        f"after={'x' * 1025}",
        f"prefix={'x/' * 513}",
    ],
)
def test_invalid_listing_parameters_are_refused(shared: TestClient, dataset: str, query: str) -> None:
    """400 in JSON."""
    answer = shared.get(f"/datasets/{dataset}/files?{query}")
    assert answer.status_code == 400, answer.text
    assert set(answer.json()) == {"error"}


def test_listings_with_digests(client: TestClient, dataset: str, full: list[str], place: Place) -> None:
    """Of all files, including those that were written without the service."""
    place.below(dataset).put({"beside": b"written directly"})
    for _ in range(2):
        files = client.get(f"/datasets/{dataset}/files?digests=1").json()["files"]
        expected = {path: path.encode() for path in full} | {"beside": b"written directly"}
        assert {file["path"]: file["sha256"] for file in files} == {
            path: hashlib.sha256(data).hexdigest() for path, data in expected.items()
        }


@pytest.mark.parametrize("recursive", [0, 1])
def test_pages_with_digests_end_early(
    local: TestClient, dataset: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recursive: int
) -> None:
    """Together they are the whole listing, each file once."""
    monkeypatch.setattr(file_routes, "_DIGESTED_BYTES", 1)
    for path in ("a", "b/x", "c", "d/x", "e", "f/x", "g"):
        (tmp_path / "root" / dataset / path).parent.mkdir(exist_ok=True)
        (tmp_path / "root" / dataset / path).write_bytes(b"12")
    found: list[str] = []
    query: dict[str, str | int] = {"digests": 1, "recursive": recursive, "after": ""}
    num_pages = 0
    while True:
        page = local.get(f"/datasets/{dataset}/files", params=query).json()
        found += sorted([file["path"] for file in page["files"]] + page["folders"])
        num_pages += 1
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert found == (["a", "b/x", "c", "d/x", "e", "f/x", "g"] if recursive else ["a", "b/", "c", "d/", "e", "f/", "g"])
    assert num_pages > 3


def test_a_date_beyond_the_calendar_is_omitted(local: TestClient, dataset: str, tmp_path: Path) -> None:
    """In listings and headers."""
    file = tmp_path / "root" / dataset / "a"
    file.write_bytes(b"1")
    with contextlib.suppress(OSError):
        os.utime(file, (1 << 40, 1 << 40))
    if file.stat().st_mtime < 1 << 39:
        pytest.skip("the file system knows no such dates")
    assert local.get(f"/datasets/{dataset}/files").json()["files"][0]["modified"] is None
    got = local.get(f"/datasets/{dataset}/files/a")
    assert (got.status_code, got.content) == (200, b"1")
    assert "last-modified" not in got.headers
