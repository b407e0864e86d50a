"""Credentials of Azure's identities, on the wire: compared with Microsoft's documentation, since Azure is not here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.servers.threaded import in_thread
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError, StorageError, TransientStorageError
from torchdata_remote.storage import open_store
from torchdata_remote.storage.azure.credentials import _Grant
from torchdata_remote.storage.protocol import Store

SECRETS = ("s3cret", "token-")


class Cloud(ThreadingHTTPServer):
    """Azure's metadata server and blob service: it records requests, and gives tokens that are valid for so long."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.requests: list[tuple[str, dict[str, list[str]], dict[str, str]]] = []
        self.valid_s, self.refused = 3600, set[str]()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def of(self, path: str) -> list[tuple[str, dict[str, list[str]], dict[str, str]]]:
        return [one for one in self.requests if one[0].startswith(path)]


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Cloud

    def do_GET(self) -> None:
        parts, headers = urlsplit(self.path), {name.lower(): value for name, value in self.headers.items()}
        with self.server.lock:
            self.server.requests.append((parts.path, parse_qs(parts.query), headers))
            number = len(self.server.of("/token"))
        if parts.path == "/token":
            end = int(time.time()) + self.server.valid_s
            body: dict[str, Any] = {"access_token": f"token-{number}", "expires_on": str(end), "token_type": "Bearer"}
            self._send(200, json.dumps({**body, "resource": "https://storage.azure.com"}).encode())
        elif headers.get("authorization", "").removeprefix("Bearer ") in self.server.refused:
            self._send(401, b"", {"x-ms-error-code": "InvalidAuthenticationInfo"})
        else:
            self._send(200, b"bytes", {"ETag": '"0x1"', "Last-Modified": "Mon, 27 Jan 2025 10:00:00 GMT"})

    do_HEAD = do_GET  # noqa: N815  # the name is http.server's

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    server = Cloud()
    with in_thread(server):
        yield server


