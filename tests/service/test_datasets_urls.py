"""``datasets://`` URLs: pipes read, list and write them, whom they send the token, and whatever answers there."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import socket
import threading
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

import torchdata_remote as tdr
from tests.servers.raw import answer, raw
from tests.servers.scripted import Request, Response, scripted
from tests.service.conftest import TOKEN
from tests.support.service_clients import Dataset
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectChangedError,
    ObjectNotFoundError,
    RemoteDataError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.testing import Faults, FaultyStore

ONCE = tdr.RetryPolicy(max_attempts=1)
MANY = tdr.RetryPolicy(max_attempts=10, first_wait_s=0)
ODD_PATHS = [
    *("a b/c d.bin", "%20.bin", "a%2Fb.bin", "%2e%2e/x", "a#b.bin", "a?b=c.bin", "a+b.bin", "a&b=c;d,e:f@.bin"),
    *("å/日本/😀.bin", "e\u0301 is not \u00e9.bin", "'quotes\" and <|> ^ `.bin", " begins and ends with a space "),
    *("...", "~tilde(1)!$.bin", "/".join(["x" * 100] * 9)),
]


def host_of(url: str) -> str:
    return url.partition("://")[2]


def listed(*urls: str, **options: Any) -> list[Any]:
    return list(IterableWrapper(list(urls)).list_remote(**options))


def read(*urls: str, **options: Any) -> dict[str, bytes]:
    """The bytes behind URLs, as pipes read them."""
    pipe = IterableWrapper(list(urls)).async_prefetch(**{"retry": MANY, **options})
    return {url: b"".join(stream.parts()) for url, stream in pipe}


def test_files_are_listed_and_read_whatever_their_names(dataset: Dataset) -> None:
    dataset.fill({path: path.encode() * 50 for path in ODD_PATHS})
    found = listed(dataset.url + "/")
    assert [str(url) for url in found] == sorted(f"{dataset.url}/{path}" for path in ODD_PATHS)
    assert [url.size for url in found] == [50 * len(url.removeprefix(dataset.url + "/").encode()) for url in found]
    assert [url.etag for url in found] == [
        dataset.head(str(url).removeprefix(dataset.url + "/")).headers["etag"] for url in found
    ]
    expected = {f"{dataset.url}/{path}": path.encode() * 50 for path in ODD_PATHS}
    pipe = IterableWrapper([dataset.url + "/"]).list_remote().async_prefetch()
    assert {url: b"".join(stream.parts()) for url, stream in pipe} == expected


@pytest.mark.parametrize("path", ["d/../other/a", "d/./a", "d//a", "../a"])
def test_a_path_that_leads_elsewhere_is_refused_without_a_request(path: str) -> None:
    with scripted(lambda request: Response.of_object(request, b"12345")) as server:
        fs = fsspec.filesystem("datasets")
        with pytest.raises((UrlError, FileNotFoundError, IsADirectoryError)):
            read(f"datasets://{host_of(server.url)}/{path}", retry=ONCE)
        with (
            pytest.raises((UrlError, FileNotFoundError, IsADirectoryError)),
            fs.open(f"{host_of(server.url)}/{path}", "xb"),
        ):
            pass
        assert not [request for request in server.requests if "other" in request.target]


def test_urls_are_folders_globs_braces_and_files(dataset: Dataset) -> None:
    dataset.fill({path: path.encode() for path in ("cat/1.txt", "cat/2.txt", "dog/[1].txt", "dogs")})

    def below(source: str, **options: Any) -> list[str]:
        return [url.removeprefix(dataset.url) for url in listed(dataset.url + source, **options)]

    every = ["/cat/1.txt", "/cat/2.txt", "/dog/[1].txt", "/dogs"]
    assert below("/") == below("/**") == below("") == every
    assert below("/cat") == below("/c*/") == below("/*/?.txt") == ["/cat/1.txt", "/cat/2.txt"]
    assert below("/dog/[1].txt") == ["/dog/[1].txt"]
    assert below("/cat/{1..2}.txt") == ["/cat/1.txt", "/cat/2.txt"]
    assert below("/", recursive=False) == ["/dogs"]
    for nothing in ("-none", "-none/", "/none/", "/cat/*.jpg"):
        with pytest.raises(EmptyListingError, match="no objects found"):
            below(nothing)


def test_the_files_of_all_datasets_of_a_host_are_no_listing(served: str) -> None:
    with pytest.raises(UrlError, match="names no dataset"):
        listed(f"datasets://{served}/")


def test_a_replaced_file_and_a_missing_one_are_errors_that_name_it(dataset: Dataset) -> None:
    dataset.put("a", b"0123456789")
    (url,) = listed(f"{dataset.url}/a")
    dataset.put("a", b"9876543210")
    with pytest.raises(ObjectChangedError, match=f"{dataset.url}/a"):
        read(url)
    for path in ("/none", "-none/a"):
        with pytest.raises(ObjectNotFoundError, match=f"{dataset.url}{path}"):
            read(dataset.url + path)


@pytest.fixture(scope="module")
def faulty_service(served: str) -> Iterator[FaultyStore]:
    with FaultyStore(f"http://{served}", seed=1) as running:
        yield running


@pytest.fixture
def faulty(faulty_service: FaultyStore) -> Iterator[FaultyStore]:
    """A service some of whose answers break."""
    faulty_service.faults = Faults()
    yield faulty_service
    faulty_service.script()


def test_a_file_that_is_replaced_between_the_requests_of_a_read_is_an_error(
    dataset: Dataset, faulty: FaultyStore
) -> None:
    dataset.put("a", bytes(range(256)) * 20)
    faulty.faults = Faults(changed=1)
    with pytest.raises(ObjectChangedError):
        read(f"datasets://{host_of(faulty.endpoint_url)}/{dataset.name}/a", part_bytes=1000)


@pytest.mark.parametrize(
    ("fault", "num_bytes"),
    [
        *((fault, 1000) for fault in ("slow_down", "reset", "early_end", "reset_in_body", "cut_body")),
        *((fault, 33 << 20) for fault in ("internal_error", "reset_in_body")),
    ],
)
def test_a_file_is_stored_once_and_whole_if_an_answer_is_lost(
    dataset: Dataset, faulty: FaultyStore, fault: str, num_bytes: int
) -> None:
    data = (bytes(range(250)) * (num_bytes // 250 + 1))[:num_bytes]
    faulty.faults = Faults(methods={"PUT"})
    before = faulty.counts[fault]
    for first in range(1 if num_bytes == 1000 else 3):
        faulty.script(*[None] * first, fault)
        path = f"{host_of(faulty.endpoint_url)}/{dataset.name}/{first}"
        fsspec.filesystem("datasets").pipe_file(path, data, mode="create")
        assert dataset.get(f"{first}").body == data
    assert faulty.counts[fault] > before


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, StorageError),
        (403, AccessDeniedError),
        (404, ObjectNotFoundError),
        (412, ObjectChangedError),
        (503, TransientStorageError),
        (507, StorageError),
    ],
)
def test_a_refusal_is_its_error_with_the_services_message(status: int, expected: type[StorageError]) -> None:
    body = json.dumps({"error": 'the "disk"\nis \u00e5'}).encode()
    with scripted(lambda request: Response(status, body)) as server:
        url = f"datasets://{host_of(server.url)}/photos/1"
        with pytest.raises(expected, match='The service says: the "disk" is å') as caught:
            read(url, retry=ONCE)
        assert type(caught.value) is expected
        if status not in (404, 412):
            with pytest.raises(expected, match=url):
                listed(url + "/", retry=ONCE)


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"files": [{}], "folders": [], "next": null}'])
def test_an_answer_of_another_server_asks_what_is_running_there(body: bytes) -> None:
    with scripted(lambda request: Response(200, body)) as server, pytest.raises(StorageError, match="dataset service"):
        listed(f"datasets://{host_of(server.url)}/photos/")


# The token and the options


def test_the_token_is_taken_from_the_options_or_the_environment_of_the_moment(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHDATA_REMOTE_TOKEN", raising=False)
    url = f"datasets://{guarded}/photos/1"
    fsspec.filesystem("datasets", token=TOKEN).pipe_file(url, b"x")
    assert read(url, storage_options={"token": TOKEN}) == {url: b"x"}
    for options in ({}, {"token": "wrong"}):
        for attempt in (read, listed):
            with pytest.raises(AccessDeniedError, match="TORCHDATA_REMOTE_TOKEN"):
                attempt(url, storage_options=options)
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", f"{TOKEN}\n")
    assert read(url) == {url: b"x"}
    assert len(listed(url)) == 1
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", "other")
    with pytest.raises(AccessDeniedError):
        read(url)


@contextmanager
def everywhere(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each host name be this machine, on one port."""
    with monkeypatch.context() as patch:
        here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        patch.setattr(socket, "getaddrinfo", lambda *_, **__: here)
        yield


