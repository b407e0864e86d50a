"""A host of a ``datasets://`` URL that sends anything: each call ends in bounded memory, with no foreign error."""

from __future__ import annotations

import itertools
import json
import socketserver
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import pytest

from tests.servers.raw import Raw, answer, raw
from tests.servers.scripted import Request, Response, scripted
from tests.servers.threaded import in_thread
from torchdata_remote import RetryPolicy
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import RemoteDataError, StorageError
from torchdata_remote.service.transfer import remote_folder
from torchdata_remote.service.transfer.remote_folder import RemoteFolder
from torchdata_remote.storage.dataset_service.json_body import DATASETS, SMALL, page_limits
from torchdata_remote.storage.dataset_service.store import MAX_PAGE, DatasetsStore

ONCE = RetryPolicy(first_wait_s=0, deadline_s=5, max_attempts=1)
KNOWN = {"Content-Length": "10", "ETag": '"e"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
HOSTILE_VALUES = [
    *("1e400", "-1e400", "NaN", "Infinity", "-1", "1.5", "true", "null", "[]", "{}", '"x"', '"d"', '"z/"', '""'),
    *("9" * 30, "9" * 5000, f'"{"9" * 5000}"', str(2**63), '"\\ud800"', '"\\u0000"', '"a/../../b"', '"/x"', '"x//y/"'),
    *('"0001-01-01T00:00:00+23:59"', '"9999-12-31T23:59:59-23:59"', '"2026-01-01"', '"99999-01-01T00:00:00Z"'),
    *(
        "[0, 1]",
        "[[0, 1e400]]",
        "[[1]]",
        '[{"name": 1}]',
        '[{"name": "../x"}]',
        '["x"]',
        '["../"]',
        "[[]]",
        '{"a": {}}',
    ),
]
FIELDS = {"path": '"a"', "size": "1", "etag": '"e"', "modified": "null", "sha256": '"0"'}
DOCUMENT = {
    "folders": "[]",
    "next": "null",
    "received": "[[0, 1]]",
    "etag": '"e"',
    "datasets": '[{"name": "d"}]',
    "name": '"d"',
}


def document(**values: str) -> str:
    """The response to every request at once, with some of its values replaced."""
    file = ", ".join(f'"{key}": {values.get(key, value)}' for key, value in FIELDS.items())
    top = {"files": f"[{{{file}}}]", **DOCUMENT, **values}
    return "{" + ", ".join(f'"{key}": {value}' for key, value in top.items()) + "}"


def hostile_bodies() -> Iterator[bytes]:
    """JSON in which one value is hostile, and what is no such JSON."""
    for key in ("files", *FIELDS, *DOCUMENT, "upload"):
        yield from (document(**{key: value}).encode() for value in HOSTILE_VALUES)
    yield from (value.encode() for value in HOSTILE_VALUES)
    yield from (b"", b"\xff", b"[" * 900, b'{"a":' * 900, b"[" * 2_000_000, document().encode("utf-16"), b"<html>")


def entries(store: DatasetsStore, prefix: str, recursive: bool) -> None:
    page = store.list_page(prefix, recursive=recursive, token=None)
    for entry in page.entries:
        assert ".." not in entry.path.split("/")
        assert entry.size is not None
        assert 0 <= entry.size < 2**63


JSON_CALLS: dict[str, Callable[[DatasetsStore], object]] = {
    "names": lambda store: store.names(),
    "has_dataset": lambda store: store.has_dataset("d"),
    "has_folder": lambda store: store.has_folder("d/x/"),
    "list all": lambda store: entries(store, "", True),
    "list a dataset": lambda store: entries(store, "d/", True),
    "list a folder": lambda store: entries(store, "d/", False),
    "digests": lambda store: store.digests("d/", None),
    "put": lambda store: store.put("d/a", b"x", sha256="00" * 32),
    "put_part": lambda store: store.put_part("d/a", "u" * 8, 0, b"x", 1, sha256="00" * 32),
    "received": lambda store: store.received("d/a", "u" * 8),
    "create": lambda store: store.create_dataset("d"),
    "abort": lambda store: store.abort_upload("d/a", "u" * 8),
}
CALLS: dict[str, Callable[[DatasetsStore], object]] = {
    **JSON_CALLS,
    "stat": lambda store: store.stat("d/a"),
    "sha256_of": lambda store: store.sha256_of("d/a"),
    "read": lambda store: store.read("d/a", 0, 10, '"e"').whole(),
    "read all": lambda store: store.read("d/a", 0, None, None).whole(),
    "read by urllib3": lambda store: store.read_without_obstore("d/a", 0, 10, '"e"').whole(),
    "read all by urllib3": lambda store: store.read_without_obstore("d/a", 0, None, None).whole(),
}


def host_of(server: Raw | Any) -> str:
    return str(server.url).partition("://")[2]


def store_at(host: str) -> DatasetsStore:
    return DatasetsStore(host, StorageOptions(), 10.0, read_by_obstore=True)


def ends(call: Callable[[DatasetsStore], object], store: DatasetsStore, response: bytes) -> None:
    """Call; a result is fine, and so is an error of this package."""
    try:
        call(store)
    except RemoteDataError:
        pass
    except BaseException as error:
        raise AssertionError(f"{type(error)} from {response[:300]!r}") from error


@pytest.mark.parametrize("name", JSON_CALLS)
def test_no_json_raises_another_error(name: str) -> None:
    """Of listings, digests, names, the progress of uploads, and responses to writes."""
    response = b""
    with raw(lambda head: response) as server:
        store = store_at(host_of(server))
        for body in hostile_bodies():
            response = answer("200 OK", body, f"Content-Length: {len(body)}")
            ends(JSON_CALLS[name], store, response)


HOSTILE_HEADERS = {
    "Content-Length": ["1e400", "-1", "", "5, 6", "9" * 4000, "9" * 19, str(2**63), str(2**64), "99999999999"],
    "Last-Modified": [
        "Sat, 21 Nov 99999 00:00:00 GMT",
        "Sat, 21 Nov 262144 00:00:00 GMT",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Sat, 21 Nov 2026 00:00:00 +999999999999999",
        "Sat, 21 Nov 2026 99:99:99 GMT",
        "yesterday",
    ],
    "Content-Range": [
        "bytes 0-9/*",
        "bytes 5-14/20",
        "bytes 0-99999999998/99999999999",
        f"bytes 0-{2**64 - 1}/{2**64 - 1}",
        f"bytes {2**64 - 1}-{2**64 - 1}/{2**64 - 1}",
        f"bytes {'9' * 4000}-1/2",
    ],
    "Repr-Digest": ["sha-256=:x:", "sha-256=::", "sha-256=:\xe9:", "sha-256=:QQ==:,sha-256=:QQ==:", "x"],
    "ETag": ["", "W/", '"', "\xff\xfe", "x" * 60_000],
    "Retry-After": [
        "1e400",
        "9" * 4000,
        "-1",
        "\xb2",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Mon, 01 Jan 0001 00:00:00 +2359",
    ],
    "Content-Encoding": ["gzip", "\xff"],
    "Transfer-Encoding": ["gzip", "chunked", "chunked, chunked"],
}


@pytest.mark.parametrize("status", ["200 OK", "206 Partial Content", "412 Precondition Failed", "503 Busy"])
@pytest.mark.parametrize("name", ["stat", "sha256_of", "read", "read all", "read by urllib3", "read all by urllib3"])
def test_no_header_raises_another_error(name: str, status: str) -> None:
    """By obstore and by urllib3, whose Rust and Python fail in ways of their own."""
    response = b""
    with raw(lambda head: response) as server:
        store = store_at(host_of(server))
        for header, values in HOSTILE_HEADERS.items():
            for value in values:
                if (
                    header == "Content-Length"
                    and value.startswith("999")
                    and name in ("read", "read all")
                    and status[0] > "2"
                ):
                    continue  # obstore allocates as much as an error response announces
                own = {**KNOWN, "Content-Range": "bytes 0-9/10"} if status.startswith("206") else KNOWN
                headers = {**own, header: value}
                response = answer(status, b"0123456789", *(f"{key}: {text}" for key, text in headers.items()))
                ends(CALLS[name], store, response)


@contextmanager
def endless(head: str, piece: bytes, most_bytes: int) -> Iterator[list[int]]:
    """A server that repeats a piece of a body until the client has enough; its port, and how many bytes it has sent."""
    found = [0, 0]

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            try:
                self.request.sendall(head.encode())
                while found[1] < most_bytes:
                    self.request.sendall(piece)
                    found[1] += len(piece)
            except OSError:
                pass

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    found[0] = server.server_address[1]
    with in_thread(server):
        yield found


@pytest.mark.parametrize("status", ["200 OK", "206 Partial Content", "404 Not Found"])
@pytest.mark.parametrize("framing", [f"Content-Length: {1 << 40}", "Transfer-Encoding: chunked", "Connection: close"])
@pytest.mark.parametrize("name", ["names", "digests", "put", "received", "read by urllib3"])
def test_an_endless_body_ends_the_request(name: str, framing: str, status: str) -> None:
    """Of listings, of the responses to writes, of files and of errors: the client closes the connection."""
    data = b"[" + b" " * (1 << 16)
    piece = data if "chunked" not in framing else f"{len(data):x}\r\n".encode() + data + b"\r\n"
    head = f'HTTP/1.1 {status}\r\n{framing}\r\nETag: "e"\r\nContent-Range: bytes 0-9/10\r\n\r\n'
    with endless(head, piece, 300 << 20) as found:
        outcome: object = None
        try:
            outcome = CALLS[name](store_at(f"127.0.0.1:{found[0]}"))
        except RemoteDataError as error:
            outcome = error
        assert isinstance(outcome, RemoteDataError) or outcome == []  # no parts of an upload that is unknown
        assert found[1] < 100 << 20


def test_a_small_body_may_not_have_values_that_take_much_memory() -> None:
    """A page of 30 MB of empty lists would be 600 MB of them; a page of text with as many brackets is read."""
    with raw(lambda head: many) as server:
        inside = b"[]," * (page_limits(MAX_PAGE).num_bytes // 3 - 100)
        many = answer("200 OK", b'{"files": [' + inside + b"[]]}", f"Content-Length: {len(inside) + 15}")
        tracemalloc.start()
        try:
            with pytest.raises(StorageError, match="values"):
                store_at(host_of(server)).digests("d/", None)
            assert tracemalloc.get_traced_memory()[1] < 5 * len(many)
        finally:
            tracemalloc.stop()


def test_the_largest_page_is_read() -> None:
    """With the longest paths, in characters that JSON escapes or that look like its structure."""
    name = '"[{,\\' * 204 + "x"
    files = [
        {
            "path": f"{index:04d}{name}"[:1024],
            "size": 2**63 - 1,
            "etag": f'"{index}"',
            "modified": None,
            "sha256": "0" * 64,
        }
        for index in range(MAX_PAGE)
    ]
    body = json.dumps({"files": files, "folders": [], "next": None}).encode()
    with raw(lambda head: answer("200 OK", body, f"Content-Length: {len(body)}")) as server:
        found, following = store_at(host_of(server)).digests("d/", None)
    assert ([file.path for file in found], following) == ([f"d/{one['path']}" for one in files], None)


def test_a_body_that_drips_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although each of its bytes arrives within the time limit of a read."""
    clock = itertools.count(step=5.0)
    monkeypatch.setattr("torchdata_remote.storage.dataset_service.json_body.time.monotonic", lambda: next(clock))
    with endless("HTTP/1.1 200 OK\r\n\r\n", b" ", 1 << 20) as found:
        with pytest.raises(StorageError, match="not complete"):
            store_at(f"127.0.0.1:{found[0]}").names()
        assert found[1] < 1 << 20


def test_the_limits_are_those_of_real_responses() -> None:
    """Each is larger than what a service sends, and small beside the memory of a machine."""
    assert SMALL.num_bytes < DATASETS.num_bytes < 2 * page_limits(MAX_PAGE).num_bytes < 100e6


def page_after(request: Request, **more: Any) -> Response:
    """A page that continues, always at a later path."""
    body = {"files": [], "folders": [], "next": f"{len(request.target):09d}{request.number:09d}", **more}
    return Response(200, json.dumps(body).encode())


def folder_at(url: str) -> RemoteFolder:
    return RemoteFolder(f"datasets://{url.partition('://')[2]}/d", None, ONCE)


def test_a_listing_of_ever_new_pages_without_files_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_folder, "MAX_EMPTY_PAGES", 10)
    with scripted(page_after) as server, pytest.raises(StorageError, match="does not end"):
        folder_at(server.url).list()


def test_a_listing_of_ever_new_files_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a number of files whose paths still fit into memory."""
    monkeypatch.setattr(remote_folder, "MAX_FILES", 30)

    def respond(request: Request) -> Response:
        return page_after(request, files=[{"path": f"{request.number}", "size": 1, "etag": "", "sha256": ""}])

    with scripted(respond) as server:
        with pytest.raises(StorageError, match="more than 30 files"):
            folder_at(server.url).list()
        assert len(server.requests) == 31


@pytest.mark.parametrize("following", ["a", "b", "", 7, float("nan"), {}])
def test_a_listing_that_does_not_advance_is_an_error(following: object) -> None:
    """By every call that asks for the page after another one."""

    def respond(request: Request) -> Response:
        return Response(200, json.dumps({"files": [], "folders": [], "next": following}).encode())

    with scripted(respond) as server:
        store = store_at(host_of(server))
        for recursive in (True, False):
            with pytest.raises(StorageError):
                store.list_page("d/", recursive=recursive, token=None, after="d/b")
        with pytest.raises(StorageError):
            store.digests("d/", "b")


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "a//b", ""])
def test_fsspec_copies_no_file_out_of_the_folder(path: str, tmp_path: Any) -> None:
    """Its ``get`` appends listed paths to the local folder."""
    files = [{"path": path, "size": 1, "etag": '"1"', "modified": None}]

    def respond(request: Request) -> Response:
        if "/files/" in request.target:
            return Response.of_object(request, b"x")
        return Response(200, json.dumps({"files": files, "folders": [], "next": None}).encode())

    with scripted(respond) as server:
        fs = fsspec.filesystem("datasets", skip_instance_cache=True)
        with pytest.raises(StorageError):
            fs.get(f"{host_of(server)}/d/", str(tmp_path / "t"), recursive=True)
    assert not [found for found in tmp_path.rglob("*") if found.is_file()]
