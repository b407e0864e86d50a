"""Datasets of the service, by HTTP: creating, downloading as a whole, removing, summaries, and what requests may be."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.servers.s3 import S3Server
from tests.servers.service import running_service
from tests.servers.watched import Exchange, Proxy, running_proxy
from tests.support.service_clients import (
    JSON,
    Dataset,
    ask,
    below,
    digest_field,
    in_tar,
    sha256,
    tar_bytes,
)
from tests.support.small_disk import fill_blocks, fill_inodes, small_disk

FILES = {"a": b"1", "cat/" + "x" * 200 + ".jpg": b"2" * 3_000_000, "cat/é.txt": b"", "z": b"3" * 512}
PICTURE = io.BytesIO()
Image.new("RGB", (40, 30), "red").save(PICTURE, "PNG")


def create(address: str, name: object) -> tuple[int, bytes]:
    return ask(address, "POST", "/datasets", json.dumps({"name": name}), JSON)[:2]


def names(address: str) -> list[str]:
    return [one["name"] for one in ask(address, "GET", "/datasets").json()["datasets"]]


def test_a_dataset_is_created_once(anywhere: Dataset) -> None:
    name = f"{anywhere.name}.x"
    made = ask(anywhere.address, "POST", "/datasets", json.dumps({"name": name}), JSON)
    assert (made.status, made.headers["location"]) == (201, f"/datasets/{name}")
    assert made.json() == {"name": name, "location": f"/datasets/{name}"}
    assert ask(anywhere.address, "GET", made.headers["location"]).status == 200
    assert create(anywhere.address, name)[0] == 409
    ask(anywhere.address, "PUT", f"/datasets/{name}/files/a", b"1")
    again = ask(anywhere.address, "POST", "/datasets", json.dumps({"name": name}), JSON)
    assert (again.status, name in again.error) == (409, True)
    listed = ask(anywhere.address, "GET", "/datasets").json()["datasets"]
    assert {"name": name, "location": f"/datasets/{name}"} in listed
    assert names(anywhere.address) == sorted({one["name"] for one in listed})
    assert {name, anywhere.name} <= set(names(anywhere.address))


def test_of_concurrent_creations_one_succeeds(served: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        statuses = [status for status, _ in pool.map(lambda _: create(served, "together"), range(8))]
    assert sorted(statuses) == [201, *[409] * 7]


@pytest.mark.parametrize("name", ["9", "my_dataset", "A.b-c_d", "a" * 128, "a..b", "x."])
def test_a_dataset_name_has_letters_digits_dots_underscores_and_hyphens(served: str, name: str) -> None:
    assert create(served, name)[0] == 201


WRONG_NAMES = [
    *("", ".", "..", "../up", "-a", "_a", ".torchdata_remote", "a b", "a/b", "a\n", "é", "٣", "a" * 129),
    *(None, 1, "a\0", "a.torchdata_remote-partial", "\ud800"),
]


def test_another_name_makes_no_dataset(served: str) -> None:
    before = names(served)
    for name in WRONG_NAMES:
        assert create(served, name)[0] == 400, name
    assert names(served) == before
    for name in ("..", ".", "%2e%2e", ".torchdata_remote", "a%00", "%ff", "-a", "a" * 129, "a%20b"):
        for method, rest in [("GET", ""), ("GET", "/files"), ("PUT", "/files/a"), ("PUT", ""), ("DELETE", "")]:
            answer = ask(served, method, f"/datasets/{name}{rest}", b"1" if method == "PUT" else None)
            assert (answer.status in (400, 404), bool(answer.error)) == (True, True)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b'{"name": "a", "color": "red"}', "application/json", 400),
        (b'["a"]', "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 60_000, "application/json", 400),
        (b'{"name": "' + b"a" * 70_000 + b'"}', "application/json", 413),
        (b"name=a", "application/x-www-form-urlencoded", 415),
        (b'{"name": "a"}', "text/plain", 415),
    ],
)
def test_another_document_creates_no_dataset(served: str, body: bytes, kind: str, status: int) -> None:
    before = names(served)
    answer = ask(served, "POST", "/datasets", body, {"Content-Type": kind})
    assert (answer.status, bool(answer.error)) == (status, True)
    assert names(served) == before


def test_a_dataset_of_one_file_is_sent_as_that_file_and_another_one_as_a_tar(anywhere: Dataset) -> None:
    stored = anywhere.ask("PUT", "", b"a,b\n1,2\n", {"Content-Disposition": 'attachment; filename="my_file.csv"'})
    metadata = stored.json()
    assert (stored.status, metadata["path"], metadata["sha256"]) == (200, "my_file.csv", sha256(b"a,b\n1,2\n"))
    assert metadata["location"] == f"/datasets/{anywhere.name}/files/my_file.csv"
    got = anywhere.ask("GET")
    assert got.body == b"a,b\n1,2\n"
    assert got.headers["content-disposition"] == 'attachment; filename="my_file.csv"'
    assert got.headers["etag"] == stored.headers["etag"] == metadata["etag"]
    part = anywhere.ask("GET", "", None, {"Range": "bytes=2-3", "If-Match": metadata["etag"]})
    assert (part.status, part.body) == (206, b"b\n")
    assert anywhere.ask("GET", "", None, {"If-Match": '"x"'}).status == 412
    assert anywhere.ask("GET", "", None, {"If-None-Match": metadata["etag"]}).status == 304
    anywhere.delete("my_file.csv")
    for number in range(4):
        filename = f"0/{0}".rpartition("/")[2] + ".txt" if number == 1 else f"{anywhere.name}.tar"
        for method in ("GET", "HEAD"):
            answer = anywhere.ask(method)
            assert answer.headers["content-disposition"] == f'attachment; filename="{filename}"'
        anywhere.put(f"{number}.txt", b"x")


def test_a_dataset_is_sent_as_a_sorted_tar_that_can_be_uploaded_again(anywhere: Dataset) -> None:
    assert in_tar(anywhere.ask("GET").body) == {}
    anywhere.fill(FILES)
    got = anywhere.ask("GET")
    assert (got.status, in_tar(got.body), list(in_tar(got.body))) == (200, FILES, sorted(FILES))
    assert (len(got.body) % 512, got.body[-1024:]) == (0, bytes(1024))
    again = Dataset(anywhere.address)
    assert again.unpack(got.body).status == 200
    assert again.contents() == FILES
    assert again.ask("GET").body == got.body


@pytest.mark.parametrize("kind", ["archive", "file", "range"])
def test_a_download_is_of_one_version_or_ends_too_early(dataset: Dataset, kind: str) -> None:
    old, new = dataset.folder / "a", dataset.folder / "b"
    old.write_bytes(b"a" * 40_000_000)  # more than sockets keep
    new.write_bytes(b"b" * 40_000_000)
    path = f"/datasets/{dataset.name}" + ("" if kind == "archive" else "/files/a")
    with contextlib.closing(http.client.HTTPConnection(dataset.address, timeout=120)) as connection:
        connection.request("GET", path, headers={"Range": "bytes=1-"} if kind == "range" else {})
        answer = connection.getresponse()
        assert answer.read(1000).count(b"a") >= 400
        os.replace(new, old)
        if kind == "archive":
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                answer.read()
        else:
            assert answer.read() == b"a" * (int(answer.headers["Content-Length"]) - 1000)


OF_A_DATASET: list[tuple[str, str, bytes | None, dict[str, str]]] = [
    *((method, target, None, {}) for method in ("GET", "HEAD") for target in ("", "/files", "/files/a")),
    *((method, target, None, {}) for method in ("GET", "HEAD") for target in ("/summary", "/sheet.png")),
    *(("GET", f"/files?{query}", None, {}) for query in ("digests=1", "recursive=0&prefix=a/", "after=a&limit=1")),
    *(("DELETE", target, None, {}) for target in ("", "/files/a")),
    *(("PUT", "/files/a", b"1", {name: "*"} if name else {}) for name in ("", "If-Match", "If-None-Match")),
    ("PUT", "", b"1", {"Content-Disposition": "attachment; filename=a"}),
    ("PUT", "?unpack=1", tar_bytes({"a": b"1"}), {}),
    ("POST", "/files", b'{"paths": ["a"]}', JSON),
    ("POST", "/files", b'{"paths": []}', JSON),
]


def require_absent(address: str, name: str) -> None:
    """Require that every request about a dataset is answered with 404, as if there had never been one."""
    for method, target, body, headers in OF_A_DATASET:
        answer = ask(address, method, f"/datasets/{name}{target}", body, headers)
        assert answer.status == 404, (method, target, answer)
        says = f"There is no dataset '{name}'. POST /datasets creates one, GET /datasets lists them."
        assert (answer.body if method == "HEAD" else answer.error) == (b"" if method == "HEAD" else says), (
            method,
            target,
        )


def test_every_request_about_a_dataset_that_never_was_is_404_and_makes_nothing(served: str, served_root: Path) -> None:
    before = names(served)
    require_absent(served, "never")
    assert names(served) == before
    assert not [path for path in served_root.rglob("*") if "never" in path.name]


@pytest.fixture
def held_bucket(moto: S3Server) -> Iterator[tuple[str, Proxy]]:
    """A service on a bucket, and the proxy between both."""
    with running_proxy(moto.endpoint_url.partition("://")[2]) as proxy:
        options = json.dumps({**moto.storage_options, "endpoint_url": f"http://{proxy.address}"})
        arguments = ("--storage-options", options, "--pass-through")
        with running_service(f"s3://{moto.new_bucket()}/d/", *arguments) as address:
            yield address, proxy


def test_a_dataset_that_is_being_removed_is_already_gone_and_cannot_be_made_yet(
    held_bucket: tuple[str, Proxy],
) -> None:
    address, proxy = held_bucket
    dataset, other = Dataset(address), Dataset(address)
    dataset.fill({"a": b"1", "b/c": b"2"})
    begun, may_end = threading.Event(), threading.Event()

    def hold(exchange: Exchange) -> None:
        if exchange.method == "DELETE" or (exchange.method == "POST" and "delete" in exchange.target):
            begun.set()
            assert may_end.wait(120)

    proxy.on_request = hold
    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(dataset.ask, "DELETE")
        try:
            assert begun.wait(120)
            require_absent(address, dataset.name)
            again = ask(address, "POST", "/datasets", json.dumps({"name": dataset.name}), JSON)
            assert (again.status, again.headers["retry-after"]) == (503, "1")
            assert again.error == f"The dataset '{dataset.name}' is being removed. Try again."
            assert other.put("a", b"another's").status == 200
        finally:
            may_end.set()
        assert removing.result().status == 204
    require_absent(address, dataset.name)
    assert (create(address, dataset.name)[0], dataset.contents()) == (201, {})
    assert dataset.put("a", b"3", {"If-None-Match": "*"}).status == 200
    assert (dataset.contents(), other.contents()) == ({"a": b"3"}, {"a": b"another's"})


def test_a_dataset_whose_removal_failed_can_be_written_and_removed(served: str, served_root: Path) -> None:
    with small_disk(served_root, "tmpfs"):  # mounted there: a folder that cannot be renamed or removed
        dataset = Dataset(served, "disk", served_root)
        dataset.fill({"a": b"1"})
        failed = dataset.ask("DELETE")
        assert (failed.status, "busy" in failed.error) == (502, True)
        dataset.fill({"b": b"2", "c/d": b"3"})
        assert {"b": b"2", "c/d": b"3"}.items() <= dataset.contents().items()
        assert create(served, "disk")[0] == 409
    assert dataset.ask("DELETE").status == 204
    require_absent(served, "disk")
    assert (create(served, "disk")[0], dataset.contents()) == (201, {})
    assert dataset.put("a", b"5").status == 200
    assert dataset.ask("DELETE").status == 204


def test_a_removed_dataset_leaves_nothing(anywhere: Dataset) -> None:
    anywhere.fill(dict.fromkeys(("a", "b/c", "b/d/e"), b"1"))
    assert anywhere.ask("DELETE").status == 204
    assert anywhere.name not in names(anywhere.address)
    require_absent(anywhere.address, anywhere.name)
    if anywhere.root is not None:
        assert not anywhere.folder.exists()
    assert create(anywhere.address, anywhere.name)[0] == 201
    assert anywhere.paths() == []
    assert anywhere.put("b", b"2", {"If-None-Match": "*"}).status == 200
    assert anywhere.contents() == {"b": b"2"}


def test_a_dataset_folder_may_be_a_link_which_alone_is_removed(served: str, served_root: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x").write_bytes(b"1")
    os.symlink(tmp_path, served_root / "near")
    os.symlink(tmp_path / "nowhere", served_root / "dangling")
    (served_root / "notes.txt").write_bytes(b"not a dataset")
    try:
        assert "near" in names(served)
        near = Dataset(served, "near", served_root)
        for name in ("dangling", "notes.txt"):
            assert name not in names(served)
            assert ask(served, "GET", f"/datasets/{name}").status == 404
            assert create(served, name)[0] == 409
        assert near.put("y", b"2").status == 200
        assert near.contents() == {"sub/x": b"1", "y": b"2"}
        assert near.ask("DELETE").status == 204
        assert (tmp_path / "y").read_bytes() == b"2"
        assert not (served_root / "near").is_symlink()
    finally:
        for name in ("dangling", "notes.txt"):
            (served_root / name).unlink()


@pytest.mark.parametrize(
    ("header", "path"),
    [
        ("attachment; filename=plain.csv", "plain.csv"),
        ("attachment; filename*=UTF-8''%c3%a9%20x.csv", "é x.csv"),
        ("attachment; filename=\"x.csv\"; filename*=UTF-8''y.csv", "y.csv"),
        ("attachment; FileName=x.csv", "x.csv"),
        ("attachment; filename*=iso-8859-1'en'%e9.csv", 400),
        (None, 400),
        ('attachment ; FILENAME = "a\\"b.csv" ;', 'a"b.csv'),
        ("attachment", 400),
        ('attachment; filename="../x"', 400),
        ('attachment; filename="a\\\\b"', 400),
        ('attachment; filename=""', 400),
        ("attachment; filename*=utf-8''%00", 400),
        ("attachment; filename*=UTF-8''%e9.csv", 400),
        ("attachment; filename*=y.csv", 400),
        ('attachment; filename="x.csv', 400),
    ],
)
def test_content_disposition_names_the_file(dataset: Dataset, header: str | None, path: str | int) -> None:
    answer = dataset.ask("PUT", "", b"x", {} if header is None else {"Content-Disposition": header})
    if path == 400:
        assert (answer.status, bool(answer.error), dataset.paths()) == (400, True, [])
    else:
        assert answer.json()["path"] == path
        assert len(dataset.paths()) == 1


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/datasets", "GET, HEAD, POST"),
        ("POST", "/datasets/a", "DELETE, GET, HEAD, PUT"),
        ("OPTIONS", "/datasets/a/files/b", "DELETE, GET, HEAD, PUT"),
        ("DELETE", "/datasets/a/files", "GET, HEAD, POST"),
        ("PUT", "/", "GET, HEAD"),
    ],
)
def test_another_method_is_405_with_those_that_are_allowed(served: str, method: str, path: str, allowed: str) -> None:
    answer = ask(served, method, path)
    assert (answer.status, sorted(answer.headers["allow"].split(", "))) == (405, allowed.split(", "))
    assert answer.error


@pytest.mark.parametrize("path", ["/nothing", "/datasets/", "/datasets/a/b", "/page/x", "/datasets/a/files/b/../c"])
def test_another_path_is_404(served: str, path: str) -> None:
    answer = ask(served, "GET", path)
    assert (answer.status in (400, 404), bool(answer.error)) == (True, True)


def test_dataset_is_an_alias_of_datasets(dataset: Dataset) -> None:
    dataset.fill({"a.txt": b"x", "b.txt": b"y"})
    for path in ("", *(f"/{dataset.name}{end_of}" for end_of in ("", "/files", "/files/a.txt", "/summary"))):
        one, other = (ask(dataset.address, "GET", f"/dataset{end}{path}") for end in ("", "s"))
        assert (one.status, one.body) == (200, other.body)
    assert ask(dataset.address, "GET", f"/datasetx/{dataset.name}").status == 404


def test_head_is_get_without_a_body(dataset: Dataset) -> None:
    dataset.put("a.txt", b"x")
    own = [f"/datasets/{dataset.name}{rest}" for rest in ("", "/files", "/files/a.txt", "/summary")]
    for path in ("/", "/page/app.js", "/page/style.css", "/healthz", "/metrics", "/openapi.json", *own):
        head, got = ask(dataset.address, "HEAD", path), ask(dataset.address, "GET", path)
        assert (head.status, got.status, head.body) == (200, 200, b"")
        for name in ("content-type", "content-length", "etag", "content-security-policy", "cache-control"):
            assert head.headers[name] == got.headers[name] or path == "/metrics", (path, name)
    assert ask(dataset.address, "GET", "/healthz")[:2] == (200, b'{"status":"ok"}\n')


def test_a_summary_and_a_sheet_follow_every_change(dataset: Dataset) -> None:
    def summary() -> tuple[int, int]:
        found = dataset.ask("GET", "/summary").json()
        assert (found["name"], found["location"]) == (dataset.name, f"/datasets/{dataset.name}")
        return found["num_files"], found["num_bytes"]

    seen = [summary()]
    assert dataset.ask("GET", "/sheet.png").status == 404
    picture = PICTURE.getvalue()
    for method, target, body in [
        ("PUT", "/files/cat/1.png", picture),
        ("PUT", "?unpack=1", tar_bytes({"cat/2.png": picture})),
        ("PUT", "/files/dog/3.png", picture),
        ("PUT", "/files/notes.txt", b"some words"),
        ("DELETE", "/files/cat/1.png", None),
    ]:
        assert dataset.ask(method, target, body).status in (200, 204)
        seen.append(summary())
    size = len(picture)
    assert seen == [(0, 0), (1, size), (2, 2 * size), (3, 3 * size), (4, 3 * size + 10), (3, 2 * size + 10)]
    sheet = dataset.ask("GET", "/sheet.png")
    assert sheet.headers["content-type"] == "image/png"
    colours = Image.open(io.BytesIO(sheet.body)).convert("RGB").getcolors(1 << 20) or []
    assert (255, 0, 0) in [colour for _, colour in colours]
    assert dataset.ask("GET", "/summary?inside=2").status == 400


@pytest.mark.parametrize(
    ("query", "header"),
    [("?unpack=1", {"If-None-Match": "*"}), ("?unpack=1", {"If-Match": '"x"'}), ("", {"Content-Range": "bytes 0-0/9"})],
)
def test_no_file_is_replaced_against_a_condition_or_by_a_part_of_one(
    dataset: Dataset, query: str, header: dict[str, str]
) -> None:
    dataset.fill({"a": b"old"})
    body = tar_bytes({"a": b"1"}) if query else b"1"
    answer = dataset.ask("PUT", query, body, {"Content-Disposition": "attachment; filename=a", **header})
    assert (answer.status in (400, 412), dataset.contents()) == (True, {"a": b"old"})


@pytest.mark.parametrize("query", ["unpack=2", "unpack=", "unpack=true"])
def test_a_flag_is_0_or_1(dataset: Dataset, query: str) -> None:
    named = {"Content-Disposition": "attachment; filename=a"}
    assert dataset.ask("PUT", f"?{query}", b"x", named).status == 400
    assert dataset.ask("PUT", "?unpack=0", b"x", named).status == 200
    assert len(dataset.paths()) == 1


@pytest.mark.parametrize(("kind", "fill"), [("tmpfs", fill_inodes), ("ext4", fill_blocks)])
def test_everything_can_be_deleted_on_a_full_disk(tmp_path: Path, kind: str, fill: Callable[[Path], None]) -> None:
    with small_disk(tmp_path, kind) as disk:
        (disk / "far").mkdir()
        (disk / "far" / "kept").write_bytes(b"1")
        with running_service(disk / "root", "--min-free-bytes", "0") as address:
            dataset = Dataset(address, "d", disk / "root")
            dataset.fill({"a/b/c": b"x", "e": b"x"})
            os.symlink(disk / "far", disk / "root" / "near")
            fill(disk)
            assert dataset.put("new", b"x" * 5000).status == 507
            for path in ("d/files/a/b/c", "d", "near"):
                assert ask(address, "DELETE", f"/datasets/{path}").status == 204, path
                fill(disk)  # what was freed
            assert names(address) == []
            assert below(disk / "root") == set()
        assert (disk / "far" / "kept").read_bytes() == b"1"


# The OpenAPI description


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_the_description_allows_is_answered_as_it_says_and_the_rest_is_refused(
    served: str, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis")
    Dataset(served, "pets").fill({"cat/1.txt": b"hello", "2.txt": b"hello"})
    configuration = Path(__file__).with_name("schemathesis.toml")
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration), "run"]
    options = ["--checks", "all", "--continue-on-failure", "--max-examples", "300", f"http://{served}/openapi.json"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert "No issues found" in done.stdout or re.search(r"\d+ passed", done.stdout), done.stdout[-2_000:]


def test_the_description_has_every_route_of_the_documentation(dataset: Dataset) -> None:
    dataset.fill({"cat/1.txt": b"hello"})
    described = {
        f"{method.upper()} {path}"
        for path, operations in ask(dataset.address, "GET", "/openapi.json").json()["paths"].items()
        for method in operations
        if method != "parameters"
    }
    assert described == {
        *("GET /datasets", "POST /datasets", "GET /healthz", "GET /metrics"),
        *(f"{method} /datasets/{{name}}" for method in ("GET", "PUT", "DELETE")),
        *(f"{method} /datasets/{{name}}/files" for method in ("GET", "POST")),
        *(f"{method} /datasets/{{name}}/files/{{path}}" for method in ("GET", "PUT", "DELETE")),
        *("GET /datasets/{name}/summary", "GET /datasets/{name}/sheet.png"),
    }
    for path in described:
        method, _, target = path.partition(" ")
        if method == "GET" and "sheet" not in target:
            target = target.replace("{name}", dataset.name).replace("{path}", "cat/1.txt")
            assert ask(dataset.address, method, target).status == 200
    assert digest_field(b"") in dataset.put("empty", b"").headers["repr-digest"]