CLOSE = {"Connection": "close"}  # or the next test is answered by the server of this one
THIS_MACHINE = ["localhost:8080", "127.0.0.1:1", "127.3.2.1", "[::1]:80", "LOCALHOST"]
OTHERS = [
    *("evil.example:8080", "10.0.0.1:8080", "localhost.evil.example:80", "127.0.0.1.evil.example", "0.0.0.0:80"),
    *("[::ffff:10.0.0.1]:80", "storage:80", "storage.evil:8080", "xstorage:8080"),
]


@pytest.mark.parametrize(
    ("hosts", "named", "others"),
    [
        ("", THIS_MACHINE, OTHERS),
        ("storage:8080", ["storage:8080", "Storage:8080", *THIS_MACHINE], OTHERS),
        (" a:1 , B:2,", ["a:1", "b:2"], ["a:2", "b:1"]),
        ("storage,[fd00::1]:80", ["storage", "storage:80", "[FD00::1]:80"], ["storage.evil", "[fd00::1]:81"]),
        ("*", [], ["storage:80"]),
    ],
)
def test_the_environments_token_is_sent_to_this_machine_and_the_hosts_that_are_named(
    monkeypatch: pytest.MonkeyPatch, hosts: str, named: list[str], others: list[str]
) -> None:
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", TOKEN)
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN_HOSTS", hosts)
    body = b'{"files": [{"path": "a", "size": 1, "etag": "1", "modified": null}], "folders": [], "next": null}'
    with (
        scripted(lambda request: Response(200, body, CLOSE)) as server,
        everywhere(int(server.url.rpartition(":")[2]), monkeypatch),
    ):
        for host, token in [*((host, TOKEN) for host in named), *((host, None) for host in others)]:
            for passed, expected in ((None, token), ("passed", "passed")):
                listed(
                    f"datasets://{host}/d/", storage_options=None if passed is None else {"token": passed}, retry=ONCE
                )
                sent = server.requests[-1].headers.get("authorization")
                assert sent == (None if expected is None else f"Bearer {expected}"), host


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:80@evil.example", "localhost\\@evil.example", "evil.example#localhost", "localhost:80:80"),
        *("localhost:", "[::1", "127.1:80 ", "localhost\n"),
    ],
)
def test_a_host_that_libraries_may_read_differently_gets_no_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", TOKEN)
    with (
        scripted(lambda request: Response(404, b"", CLOSE)) as server,
        everywhere(int(server.url.rpartition(":")[2]), monkeypatch),
    ):
        with contextlib.suppress(RemoteDataError, ValueError):
            listed(f"datasets://{host}/d/", retry=ONCE)
        assert not [request for request in server.requests if "authorization" in request.headers]


