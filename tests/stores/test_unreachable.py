"""Stores that cannot be reached, or that do not answer: what is said, and when it is an error."""

from __future__ import annotations

import re
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.servers.scripted import Response, scripted
from tests.stores.transports import by, target
from tests.support import objects
from tests.support.objects import warnings_of
from torchdata_remote.errors import StorageError, TransientStorageError

UNKNOWN = "no-such-host.invalid:9000"
RANGE = b"Content-Length: 100000\r\nContent-Range: bytes 0-99999/100000"
HEADERS = (
    b'HTTP/1.1 206 Partial Content\r\nETag: "1"\r\nLast-Modified: Sat, 21 Nov 2026 00:00:00 GMT\r\n'
    + RANGE
    + b"\r\n\r\n"
)


def new(transport: str, host: str) -> Any:
    """An object of a bucket or host that this process has not asked: one that has answered is known for ever."""
    here = target(transport, f"http://{host}", f"{uuid.uuid4().hex}.tar")
    bucket = f"b-{uuid.uuid4().hex}"
    return here._replace(url=here.url.replace("://bucket/", f"://{bucket}/").replace("://box/", f"://{bucket}/"))


def attempts(transport: str, here: Any, retry: tdr.RetryPolicy) -> Iterator[Any]:
    yield lambda: here.read(retry=retry)
    if not transport.startswith("http"):
        yield lambda: objects.listed(here.url.rpartition("/")[0] + "/", here.options, retry=retry)


@by("hub")
def test_an_unknown_host_is_an_error_after_a_few_attempts_that_names_it(transport: str) -> None:
    """With what to check, whatever the deadline."""
    for attempt in attempts(transport, new(transport, UNKNOWN), tdr.RetryPolicy(first_wait_s=0, deadline_s=3000)):
        with pytest.raises(StorageError, match=r"No such host|No name server") as caught:
            attempt()
        assert not isinstance(caught.value, TransientStorageError)
        assert UNKNOWN.partition(":")[0] in str(caught.value)
        assert caught.value.attempts is None or caught.value.attempts <= 8
        assert re.search("Check ", str(caught.value))


def test_a_name_server_that_fails_after_the_host_has_answered_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has never answered is given up after eight attempts, and one that has by the policy only."""
    known, resolve = [True], socket.getaddrinfo

    def look_up(host: Any, *arguments: Any, **more: Any) -> Any:
        if host in ("known.invalid", "new.invalid") and (not known[0] or host == "new.invalid"):
            raise socket.gaierror(-3, "Temporary failure in name resolution")
        return resolve("127.0.0.1" if host == "known.invalid" else host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    retry = tdr.RetryPolicy(first_wait_s=0, max_attempts=12)
    with scripted(lambda request: Response(200, b"data", {"Connection": "close"})) as server:
        port = server.url.rpartition(":")[2]
        url = f"http://known.invalid:{port}/a?x=1"
        assert objects.read(url) == b"data"
        known[0] = False
        with pytest.raises(TransientStorageError, match="Gave up after 12 attempts"):
            objects.read(url, retry=retry)
        with pytest.raises(StorageError, match="No name server") as caught:
            objects.read(f"http://new.invalid:{port}/a?x=1", retry=retry)
        assert not isinstance(caught.value, TransientStorageError)
        known[0] = True
        assert objects.read(url) == b"data"


@by("hub", "az")
def test_a_refused_connection_is_said_at_the_first_refusal_and_repeated(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the server, and until when it is repeated; then it is an error."""
    retry = tdr.RetryPolicy(max_attempts=3, first_wait_s=0.01, max_wait_s=0.02)
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        for attempt in attempts(transport, new(transport, host), retry):
            with pytest.raises(TransientStorageError, match=f"{host} refuses connections.*Gave up after 3 attempts"):
                attempt()
    first, *_ = [line for line in warnings_of(caplog) if "refuses connections" in line]
    assert "Attempt 1 failed; it is repeated until " in first
    assert "(deadline_s=300, max_attempts=3)" in first


@contextmanager
def accepting(response: bytes) -> Iterator[str]:
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


@by("hub")
@pytest.mark.parametrize("response", [b"", HEADERS], ids=["silent", "headers only"])
def test_a_server_that_does_not_answer_is_reported_before_an_attempt_is_given_up(
    transport: str, response: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """With the URL, the seconds, and what happens next."""
    policy = tdr.RetryPolicy(max_attempts=1, progress_timeout_s=1.5)
    with accepting(response) as host:
        here = new(transport, host)
        with pytest.raises(StorageError):
            here.read(retry=policy)
        [said] = [line for line in warnings_of(caplog) if ": no data for " in line]
        assert said.startswith(here.url[:12])
        assert " is given up after 1.5 s without data" in said