@pytest.fixture(autouse=True)
def _app_service(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """A managed identity as App Service, Functions and Container Apps offer it, by these two variables."""
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{cloud.url}/token")
    monkeypatch.setenv("IDENTITY_HEADER", "s3cret")


def store_of(cloud: Cloud, **options: Any) -> Store:
    text = f"BlobEndpoint={cloud.url}/pets;AccountName=pets"
    return open_store("az://box/a", StorageOptions({"connection_string": text, **options}))[0]


def read(store: Store) -> None:
    assert store.read("a", 0, None, None).whole() == b"bytes"
    assert store.stat("a").size == 5


def test_a_managed_identity_is_found(cloud: Cloud) -> None:
    """One token, asked as documented, is sent with every request, by both transports.

    https://learn.microsoft.com/en-us/azure/app-service/overview-managed-identity#rest-endpoint-reference
    """
    read(store_of(cloud))
    [(_, query, headers)] = cloud.of("/token")
    assert query["resource"] == ["https://storage.azure.com"]
    assert query["api-version"] == ["2019-08-01"]
    assert headers["x-identity-header"] == "s3cret"
    sent = [
        (path, headers["authorization"], headers["x-ms-version"] >= "2017-11-09")
        for path, _, headers in cloud.of("/pets")
    ]
    assert sent == [("/pets/box/a", "Bearer token-1", True)] * 2


def test_a_token_is_renewed_before_it_expires(cloud: Cloud) -> None:
    """Here at once, since those that the server gives hold for a minute; none is sent after its end."""
    cloud.valid_s = 60
    store = store_of(cloud)
    read(store)
    read(store)
    assert len(cloud.of("/token")) >= 2


def test_a_token_that_is_refused_is_renewed_once(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """By urllib3 and by obstore; after that the error says where it is from, and does not show it."""
    monkeypatch.setattr("torchdata_remote.storage.azure.credentials._RENEW_S", 0.0)
    store = store_of(cloud, credential=Counted())
    cloud.refused = {"token-of-test-1"}
    assert store.stat("a").size == 5
    cloud.refused.add("token-of-test-2")
    assert store.read("a", 0, None, None).whole() == b"bytes"
    cloud.refused.update(f"token-of-test-{number}" for number in range(20))
    for call in (lambda: store.stat("a"), lambda: store.read("a", 0, None, None)):
        with pytest.raises(AccessDeniedError, match="from Counted, in storage_options") as caught:
            call()
        assert "token-" not in str(caught.value)


class Counted:
    """A credential of the user, whose tokens are numbered."""

    def __init__(self) -> None:
        self.number = 0

    def get_token(self, *scopes: str) -> Any:
        assert scopes == ("https://storage.azure.com/.default",)
        self.number += 1
        return type("Token", (), {"token": f"token-of-test-{self.number}", "expires_on": time.time() + 3600})


def test_no_credentials_say_what_to_do(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they were searched is in the text of azure-identity."""
    monkeypatch.delenv("IDENTITY_ENDPOINT")
    monkeypatch.delenv("IDENTITY_HEADER")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # the others take seconds
    with pytest.raises(AccessDeniedError, match=r"found no credentials.*az login.*'anon': True"):
        store_of(cloud).stat("a")


def test_a_missing_package_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it; a SAS and anonymous access need none."""
    monkeypatch.setitem(__import__("sys").modules, "azure.identity", None)
    monkeypatch.setitem(__import__("sys").modules, "azure.storage.blob", None)
    with pytest.raises(AccessDeniedError, match=r"pip install 'torchdata_remote\[az\]'"):
        store_of(cloud).stat("a")
    with pytest.raises(AccessDeniedError, match=r"pip install 'torchdata_remote\[az\]'"):
        store_of(cloud, account_key="a2V5").stat("a")
    read(store_of(cloud, anon=True))
    assert not any("authorization" in headers for _, _, headers in cloud.of("/pets"))
    cloud.requests.clear()
    read(store_of(cloud, sas_token="?sv=2023-11-03&sig=s3cret%3D"))
    assert [(query["sig"], query["sv"]) for _, query, _ in cloud.of("/pets")] == [(["s3cret="], ["2023-11-03"])] * 2


class Given:
    """A credential of the user, which returns what a test says, or raises it."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def get_token(self, *scopes: str) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def token(text: Any, valid_s: Any = 3600.0) -> Any:
    return SimpleNamespace(token=text, expires_on=time.time() + valid_s if isinstance(valid_s, float) else valid_s)


@pytest.mark.parametrize("text", ["token-\nx", "token- x", "token-\u20ac", "", 5], ids=repr)
def test_a_token_that_no_header_can_hold_is_an_error_without_it(cloud: Cloud, text: Any) -> None:
    """Libraries show it in their errors, and obstore panics."""
    store = store_of(cloud, credential=Given(token(text)))
    for call in (lambda: store.stat("a"), lambda: store.read("a", 0, None, None)):
        with pytest.raises(AccessDeniedError, match=r"the access token .*from Given") as caught:
            call()
        assert "token-" not in str(caught.value)
    assert cloud.of("/pets") == []


def test_a_line_feed_behind_a_token_is_left_out(cloud: Cloud) -> None:
    """Files and commands end with one."""
    read(store_of(cloud, credential=Given(token("token-a\n"))))
    assert {headers["authorization"] for _, _, headers in cloud.of("/pets")} == {"Bearer token-a"}


@pytest.mark.parametrize(
    "answer", [None, "token-", token("t", "soon"), token("t", None)], ids=["none", "str", "text", "no end"]
)
def test_what_is_no_token_is_an_error_that_names_the_credential(cloud: Cloud, answer: Any) -> None:
    """Rather than an ``AttributeError``."""
    with pytest.raises(AccessDeniedError, match=r"Given.get_token returned .*, which is no access token"):
        store_of(cloud, credential=Given(answer)).stat("a")


def test_a_failed_renewal_is_no_error_while_the_token_is_valid(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    """The server of tokens is not asked for each request then."""
    credential = Given(
        token("token-1", 300.0), ConnectionError("no route"), ConnectionError("no route"), token("token-2")
    )
    store = store_of(cloud, credential=credential)
    for _ in range(5):
        read(store)
    assert len(credential.answers) == 2
    assert {headers["authorization"] for _, _, headers in cloud.of("/pets")} == {"Bearer token-1"}
    assert "The current token is used until it expires" in caplog.text


def test_a_failed_renewal_is_repeated_until_the_deadline(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that have worked are not missing; those that were withdrawn are an error at once."""
    unavailable, withdrawn = RuntimeError("unavailable"), RuntimeError("invalid_client: AADSTS7000215")
    store = store_of(cloud, credential=Given(token("token-1"), unavailable, withdrawn))
    store.stat("a")
    later_s = time.time() + 3700
    monkeypatch.setattr(time, "time", lambda: later_s)
    with pytest.raises(TransientStorageError, match="no access token: unavailable"):
        store.stat("a")
    with pytest.raises(StorageError, match="invalid_client") as caught:
        store.stat("a")
    assert not isinstance(caught.value, TransientStorageError)


def test_reprs_of_tokens_do_not_show_them(cloud: Cloud) -> None:
    """Debuggers and reports of errors show them."""
    assert "secret" not in repr(_Grant("sig=secret", "secret", 5.0))