def test_a_host_that_wants_the_token_of_another_one_is_an_error_that_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", TOKEN)
    monkeypatch.delenv("TORCHDATA_REMOTE_TOKEN_HOSTS", raising=False)

    def respond(request: Request) -> Response:
        return Response(401, b'{"error": "A token is required."}', CLOSE)

    with scripted(respond) as server, everywhere(int(server.url.rpartition(":")[2]), monkeypatch):
        with pytest.raises(AccessDeniedError, match="if you set TORCHDATA_REMOTE_TOKEN_HOSTS=storage:8080"):
            listed("datasets://storage:8080/d/", retry=ONCE)
        monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN_HOSTS", "storage:8080")
        with pytest.raises(AccessDeniedError, match="Pass its token by storage_options"):
            listed("datasets://storage:8080/d/", retry=ONCE)


def test_the_token_is_never_shown_and_is_not_sent_where_a_service_redirects_to(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    secret, shown = "canary-token-long-enough", list[str]()
    with scripted(lambda request: Response.of_object(request, b"x")) as other, caplog.at_level(logging.DEBUG):

        def respond(request: Request) -> Response:
            if "moved" in request.target:
                return Response(302, b"", {"Location": other.url + "/x"})
            status = int(request.target.rpartition("/")[2].partition("?")[0] or 500)
            return Response(status, b'{"error": "no \\u0000 such"}')

        with scripted(respond) as server:
            url, options = f"datasets://{host_of(server.url)}/a/", {"token": secret}
            fs = fsspec.filesystem("datasets", token=secret)
            attempts: list[Callable[[str], object]] = [
                lambda url: read(url, storage_options=options, retry=ONCE),
                lambda url: listed(url, storage_options=options, retry=ONCE),
                lambda url: tdr.pull(url, tmp_path / "t", storage_options=options, retry=ONCE),
                lambda url: fs.info(url) if url.endswith("403") else None,  # the others are asked again for minutes
            ]
            for path, attempt in itertools.product(("403", "404", "412", "moved"), attempts):
                try:
                    attempt(url + path)
                except Exception as error:
                    shown += [repr(error), *traceback.format_exception(error)]
            sent = {request.headers["authorization"] for request in server.requests}
            assert sent == {f"Bearer {secret}"}
        assert all("authorization" not in request.headers for request in other.requests)
    with pytest.raises(AccessDeniedError) as caught:
        listed("datasets://127.0.0.1:9/d/", storage_options={"token": f"{secret}\n{secret}"})
    shown += traceback.format_exception(caught.value)
    assert len(shown) > 30
    assert "canary" not in "".join([*shown, caplog.text])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "canary"}, "unknown option 'key' in storage_options. Known are secure, token"),
        ({"token": 7}, "storage_options for a dataset service are 'token' (a string;"),
        ({"secure": "yes"}, "storage_options for a dataset service are 'token' (a string;"),
    ],
)
def test_an_option_of_another_store_is_refused_and_not_shown(options: dict[str, Any], says: str) -> None:
    with pytest.raises((UrlError, ValueError, TypeError)) as caught:
        listed("datasets://127.0.0.1:9/a/b", storage_options=options)
    assert says in str(caught.value)
    assert "canary" not in str(caught.value)


