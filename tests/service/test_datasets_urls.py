"""``datasets://`` URLs: pipes read, list and write them, whom they send the token, and whatever answers there."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
import sys
import threading
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    ObjectExistsError,
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


NAMES = st.text(
    st.characters(min_codepoint=32, blacklist_categories=["Cc", "Cs"], blacklist_characters="/\\*?[]{}"), min_size=1
).filter(lambda name: name not in (".", "..") and len(name.encode()) <= 200)


@given(path=st.lists(NAMES, min_size=1, max_size=3).map("/".join))
def test_a_path_is_percent_encoded_once(path: str) -> None:
    with scripted(lambda request: Response.of_object(request, b"12345")) as server:
        fs = fsspec.filesystem("datasets")
        assert fs.cat_file(f"{host_of(server.url)}/photos/{path}", 1, 3) == b"23"
        assert {unquote(request.target) for request in server.requests} == {f"/datasets/photos/files/{path}"}


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


def test_the_datasets_of_a_host_are_listed_in_the_order_of_paths(served_memory: str) -> None:
    names = [f"order{end}" for end in ("-b", "", "c")]
    for name in names:
        Dataset(served_memory, name).fill({"1": b"x", "2": b"x"})
    Dataset(served_memory, "order-empty")
    found = [url.removeprefix(f"datasets://{served_memory}/") for url in listed(f"datasets://{served_memory}/")]
    assert [path for path in found if path.startswith("order")] == [
        *("order-b/1", "order-b/2", "order/1", "order/2", "orderc/1", "orderc/2")
    ]
    assert found == sorted(found)


def test_shards_are_written_and_streamed_with_their_manifest(dataset: Dataset, tmp_path: Path) -> None:
    samples = [{"__key__": f"{number:03}", "txt": f"text {number}"} for number in range(10)]
    for url in (dataset.url, f"{dataset.url}-new"):  # an unknown dataset is created
        with tdr.ShardWriter(url + "/{shard:03d}.tar", max_shard_samples=4) as writer:
            for sample in samples:
                writer.write(dict(sample))
        found = list(tdr.stream_shards(f"{url}/index.json", shuffle=False))
        assert [(sample["__key__"], bytes(sample["txt"]).decode()) for sample in found] == [
            (one["__key__"], one["txt"]) for one in samples
        ]
        assert [path for path in Dataset(dataset.address, url.rpartition("/")[2]).paths() if path.endswith(".tar")] == [
            *("000.tar", "001.tar", "002.tar")
        ]
    with pytest.raises(ObjectExistsError), tdr.ShardWriter(dataset.url + "/{shard:03d}.tar") as writer:
        writer.write(dict(samples[0]))


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


@pytest.mark.parametrize(
    "fault",
    [
        *("slow_down", "internal_error", "reset", "early_end", "reset_in_body", "cut_body", "cut_without_length"),
        *("short_range", "ignored_range", "shifted_range", "doubled"),
    ],
)
def test_a_broken_answer_is_asked_for_again(dataset: Dataset, faulty: FaultyStore, fault: str) -> None:
    data = bytes(range(256)) * 20
    dataset.put("a", data)
    url = f"datasets://{host_of(faulty.endpoint_url)}/{dataset.name}/a"
    faulty.script(fault, None, fault)
    assert read(url) == {url: data}
    faulty.script(fault, fault)
    assert read(url, part_bytes=1000) == {url: data}
    faulty.faults = Faults(changed=1)
    with pytest.raises(ObjectChangedError):
        read(url, part_bytes=1000)


@pytest.mark.parametrize("fault", ["slow_down", "reset", "early_end", "reset_in_body", "cut_body", "internal_error"])
@pytest.mark.parametrize("num_bytes", [1000, 33 << 20])
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
        (401, AccessDeniedError),
        (403, AccessDeniedError),
        (404, ObjectNotFoundError),
        (412, ObjectChangedError),
        (429, TransientStorageError),
        (500, TransientStorageError),
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


@pytest.mark.parametrize(
    "body", [b"<html>", b"{}", b'{"files": 1}', b'{"files": [{}], "folders": [], "next": null}', b""]
)
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
        ("storage", ["storage", "storage:80"], ["storage.evil", "evil"]),
        (" a:1 , B:2,", ["a:1", "b:2"], ["a:2", "b:1"]),
        ("[fd00::1]:80", ["[fd00::1]:80", "[FD00::1]:80"], ["[fd00::1]:81", "[fd00::2]:80"]),
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
        with pytest.raises(AccessDeniedError, match="set TORCHDATA_REMOTE_TOKEN_HOSTS=storage:8080"):
            listed("datasets://storage:8080/d/", retry=ONCE)
        monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN_HOSTS", "storage:8080")
        with pytest.raises(AccessDeniedError, match="Pass its token by storage_options"):
            listed("datasets://storage:8080/d/", retry=ONCE)


def test_the_token_is_never_shown_and_follows_no_redirect(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
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
                lambda url: fs.info(url) if url.endswith(("400", "401", "403")) else None,
            ]
            for path in ("400", "401", "403", "404", "412", "500", "507", "moved"):
                for attempt in attempts:
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
    assert len(shown) > 50
    assert "canary" not in "".join([*shown, caplog.text])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "canary"}, "unknown option 'key' in storage_options. Known are secure, token."),
        (
            {"client_kwargs": {}, "token": "canary"},
            "unknown option 'client_kwargs' in storage_options. Known are secure,",
        ),
        ({"token": 7}, "storage_options for a dataset service are 'token' (a string;"),
        ({"secure": "yes"}, "storage_options for a dataset service are 'token' (a string;"),
    ],
)
def test_an_option_of_another_store_is_refused_and_not_shown(options: dict[str, Any], says: str) -> None:
    with pytest.raises((UrlError, ValueError, TypeError)) as caught:
        listed("datasets://127.0.0.1:9/a/b", storage_options=options)
    assert says in str(caught.value)
    assert "canary" not in str(caught.value)


def test_secure_speaks_tls_alone() -> None:
    with scripted(lambda request: Response()) as server:
        for attempt in (read, listed):
            with pytest.raises(TransientStorageError):
                attempt(f"datasets://{host_of(server.url)}/a/b", storage_options={"secure": True}, retry=ONCE)
        assert not server.requests


# Hosts that send anything

PAGE = {
    "files": [{"path": "a", "size": 1, "etag": '"e"', "modified": None, "sha256": "0" * 64}],
    "folders": [],
    "next": None,
}
HOSTILE_VALUES = [
    *("1e400", "NaN", "-1", "1.5", "true", "null", "[]", "{}", '"x"', '"z/"', '""', "9" * 5000, f'"{"9" * 5000}"'),
    *(str(2**63), '"\\ud800"', '"\\u0000"', '"a/../../b"', '"/x"', '"x//y/"', '"0001-01-01T00:00:00+23:59"'),
    *(
        '"9999-12-31T23:59:59-23:59"',
        '"99999-01-01T00:00:00Z"',
        "[[0, 1e400]]",
        '[{"name": "../x"}]',
        '["../"]',
        "[[]]",
    ),
]


def hostile_bodies() -> Iterator[bytes]:
    """JSON in which one value is hostile, and what is no such JSON."""
    for name in ("path", "size", "etag", "modified", "sha256", "folders", "next", "files"):
        for value in HOSTILE_VALUES:
            text = json.dumps(PAGE)
            old = json.dumps(PAGE[name] if name in PAGE else PAGE["files"][0][name])  # type: ignore[index]
            yield text.replace(f'"{name}": {old}', f'"{name}": {value}').encode()
    yield from (value.encode() for value in HOSTILE_VALUES)
    yield from (
        b"",
        b"\xff",
        b"[" * 900,
        b'{"a":' * 900,
        b"[" * 2_000_000,
        json.dumps(PAGE).encode("utf-16"),
        b"<html>",
    )


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
            for call in (
                lambda: (
                    [entry for entry in listed(url + "/", retry=ONCE) if entry.size < 0 or ".." in entry.split("/")]
                    and 1 / 0
                ),
                lambda: fs.ls(url),
                lambda: tdr.pull(url, tmp_path / "t", retry=ONCE),
            ):
                ends(call, response)
    assert all(path.name.startswith(".torchdata_remote-pull") for path in tmp_path.rglob("*") if path.is_file())


HOSTILE_HEADERS = {
    "Content-Length": ["1e400", "-1", "", "5, 6", "9" * 4000, "9" * 19, str(2**64)],
    "Last-Modified": ["Sat, 21 Nov 99999 00:00:00 GMT", "Mon, 01 Jan 0001 00:00:00 +2359", "yesterday"],
    "Content-Range": ["bytes 0-9/*", "bytes 5-14/20", f"bytes 0-{2**64 - 1}/{2**64 - 1}", f"bytes {'9' * 4000}-1/2"],
    "ETag": ["", "W/", '"', "\xff\xfe", "x" * 60_000],
    "Retry-After": ["1e400", "9" * 4000, "-1", "\xb2", "Fri, 31 Dec 9999 23:59:59 -2359"],
    "Content-Encoding": ["gzip", "\xff"],
    "Transfer-Encoding": ["gzip", "chunked", "chunked, chunked"],
}


@pytest.mark.parametrize("status", ["200 OK", "206 Partial Content", "412 Precondition Failed", "503 Busy"])
def test_no_header_of_a_host_raises_an_error_of_another_kind(status: str) -> None:
    response = b""
    known = {"Content-Length": "10", "ETag": '"e"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
    own = {**known, "Content-Range": "bytes 0-9/10"} if status.startswith("206") else known
    with raw(lambda head: response) as server:
        url = f"datasets://{host_of(server.url)}/d/a"
        fs = fsspec.filesystem("datasets")
        for header, values in HOSTILE_HEADERS.items():
            for value in values:
                if header == "Content-Length" and value.startswith("999") and status[0] > "2":
                    continue  # obstore allocates as much as an error response announces
                headers = {**own, header: value}
                response = answer(status, b"0123456789", *(f"{key}: {text}" for key, text in headers.items()))
                ends(lambda: read(url, retry=ONCE), response)
                if status[0] != "5":  # which is asked again for minutes
                    ends(lambda: fs.info(url), response)


@pytest.mark.parametrize("framing", [f"Content-Length: {1 << 40}", "Transfer-Encoding: chunked", "Connection: close"])
@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
def test_a_listing_without_end_ends_the_request(framing: str, status: str) -> None:
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


def test_a_small_page_has_no_values_that_take_much_memory_and_the_largest_one_is_read(tmp_path: Path) -> None:
    inside = b"[]," * 9_000_000
    response = answer("200 OK", b'{"files": [' + inside + b"[]]}", f"Content-Length: {len(inside) + 15}")
    with raw(lambda head: response) as server:
        tracemalloc.start()
        try:
            with pytest.raises(StorageError, match="values"):
                listed(f"datasets://{host_of(server.url)}/d/", retry=ONCE)
            assert tracemalloc.get_traced_memory()[1] < 5 * len(response)
        finally:
            tracemalloc.stop()
        name = '"[{,' * 255 + "x"
        files = [{**PAGE["files"][0], "path": f"{index:04d}{name}", "size": 2**63 - 1} for index in range(10_000)]  # type: ignore[index]
        body = json.dumps({**PAGE, "files": files}).encode()
        response = answer("200 OK", body, f"Content-Length: {len(body)}")
        found = listed(f"datasets://{host_of(server.url)}/d/", retry=ONCE)
    assert [url.rpartition("/d/")[2] for url in found] == [one["path"] for one in files]


@pytest.mark.parametrize("following", ["a", "b", "", 7, {}])
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


def test_importing_the_package_registers_the_scheme_with_fsspec(dataset: Dataset) -> None:
    dataset.put("a.txt", b"hello")
    program = (
        f"import torchdata_remote, fsspec\nwith fsspec.open('{dataset.url}/a.txt', 'rt') as file: print(file.read())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "hello\n"
