"""Who may ask: tokens, hosts, other sites' pages."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.support.service_clients import below, client_of
from torchdata_remote.service.server.app import make_app

TOKEN = "a token of some length: +/="
OPEN = "/healthz"


def basic(password: str | bytes, user: str = "anybody") -> str:
    raw = password if isinstance(password, bytes) else password.encode()
    return "Basic " + base64.b64encode(user.encode() + b":" + raw).decode()


@pytest.fixture(scope="module")
def guarded_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@pytest.fixture(scope="module")
def guarded(guarded_root: Path) -> Iterator[TestClient]:
    """A client of a service with a token."""
    with client_of(guarded_root, token=TOKEN) as client:
        yield client


@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(TOKEN), basic(TOKEN, "")])
def test_the_token_is_accepted_as_bearer_or_basic_password(guarded: TestClient, header: str) -> None:
    """With any user."""
    assert guarded.get("/datasets", headers={"Authorization": header}).status_code == 200


WRONG_HEADERS = [
    None,
    "",
    "Bearer",
    "Bearer ",
    f"Bearer {TOKEN}x",
    f"Bearer {TOKEN[:-1]}",
    f"Bearer {TOKEN.upper()}",
    TOKEN,
    f"Digest {TOKEN}",
    f"Basic {TOKEN}",
    "Basic",
    "Basic !!!",
    basic("wrong"),
    basic(""),
    basic(b"\xff\xfe"),
    basic(TOKEN + ":x"),
    "Bearer ä€".encode(),
    b"Bearer \xff\xfe",
]
GUARDED_PATHS = ["/", "/metrics", "/openapi.json", "/dataset/x", "/nothing", "/healthz/.."]


@pytest.mark.parametrize(
    ("header", "path"),
    # The token is compared before the path is looked at, so each is varied by itself.
    [*((header, "/datasets") for header in WRONG_HEADERS), *(("Bearer", path) for path in GUARDED_PATHS)],
)
def test_requests_without_the_token_are_refused(guarded: TestClient, header: str | bytes | None, path: str) -> None:
    """401, wherever it is asked for, and the answer says what is needed."""
    headers = {} if header is None else {b"Authorization": header if isinstance(header, bytes) else header.encode()}
    answer = guarded.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic")
    assert set(answer.json()) == {"error"}
    assert TOKEN not in answer.text


@pytest.mark.parametrize(("method", "path"), [("POST", "/datasets"), ("PUT", "/datasets/d"), ("DELETE", "/datasets/d")])
def test_nothing_is_changed_without_the_token(guarded: TestClient, guarded_root: Path, method: str, path: str) -> None:
    """Writing requests are refused as reading ones are."""
    assert guarded.request(method, path, content=b'{"name": "d"}').status_code == 401
    assert below(guarded_root) == set()


def test_healthz_needs_no_token(guarded: TestClient) -> None:
    """For Kubernetes' probes."""
    assert guarded.get(OPEN).json() == {"status": "ok"}
    assert guarded.head(OPEN).status_code == 200
    for path in ("/healthz/", "/healthz%2f", "//healthz", "/Healthz", "/healthz%00"):
        assert guarded.get(path).status_code == 401


def test_a_service_with_a_token_accepts_any_host(guarded: TestClient) -> None:
    """Whatever name the cluster has for it."""
    headers = {"Host": "datasets.default.svc:8080", "Authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/datasets", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080", "127.1.2.3:8080"]
)
def test_a_service_without_a_token_accepts_loopback_hosts(shared: TestClient, host: str) -> None:
    """With any port."""
    assert shared.get("/datasets", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1:80.evil",
        "",
        "10.0.0.1",
        "[::2]",
        "localhost:",
        "0.0.0.0",
        "2130706433",
        "localhost@evil",
        "127.0.0.1:x",
    ],
)
def test_a_service_without_a_token_refuses_other_hosts(shared: TestClient, host: str) -> None:
    """421, also for /healthz: a page whose name resolves to this machine (DNS rebinding) can read nothing."""
    for path in ("/datasets", "/healthz"):
        answer = shared.get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert set(answer.json()) == {"error"}


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_pages_of_other_sites_cannot_write(shared: TestClient, dataset: str, site: str) -> None:
    """403 for requests that a browser sends for another site; the service's own page and programs are allowed."""
    requests = [
        ("PUT", f"/datasets/{dataset}/files/a"),
        ("DELETE", f"/datasets/{dataset}"),
        ("POST", "/datasets"),
    ]
    for method, path in requests:
        assert shared.request(method, path, headers={"Sec-Fetch-Site": site}, content=b"x").status_code == 403
    for fine in ("same-origin", "none"):
        assert shared.put(requests[0][1], headers={"Sec-Fetch-Site": fine}, content=b"x").status_code == 200


def test_an_empty_token_is_refused(tmp_path: Path) -> None:
    """It would match requests without one."""
    with pytest.raises(ValueError, match="token is empty"):
        make_app(str(tmp_path), token="")


def test_a_request_without_the_token_is_refused_before_its_body_is_read(guarded_service: str) -> None:
    """With Expect, the body is never asked for."""
    host, _, port = guarded_service.rpartition(":")
    for authorization in (b"", b"Authorization: Bearer wrong\r\n"):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(
                b"PUT /datasets/d/files/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n"
                b"Expect: 100-continue\r\n" + authorization + b"\r\n"
            )
            response = b""
            while piece := connection.recv(65536):  # until the service ends the connection
                response += piece
        assert response.startswith(b"HTTP/1.1 401 ")
        assert b"100 Continue" not in response
