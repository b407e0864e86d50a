"""Stores that cannot be reached, or that do not answer: what is said, and when."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from torchdata_remote.core.notices import slow_notice
from torchdata_remote.core.options import Backend, FetchOptions, RetryPolicy, StorageOptions
from torchdata_remote.core.retry import call_with_retries
from torchdata_remote.errors import StorageError, TransientStorageError
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage import Connection, fsspec_store, list_prefix, multipart, open_store
from torchdata_remote.storage.dataset_service import client

UNKNOWN = "no-such-host.invalid:9000"
HEADERS = b'HTTP/1.1 200 OK\r\nContent-Length: 100000\r\nETag: "1"\r\n\r\n'
Call = Callable[[str, RetryPolicy], object]


def _options(scheme: str, host: str) -> StorageOptions:
    keys = {"key": "k", "secret": "s", "region": "us-east-1", "endpoint_url": f"http://{host}"}
    return StorageOptions(keys if scheme == "s3" else {})


def _url(scheme: str, host: str) -> str:
    """An object on a bucket or host; buckets are new, because a host that has answered is known for ever."""
    return f"s3://b-{uuid.uuid4().hex}/d/a.tar" if scheme == "s3" else f"{scheme}://{host}/d/a.tar"


def _reading(scheme: str, backend: Backend) -> Call:
    def read(host: str, retry: RetryPolicy) -> object:
        url, options = _url(scheme, host), _options(scheme, host)
        session = FetchSession(FetchOptions(retry=retry, backend=backend), options)
        with closing(stream_objects([url], session)) as streams:
            return next(streams)[1].read()

    return read


def _calling(scheme: str, call: Callable[[Any, str], object], backend: Backend = Backend.AUTOMATIC) -> Call:
    def send(host: str, retry: RetryPolicy) -> object:
        url = _url(scheme, host)
        store, path = open_store(url, _options(scheme, host), Connection(backend, retry.progress_timeout_s))
        if call is _write and backend is Backend.AUTOMATIC:  # it retries by itself
            return call(store, path)
        return call_with_retries(lambda: call(store, path), retry, url=url)

    return send


def _listing(scheme: str) -> Call:
    def list_all(host: str, retry: RetryPolicy) -> object:
        return list(list_prefix(_url(scheme, host), "d/", True, _options(scheme, host), retry))

    return list_all


def _write(store: Any, path: str) -> None:
    writer = store.create(path, overwrite=True)
    try:
        writer.write(b"x")
        writer.commit()
    finally:
        writer.abort()


CALLS = {
    "s3 read by obstore": _reading("s3", Backend.OBSTORE),
    "s3 read by botocore": _reading("s3", Backend.BOTOCORE),
    "s3 read by s3fs": _reading("s3", Backend.FSSPEC),
    "s3 listing": _listing("s3"),
    "s3 stat": _calling("s3", lambda store, path: store.stat(path)),
    "s3 write": _calling("s3", _write),
    "s3 delete": _calling("s3", lambda store, path: store.delete(path)),
    "s3fs listing": _calling(
        "s3", lambda store, path: store.list_page("d/", recursive=True, token=None), Backend.FSSPEC
    ),
    "s3fs write": _calling("s3", _write, Backend.FSSPEC),
    "http read by obstore": _reading("http", Backend.OBSTORE),
    "http read by fsspec": _reading("http", Backend.FSSPEC),
    "http stat": _calling("http", lambda store, path: store.stat(path)),
    "datasets read": _reading("datasets", Backend.AUTOMATIC),
    "datasets listing": _listing("datasets"),
    "datasets write": _calling("datasets", _write),
    "datasets delete": _calling("datasets", lambda store, path: store.delete(path)),
}
EACH = pytest.mark.parametrize("name", CALLS)


@pytest.fixture(autouse=True)
def _policy_of_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers take the default policy; the time of these tests is bounded by this one."""
    quick = RetryPolicy(max_attempts=3, first_wait_s=0.01, max_wait_s=0.02, progress_timeout_s=0.4)
    monkeypatch.setattr(multipart, "RetryPolicy", lambda: quick)
    monkeypatch.setattr(fsspec_store, "QUIET_S", 0.1)
    monkeypatch.setattr(client, "_WRITE_TIMEOUT_S", 0.4)
    monkeypatch.setattr(slow_notice, "_said_at", {})


@pytest.fixture
def refusing() -> str:
    """The address of a port at which nothing listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and sends nothing."""
    with _accepting(b"") as address:
        yield address


@contextmanager
def _accepting(response: bytes) -> Iterator[str]:
    """Accept connections, and send this to each request, and nothing more."""
    accepted: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                accepted.append(server.accept()[0])
                if response:
                    accepted[-1].recv(65536)
                    accepted[-1].sendall(response)

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in accepted:
            connection.close()


@EACH
def test_an_unknown_host_is_an_error_that_names_it(name: str) -> None:
    """With what to check, and within ten seconds whatever the deadline: after eight attempts."""
    policy = RetryPolicy(first_wait_s=0.001, max_wait_s=0.002)
    began_s = time.monotonic()
    with pytest.raises(StorageError, match=r"No such host|No name server") as caught:
        CALLS[name](UNKNOWN, policy)
    assert time.monotonic() - began_s < 10
    assert f"{UNKNOWN.partition(':')[0]}" in str(caught.value)
    assert "Check " in str(caught.value)


@EACH
def test_a_refused_connection_is_said_at_once(name: str, refusing: str, caplog: pytest.LogCaptureFixture) -> None:
    """At the first refusal, with the server and until when it is repeated; then it is an error by the deadline."""
    with pytest.raises(TransientStorageError, match=f"{refusing} refuses connections") as caught:
        CALLS[name](refusing, RetryPolicy(max_attempts=3, first_wait_s=0.01, max_wait_s=0.02))
    assert "Gave up after 3 attempts" in str(caught.value)
    said = [record.getMessage() for record in caplog.records if "refuses connections" in record.getMessage()]
    assert len(said) == 1
    assert "Attempt 1 failed; it is repeated until " in said[0]
    assert "(deadline_s=300, max_attempts=3)" in said[0]


def _slow_notices(name: str, host: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said of a call that is given up after 0.4 s."""
    policy = RetryPolicy(max_attempts=1, progress_timeout_s=0.4)
    with pytest.raises(StorageError):
        CALLS[name](host, policy)
    return [record.getMessage() for record in caplog.records if ": no data for " in record.getMessage()]


@EACH
def test_a_server_that_does_not_answer_is_reported(name: str, silent: str, caplog: pytest.LogCaptureFixture) -> None:
    """Before the attempt is given up: with URL, seconds and what happens next."""
    [said] = _slow_notices(name, silent, caplog)
    assert said.startswith(("s3://b-", f"http://{silent}/d", f"datasets://{silent}/d"))
    assert " is given up after 0.4 s without data" in said or "s3fs" in name


@pytest.mark.parametrize("name", [name for name in CALLS if " read by " in name])
def test_headers_without_a_body_are_reported(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """They are no progress."""
    with _accepting(HEADERS) as host:
        assert len(_slow_notices(name, host, caplog)) == 1