# Hosts that send anything

PAGE = {
    "files": [{"path": "a", "size": 1, "etag": '"e"', "modified": None, "sha256": "0" * 64}],
    "folders": [],
    "next": None,
}
HOSTILE_VALUES = [
    *("1e400", "NaN", "-1", "1.5", "true", "null", "[]", "{}", '"x"', '""', "9" * 5000, str(2**63)),
    *('"\\ud800"', '"\\u0000"', '"a/../../b"', '"/x"', '"0001-01-01T00:00:00+23:59"', '["../"]', "[[]]"),
]


def hostile_bodies() -> Iterator[bytes]:
    """JSON in which one value is hostile, and what is no such JSON."""
    for name in ("path", "size", "etag", "modified", "sha256", "folders", "next", "files"):
        for value in HOSTILE_VALUES:
            text = json.dumps(PAGE)
            old = json.dumps(PAGE[name] if name in PAGE else PAGE["files"][0][name])  # type: ignore[index]
            yield text.replace(f'"{name}": {old}', f'"{name}": {value}').encode()
    yield from (value.encode() for value in HOSTILE_VALUES)
    yield from (b"", b"\xff", b"[" * 900, b"[" * 2_000_000, json.dumps(PAGE).encode("utf-16"), b"<html>")


def ends(call: Callable[[], object], response: bytes) -> None:
    """Call; a result is fine, and so is an error of this package, and no other."""
    try:
        call()
    except RemoteDataError:
        pass
    except BaseException as error:
        raise AssertionError(f"{type(error)} from {response[:300]!r}") from error


