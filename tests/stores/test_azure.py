"""Azure Blob Storage: accounts, credentials and their renewal, and what differs from S3."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from tests.servers.azurite import ACCOUNT, KEY, AzuritePlace
from tests.servers.raw import answer, raw
from tests.servers.s3 import wait_until
from tests.servers.scripted import Request, Response, Scripted, scripted
from tests.support import objects
from tests.support.objects import text_of
from torchdata_remote.errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)

SAS = "sv=2023-11-03&sr=c&sig=c2VjcmV0%3D"
CLOUD = f"DefaultEndpointsProtocol=https;AccountName=pets;AccountKey={KEY};EndpointSuffix=core.windows.net"
DATE = "Mon, 27 Jan 2025 10:00:00 GMT"
OBSTORE = "obstore, which asks for credentials ten times a second at most,"
_numbers = itertools.count()


class Cloud:
    """Azure's metadata server and blob service: it gives tokens that are valid for so long."""

    def __init__(self) -> None:
        self.valid_s, self.refused, self.num_tokens = 3600, set[str](), 0
        self.server = Scripted("", [])

    def respond(self, request: Request) -> Response:
        if request.target.startswith("/token"):
            self.num_tokens += 1
            end = int(time.time()) + self.valid_s
            body = {"access_token": f"token-{self.num_tokens}", "expires_on": str(end), "token_type": "Bearer"}
            return Response(200, json.dumps({**body, "resource": "https://storage.azure.com"}).encode())
        if request.headers.get("authorization", "").removeprefix("Bearer ") in self.refused:
            return Response(401, b"", {"x-ms-error-code": "InvalidAuthenticationInfo"})
        if "comp=list" in request.target:
            return Response(200, page(blob("a", 5, etag="0x1")))
        found = Response.of_object(request, b"bytes", '"0x1"')
        return Response(found.status, found.body, {**found.headers, "Last-Modified": DATE})

    def of(self, path: str) -> list[Request]:
        return [one for one in self.server.requests if one.target.startswith(path)]

    def sent(self) -> set[str | None]:
        return {one.headers.get("authorization") for one in self.of("/pets")}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """With a managed identity as App Service, Functions and Container Apps offer it, by two variables."""
    running = Cloud()
    with scripted(running.respond) as running.server:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{running.server.url}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "s3cret")
        yield running


def use(cloud: Cloud, **options: Any) -> bool:
    """Read and list."""
    text = f"BlobEndpoint={cloud.server.url}/pets;AccountName=pets"
    given_options = {"connection_string": text, **options}
    assert objects.read("az://box/a", given_options) == b"bytes"
    assert objects.listed("az://box/", given_options) == ["az://box/a"]
    return False


class Given:
    """A credential of the user, which returns what a test says, or raises it."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.num_calls = list(answers), 0

    def get_token(self, *scopes: str) -> Any:
        assert scopes == ("https://storage.azure.com/.default",)
        self.num_calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def token(text: Any, valid_s: Any = 3600.0) -> Any:
    return SimpleNamespace(token=text, expires_on=time.time() + valid_s if isinstance(valid_s, float) else valid_s)


def test_a_managed_identity_gives_one_token_for_all_requests(cloud: Cloud) -> None:
    """https://learn.microsoft.com/en-us/azure/app-service/overview-managed-identity#rest-endpoint-reference"""
    use(cloud)
    [asked] = cloud.of("/token")
    assert "resource=https://storage.azure.com" in unquote(asked.target)
    assert "api-version=2019-08-01" in asked.target
    assert asked.headers["x-identity-header"] == "s3cret"
    assert cloud.sent() == {"Bearer token-1"}
    assert all(one.headers["x-ms-version"] >= "2017-11-09" for one in cloud.of("/pets"))


def test_tokens_are_renewed_in_time_and_once_where_one_is_refused(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.valid_s, now_s = 60, time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    for _ in range(2):
        use(cloud)
    assert cloud.num_tokens == 1
    now_s += 31  # those that hold for a minute are renewed after half of it
    wait_until(lambda: use(cloud) or cloud.num_tokens == 2, OBSTORE)
    credential = Given(*(token(f"token-of-test-{number}") for number in range(1, 9)))
    cloud.refused = {"token-of-test-1"}
    use(cloud, credential=credential)
    assert credential.num_calls == 2
    cloud.refused = {f"token-of-test-{number}" for number in range(9)}
    with pytest.raises(AccessDeniedError, match="from Given, in 'credential' of storage_options") as caught:
        use(cloud, credential=credential)
    assert "token-of-test" not in text_of(caught.value)


def test_a_failed_renewal_is_no_error_while_the_token_is_valid(
    cloud: Cloud, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of tokens is not asked for each request then; afterwards it is asked until the deadline."""
    unavailable, withdrawn = ConnectionError("no route"), RuntimeError("invalid_client: AADSTS7000215")
    credential = Given(token("token-1", 300.0), unavailable, withdrawn)
    use(cloud, credential=credential)
    soon_s = time.time() + 31
    monkeypatch.setattr(time, "time", lambda: soon_s)
    wait_until(lambda: use(cloud, credential=credential) or credential.num_calls == 2, OBSTORE)
    for _ in range(3):
        use(cloud, credential=credential)
    assert credential.num_calls == 2
    assert cloud.sent() == {"Bearer token-1"}
    assert "The current credentials are used until they expire" in caplog.text
    later_s = soon_s + 3700
    monkeypatch.setattr(time, "time", lambda: later_s)
    credential.answers = [unavailable, withdrawn]
    with pytest.raises(TransientStorageError, match="no access token: ConnectionError: no route"):
        wait_until(lambda: bool(use(cloud, credential=credential)), OBSTORE)
    with pytest.raises(StorageError, match="invalid_client") as caught:
        wait_until(lambda: bool(use(cloud, credential=credential)), OBSTORE)
    assert not isinstance(caught.value, TransientStorageError)


@pytest.mark.parametrize(
    "answer",
    [token("token-\nx"), token(5), None, "token-", token("t", "soon")],
)
def test_what_is_no_token_is_an_error_that_names_the_credential_and_does_not_show_it(cloud: Cloud, answer: Any) -> None:
    with pytest.raises(AccessDeniedError, match=r"token.*from Given, in 'credential'") as caught:
        use(cloud, credential=Given(answer))
    assert "token-" not in str(caught.value)
    assert cloud.of("/pets") == []


def test_no_credentials_or_no_package_say_what_to_do(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IDENTITY_ENDPOINT")
    monkeypatch.delenv("IDENTITY_HEADER")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # the others take seconds
    with pytest.raises(AccessDeniedError, match=r"no access token: .*az login.*'anon': True"):
        use(cloud)
    for name in ("azure.identity", "azure.storage.blob"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(AccessDeniedError, match=r"pip install 'torchdata_remote\[az\]'"):
        use(cloud, location_mode="primary")
    use(cloud, account_key="a2V5")
    assert all(str(sent).startswith("SharedKey pets:") for sent in cloud.sent())
    cloud.server.requests.clear()
    use(cloud, anon=True)
    assert cloud.sent() == {None}


@pytest.mark.parametrize(
    ("url", "options", "host"),
    [
        ("az://box/a", {"account_name": "pets"}, "pets.blob.core.windows.net"),
        ("abfs://box@pets.dfs.core.windows.net/a", {}, "pets.blob.core.windows.net"),
        ("abfss://box@pets.blob.core.chinacloudapi.cn/a", {}, "pets.blob.core.chinacloudapi.cn"),
        (
            "az://box/a",
            {"account_name": "pets", "account_host": "pets.z1.blob.storage.azure.net"},
            "pets.z1.blob.storage.azure.net",
        ),
        ("az://box/a", {"connection_string": CLOUD}, "pets.blob.core.windows.net"),
        ("az://box/a", {"connection_string": "UseDevelopmentStorage=true"}, "127.0.0.1:10000"),
    ],
    ids=str,
)
def test_requests_go_to_the_endpoint_of_the_account(
    url: str, options: dict[str, Any], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As adlfs and Microsoft's clients find it; a proxy is asked for a tunnel to it."""
    with raw(lambda head: answer("403 Forbidden", b"", "Content-Length: 0")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", "")
        for attempt in (objects.listed, objects.read):
            with pytest.raises(StorageError) as caught:
                attempt(url, {**options, "anon": True})
    if host.startswith("127"):
        assert f"{host} refuses connections" in str(caught.value)
    else:
        assert {head.split()[1] for head in proxy.heads} == {f"{host}:443"}


@pytest.mark.parametrize(
    ("options", "environment", "sent"),
    [
        ({"account_key": KEY}, {}, "SharedKey pets:"),
        ({"credential": SAS}, {}, SAS),
        ({"credential": KEY}, {}, "SharedKey pets:"),
        ({"credential": Given(token("token-x"))}, {}, "Bearer token-x"),
        ({"more": f";SharedAccessSignature={SAS}"}, {}, SAS),
        ({"more": f";AccountKey={KEY}"}, {}, "SharedKey pets:"),
        ({"anon": True, "account_key": KEY}, {}, ""),
        ({}, {"AZURE_STORAGE_ACCOUNT_KEY": KEY}, "SharedKey pets:"),
        ({}, {"AZURE_STORAGE_SAS_TOKEN": SAS}, SAS),
        ({}, {"AZURE_STORAGE_ANON": "true"}, ""),
        ({}, {"AZURE_STORAGE_ANON": "false"}, "Bearer token-1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_first_credential_that_is_there_is_used(
    cloud: Cloud, options: dict[str, Any], environment: dict[str, str], sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options before the environment, in adlfs's words."""
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    text = f"BlobEndpoint={cloud.server.url}/pets;AccountName=pets{options.pop('more', '')}"
    use(cloud, **options, connection_string=text)
    for one in cloud.of("/pets"):
        shown = f"{one.target} {one.headers.get('authorization')}"
        assert sent in shown
        assert sent or not re.search("sig=|Bearer|SharedKey", shown)


def sas_of(place: str, *, minutes: int) -> str:
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    end = dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=minutes)
    permission = ContainerSasPermissions(read=True, list=True)
    sas: str = generate_container_sas(ACCOUNT, place.removeprefix("az://"), KEY, permission=permission, expiry=end)
    return sas


def test_a_sas_or_public_access_gives_what_it_permits_and_an_error_says_the_rest(azurite: AzuritePlace) -> None:
    """Without the signature."""
    place, private = azurite.new_place(public_access="container"), azurite.new_place()
    for where in (place, private):
        azurite.put(f"{where}/d/a", b"bytes")
    text = {"connection_string": f"BlobEndpoint={azurite.endpoint_url}/{ACCOUNT};AccountName={ACCOUNT}"}
    good, old = ({**text, "sas_token": sas_of(private, minutes=minutes)} for minutes in (30, -5))
    anonymous = {**text, "anon": True}
    for where, options in ((private, good), (place, anonymous)):
        assert objects.read(f"{where}/d/a", options) == b"bytes"
        assert objects.listed(f"{where}/d/", options) == [f"{where}/d/a"]
    with pytest.raises(AccessDeniedError, match="'sas_token' of storage_options") as caught:
        objects.write(f"{private}/e/", good)
    assert good["sas_token"].partition("sig=")[2] not in text_of(caught.value)
    for attempt in (objects.read, objects.listed):
        with pytest.raises(AccessDeniedError, match="'sas_token' of storage_options"):
            attempt(f"{private}/d/a", old)
    with pytest.raises(StorageError, match=r"anonymous|anon=True"):
        objects.read(f"{private}/d/a", anonymous)


def test_a_wrong_key_names_its_source_and_is_not_shown(azurite: AzuritePlace) -> None:
    place = azurite.new_place()
    wrong = azurite.connection_string.replace(KEY[:6], "AAAAAA")
    for attempt in (objects.read, objects.listed):
        with pytest.raises(AccessDeniedError, match="The credentials are from the connection string") as caught:
            attempt(f"{place}/a", {"connection_string": wrong})
        assert KEY[6:] not in text_of(caught.value)
    invalid = azurite.connection_string.replace(KEY, "a")
    with pytest.raises(AccessDeniedError, match="The credentials are from the connection string"):
        objects.listed(f"{place}/", {"connection_string": invalid})


ERRORS = [
    (404, "BlobNotFound", ObjectNotFoundError, "no such object"),
    (404, "ContainerNotFound", ObjectNotFoundError, "box.*no such container"),
    (412, "ConditionNotMet", ObjectChangedError, "was replaced"),
    (401, "InvalidAuthenticationInfo", ExpiredCredentialsError, "Renew the credentials"),
    (403, "AuthenticationFailed", AccessDeniedError, "403 AuthenticationFailed: no"),
    (403, "AuthorizationPermissionMismatch", AccessDeniedError, "403 AuthorizationPermissionMismatch: no"),
    (409, "PublicAccessNotPermitted", AccessDeniedError, "409 PublicAccessNotPermitted: no"),
    (409, "BlobArchived", StorageError, "409 BlobArchived: no"),
    (400, "InvalidHeaderValue", StorageError, "400 InvalidHeaderValue"),
    (503, "ServerBusy", TransientStorageError, "503"),
    (500, "OperationTimedOut", TransientStorageError, "500"),
    (409, "ContainerBeingDeleted", TransientStorageError, "409"),
]


@pytest.mark.parametrize(("status", "code", "kind", "text"), ERRORS)
def test_each_code_of_azure_is_one_error(status: int, code: str, kind: type[Exception], text: str) -> None:
    """As Microsoft documents them; the same by both libraries."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    with scripted(lambda request: Response(status, body, {"x-ms-error-code": code})) as server:
        options = {"connection_string": f"BlobEndpoint={server.url}/pets;AccountName=pets", "sas_token": SAS}
        for attempt in (objects.read, objects.listed):
            if attempt is objects.listed and code in ("BlobNotFound", "ConditionNotMet"):
                continue
            with pytest.raises(kind, match=text) as caught:
                attempt("az://box/a", options)
            assert isinstance(caught.value, TransientStorageError) == (kind is TransientStorageError)
            assert "c2VjcmV0" not in text_of(caught.value)


# Pages of listings


def blob(name: str, size: int = 3, more: str = "", etag: str = "0x8D1") -> str:
    return (
        f"<Blob><Name>{name}</Name><Properties><Creation-Time>{DATE}</Creation-Time><Last-Modified>{DATE}"
        f"</Last-Modified><Etag>{etag}</Etag>{more}<Content-Length>{size}</Content-Length><Content-Type>a/b"
        "</Content-Type><BlobType>BlockBlob</BlobType></Properties><OrMetadata /></Blob>"
    )


def page(*parts: str, marker: str = "<NextMarker />") -> bytes:
    head = '\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="box">'
    return f"{head}<Prefix>a</Prefix><Blobs>{''.join(parts)}</Blobs>{marker}</EnumerationResults>".encode()


@pytest.fixture(scope="module")
def pages() -> Iterator[tuple[list[bytes], dict[str, Any]]]:
    """The bodies that a server sends, one after the other, and the last one from then on; and its options."""
    bodies = [b""]

    def respond(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(404)
        return Response(200, bodies.pop(0) if len(bodies) > 1 else bodies[0])

    with scripted(respond) as server:
        yield bodies, {"connection_string": f"BlobEndpoint={server.url}/pets;AccountName=pets", "anon": True}


def listed(pages: tuple[list[bytes], dict[str, Any]], *bodies: bytes) -> list[tuple[str, int | None, str | None]]:
    pages[0][:] = bodies
    found = objects.listed("az://box/", pages[1], retry=objects.QUICK)
    return [(url.removeprefix("az://box/"), url.size, url.etag) for url in found]


def test_pages_are_put_together_and_markers_of_folders_are_no_objects(
    pages: tuple[list[bytes], dict[str, Any]],
) -> None:
    """Those of consoles, and directories of a hierarchical namespace."""
    directory, file = (f"<Owner>me</Owner><ResourceType>{kind}</ResourceType>" for kind in ("directory", "file"))
    first = page(blob("z/", 0), blob("b", 0, directory), blob("y", 1, file), marker="<NextMarker>2!x</NextMarker>")
    second = page("<BlobPrefix><Name>q/</Name></BlobPrefix>", blob("c&#1234;&amp;&lt;", 10**15))
    assert listed(pages, first, second) == [("c\u04d2&<", 10**15, '"0x8D1"'), ("y", 1, '"0x8D1"')]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>busy</html>", page(blob("a"))[:-30]),
        *(page(blob("a").replace(">3<", text)) for text in ("><", f">{'9' * 5000}<")),
    ],
    ids=range(5),
)
def test_an_incomplete_page_is_requested_again_and_never_the_end_of_a_listing(
    pages: tuple[list[bytes], dict[str, Any]], body: bytes
) -> None:
    assert listed(pages, body, body, page(blob("a"))) == [("a", 3, '"0x8D1"')]
    with pytest.raises(StorageError, match="list response"):
        listed(pages, body)
    more = page(blob("a"), marker="<NextMarker>2!x</NextMarker>")
    with pytest.raises(StorageError, match="lists 'a' twice"):
        listed(pages, more)