def test_no_json_of_a_host_raises_an_error_of_another_kind(tmp_path: Path) -> None:
    response = b""
    with raw(lambda head: response) as server:
        url = f"datasets://{host_of(server.url)}/d"
        fs = fsspec.filesystem("datasets")
        for body in hostile_bodies():
            response = answer("200 OK", body, f"Content-Length: {len(body)}")
            ends(lambda: [1 / 0 for one in listed(url + "/", retry=ONCE) if one.size < 0 or "/../" in one], response)
            ends(lambda: fs.ls(url), response)
            ends(lambda: tdr.pull(url, tmp_path / "t", retry=ONCE), response)
    assert all(path.name.startswith(".torchdata_remote-pull") for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("status", "framing"), [("200 OK", "Transfer-Encoding: chunked"), ("404 Not Found", f"Content-Length: {1 << 40}")]
)
def test_a_listing_without_end_ends_the_request(status: str, framing: str) -> None:
    num_sent = [0]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        data = b"[" + b" " * (1 << 16)
        piece = data if "chunked" not in framing else f"{len(data):x}\r\n".encode() + data + b"\r\n"

        def serve() -> None:
            while True:
                try:
                    with listening.accept()[0] as connection:
                        connection.recv(1 << 16)
                        connection.sendall(f"HTTP/1.1 {status}\r\n{framing}\r\n\r\n".encode())
                        while num_sent[0] < 300 << 20:
                            connection.sendall(piece)
                            num_sent[0] += len(piece)
                except (BrokenPipeError, ConnectionResetError):
                    continue
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(RemoteDataError):
            listed(f"datasets://127.0.0.1:{listening.getsockname()[1]}/d/", retry=ONCE)
    assert num_sent[0] < 100 << 20


def test_a_page_of_any_content_takes_little_memory_and_the_largest_one_is_read() -> None:
    inside = b"[]," * 9_000_000
    response = answer("200 OK", b'{"files": [' + inside + b"[]]}", f"Content-Length: {len(inside) + 15}")
    with raw(lambda head: response) as server:
        tracemalloc.start()
        try:
            with pytest.raises(StorageError, match="more than"):
                listed(f"datasets://{host_of(server.url)}/d/", retry=ONCE)
            assert tracemalloc.get_traced_memory()[1] < 5 * len(response)
        finally:
            tracemalloc.stop()
        name = '"[{,' * 255 + "x"
        files = [{**PAGE["files"][0], "path": f"{index:04d}{name}", "size": 2**63 - 1} for index in range(2_000)]  # type: ignore[index]
        body = json.dumps({**PAGE, "files": files}).encode()
        response = answer("200 OK", body, f"Content-Length: {len(body)}")
        found = listed(f"datasets://{host_of(server.url)}/d/", retry=ONCE)
    assert [url.rpartition("/d/")[2] for url in found] == [one["path"] for one in files]


@pytest.mark.parametrize("following", ["a", "b", 7])
def test_a_listing_that_does_not_advance_is_an_error(following: object) -> None:
    def respond(request: Request) -> Response:
        first = "after" not in request.target
        return Response(200, json.dumps({**PAGE, "next": "b" if first else following}).encode())

    with scripted(respond) as server:
        url = f"datasets://{host_of(server.url)}/d"
        for recursive in (True, False):
            with pytest.raises(StorageError):
                listed(url + "/", recursive=recursive, retry=ONCE)
        with pytest.raises(StorageError):
            fsspec.filesystem("datasets").ls(url)
