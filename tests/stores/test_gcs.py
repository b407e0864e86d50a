"""Google Cloud Storage: credentials of each kind as Google documents them, and what differs from S3."""

from __future__ import annotations

import base64
import itertools
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from google.oauth2.credentials import Credentials

import torchdata_remote as tdr
from tests.servers.between import between
from tests.servers.gcs import GcsServer
from tests.servers.google import DATA, EMAIL, Google, google_servers
from tests.servers.raw import answer, raw
from tests.servers.s3 import wait_until
from tests.servers.scripted import Request, Response
from tests.support import objects
from tests.support.objects import text_of, warnings_of
from torchdata_remote import Backend
from torchdata_remote.errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    TransientStorageError,
    UrlError,
)

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
POOL = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/cluster"
# google-auth warns of files that others could have written; here the user names them
pytestmark = pytest.mark.filterwarnings("ignore:The load_credentials_from_dict method:DeprecationWarning")
SECRETS = ("refresh-secret", "client-secret", "subject-secret", PEM[100:140], "raw-secret", "Bearer token")
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_numbers = itertools.count()


@pytest.fixture
def google() -> Iterator[Google]:
    with google_servers() as servers:
        yield servers


def service_account(google: Google, folder: Path) -> dict[str, Any]:
    """A key file of a service account, as Google's console makes it."""
    about = {"type": "service_account", "project_id": "my-project", "private_key_id": "key-1", "private_key": PEM}
    return {**about, "client_email": EMAIL, "client_id": "1", "token_uri": f"{google.url}/token"}


def user(google: Google, folder: Path) -> dict[str, Any]:
    """The file of ``gcloud auth application-default login``."""
    about = {"type": "authorized_user", "client_id": "client", "client_secret": "client-secret"}
    return {**about, "refresh_token": "refresh-secret"}


def federation(google: Google, folder: Path) -> dict[str, Any]:
    """A file of workload identity federation, with the subject's token in a file, as in a Kubernetes cluster."""
    (folder / "subject").write_text("subject-secret")
    return {
        "type": "external_account",
        "audience": POOL,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{google.url}/sts",
        "credential_source": {"file": str(folder / "subject")},
    }


def options_of(google: Google, **more: Any) -> dict[str, Any]:
    """Of a store that no other test has used: credentials are looked up where one is opened."""
    return {"endpoint_url": google.url, "default_location": f"{next(_numbers)}", **more}


def read(options: dict[str, Any], backend: Backend = Backend.OBSTORE, **more: Any) -> bytes:
    return objects.read("gs://bucket/a", options, backend=backend, **more)


def use(options: dict[str, Any]) -> None:
    """Send a read and a listing."""
    assert read(options, Backend.AUTOMATIC) == DATA
    with pytest.raises(FileNotFoundError):
        objects.listed("gs://bucket/d/", options)


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def as_dict(content: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"token": content}


def as_file(content: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    (folder / "key.json").write_text(json.dumps(content))
    return {"token": str(folder / "key.json")}


def as_default(content: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", as_file(content, folder, patch)["token"])
    return {}


def as_login(content: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    (folder / "application_default_credentials.json").write_text(json.dumps(content))
    patch.setenv("CLOUDSDK_CONFIG", str(folder))
    return {"token": "google_default"}


WAYS = {"dict": as_dict, "file": as_file, "environment": as_default, "login": as_login}
KINDS: dict[str, Callable[[Google, Path], dict[str, Any]]] = {
    "service account": service_account,
    "user": user,
    "federation": federation,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_credentials_of_a_file_get_one_token_for_all_requests(
    google: Google, kind: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://developers.google.com/identity/protocols/oauth2/service-account and native-app#offline;
    https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token
    """
    if (kind, way) == ("federation", "login"):
        return  # no login makes such a file
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{google.url}/token")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # a server on this machine is reached past a proxy
    options = options_of(google, **WAYS[way](KINDS[kind](google, tmp_path), tmp_path, monkeypatch))
    use(options)
    (asked,) = google.of_tokens()
    assert set(google.tokens_sent()) == {"Bearer token-1"}
    form = {name: found[0] for name, found in parse_qs(asked.body.decode()).items()}
    if kind == "service account":
        assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
        head, claims, signature = form["assertion"].split(".")
        said = json.loads(decoded(claims))
        assert (said["iss"], said["scope"]) == (EMAIL, SCOPE)
        assert said["iat"] - 60 <= time.time() <= said["exp"] <= said["iat"] + 3600
        KEY.public_key().verify(decoded(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
    elif kind == "user":
        assert [form[name] for name in ("grant_type", "client_id", "client_secret", "refresh_token")] == [
            "refresh_token", "client", "client-secret", "refresh-secret",
        ]  # fmt: skip
    else:
        assert (asked.target, form["audience"], form["scope"]) == ("/sts", POOL, SCOPE)
        assert form["subject_token"] == "subject-secret"


@pytest.mark.parametrize(
    ("token", "sent"),
    [
        ("raw-secret", "Bearer raw-secret"),
        ("raw\n", "Bearer raw"),  # files and commands end with a line feed
        ("anon", None),
        (Credentials("raw-secret"), "Bearer raw-secret"),  # type: ignore[no-untyped-call]
    ],
)
def test_a_token_is_sent_as_it_is(
    google: Google, token: Any, sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An access token and anonymous requests need no package of Google."""
    if isinstance(token, str):
        monkeypatch.setitem(sys.modules, "google.auth", None)
        with pytest.raises(UrlError, match=r"pip install 'torchdata_remote\[gs\]'"):
            read(options_of(google, token="google_default"))
    use(options_of(google, token=token))
    assert set(google.tokens_sent()) == {sent}
    assert google.of_tokens() == []


def test_without_credentials_the_error_says_how_public_buckets_are_read(google: Google) -> None:
    with pytest.raises(AccessDeniedError, match=r"no credentials of Google: .*\{'token': 'anon'\}"):
        read(options_of(google))
    assert google.requests == []


def test_a_refused_token_is_renewed_once(google: Google, tmp_path: Path) -> None:
    """The request is sent again, and the new token is used from then on; one that is given cannot be renewed."""
    google.refused = {"token-1"}
    options = options_of(google, token=service_account(google, tmp_path))
    assert read(options) == read(options) == DATA
    assert google.tokens_sent() == ["Bearer token-1", *["Bearer token-2"] * 2]
    google.refused = {f"token-{number}" for number in range(9)} | {"raw-secret"}
    with pytest.raises(
        ExpiredCredentialsError, match=r"gs://bucket/a: the store answered 401.*token of storage_options"
    ):
        read(options)
    assert google.tokens_sent()[3:] == ["Bearer token-2", "Bearer token-3"]
    google.requests.clear()
    with pytest.raises(ExpiredCredentialsError, match="'token' of storage_options, which cannot be renewed") as caught:
        read(options_of(google, token="raw-secret"))
    assert len(google.requests) == 2
    assert "raw-secret" not in str(caught.value)


def test_a_token_is_renewed_when_it_ends_and_the_server_of_tokens_is_not_asked_for_each_request(
    google: Google, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    google.expires_in_s = 100
    options = options_of(google, token=service_account(google, tmp_path))
    for _ in range(5):
        read(options)
    assert google.tokens_sent() == ["Bearer token-1"] * 5
    now_s += 95  # the end is nearer than clocks may differ
    google.expires_in_s = 200
    wait_until(lambda: bool(read(options)) and len(google.of_tokens()) == 2, "obstore, which asks ten times a second,")
    google.status = 400
    now_s += 40
    assert read(options) == DATA  # until the end of the token
    now_s += 70
    with pytest.raises(AccessDeniedError, match="invalid_grant"):
        wait_until(lambda: not read(options), "obstore")


@pytest.mark.parametrize(
    ("options", "status", "code", "said"),
    [
        ({"token": "anon"}, 401, "AuthenticationRequired", r"401.*not signed \(token='anon'\)"),
        (
            {"token": "raw-secret"},
            403,
            "AccessDenied",
            "403.*Storage Object Viewer.*The token is 'token' of storage_op",
        ),
        ({"token": "raw-secret"}, 400, "UserProjectMissing", "400 UserProjectMissing"),
    ],
)
def test_an_error_of_access_says_what_to_do_and_where_the_credentials_are_from(
    google: Google, options: dict[str, Any], status: int, code: str, said: str
) -> None:
    google.storage_status, google.code = status, code
    given = options_of(google, **options)
    for attempt in (lambda: read(given), lambda: objects.listed("gs://bucket/a/", given)):
        with pytest.raises(AccessDeniedError, match=f"gs://bucket/a/?: the store answered {said}") as caught:
            attempt()
        assert "raw-secret" not in text_of(caught.value)


SHOWN = {"dict": "token of storage_options", "file": "key.json", "environment": "GOOGLE_APPLICATION_CREDENTIALS"}


@pytest.mark.parametrize("way", SHOWN)
def test_a_refused_exchange_names_the_file_and_shows_no_secret(
    google: Google, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{google.url}/token")
    google.status = 400
    options = options_of(google, **WAYS[way](user(google, tmp_path), tmp_path, monkeypatch))
    with pytest.raises(
        AccessDeniedError, match=f"no access token: RefreshError: invalid_grant.*{SHOWN[way]}"
    ) as caught:
        read(options)
    assert not any(secret in str(caught.value) for secret in SECRETS)


@pytest.mark.parametrize("token", [{"type": "service_account", "private_key": "secret"}, {"type": "odd"}, {}])
def test_unusable_credentials_are_an_error_that_names_them(
    google: Google, token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        (UrlError, AccessDeniedError), match=r"no credentials of Google: .*token of storage_opt"
    ) as caught:
        read(options_of(google, token=token))
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    with pytest.raises(
        AccessDeniedError, match=r"/nonexistent/key\.json was not found.*GOOGLE_APPLICATION_CREDENTIALS"
    ):
        read(options_of(google))
    assert google.requests == []


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"", b"[1]", b'{"access_token": "a", "expires_in": "soon"}'])
def test_a_server_of_tokens_that_sends_something_else_or_nothing_is_asked_again(
    google: Google, body: bytes, tmp_path: Path
) -> None:
    """It may be the page of a proxy."""
    with raw(lambda head: answer("200 OK", body, f"Content-Length: {len(body)}")) as server:
        token = service_account(Google(server.url), tmp_path)
        with pytest.raises(TransientStorageError, match=r"gs://bucket: no access token: (Type|Value)Error"):
            read(options_of(google, token=token))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        token = service_account(Google(f"http://127.0.0.1:{silent.getsockname()[1]}"), tmp_path)
        policy = tdr.RetryPolicy(max_attempts=1, progress_timeout_s=0.3)
        with pytest.raises(TransientStorageError, match="gs://bucket: no access token"):
            read(options_of(google, token=token), retry=policy)


def test_the_project_of_the_options_pays_for_each_request(google: Google) -> None:
    use(options_of(google, token="raw-secret", requester_pays="payer"))
    use(options_of(google, token="raw-secret", requester_pays=True, project="payer-2"))
    sent = [one.headers.get("x-goog-user-project") for one in google.of_storage()]
    assert [payer for payer, _ in itertools.groupby(sent)] == ["payer", "payer-2"]


def test_the_emulator_of_the_environment_is_used_without_credentials(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, value in enumerate((google.url, google.url.removeprefix("http://"))):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", value)
        assert objects.read(f"gs://bucket{number}/a", {"consistency": "none"}) == DATA
        assert objects.read(f"gcs://bucket{number}/a", {"token": "raw-secret"}) == DATA
    assert google.tokens_sent() == [None, "Bearer raw-secret"] * 2


@pytest.mark.parametrize("refused", ["DELETE", "copy"])
def test_a_large_object_that_cannot_be_published_or_deleted_stays_hidden_and_is_removed_by_the_next_writer(
    gcs: GcsServer, refused: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An account may be allowed to create objects only: a warning says so, once."""

    def decide(request: Request) -> Response | None:
        is_copy = "x-goog-copy-source" in request.headers
        is_refused = is_copy if refused == "copy" else request.method == "DELETE" and "partial" in request.target
        return Response.of_error(403, "AccessDenied") if is_refused else None

    place, options = gcs.new_place(), gcs.storage_options
    with between(gcs.endpoint_url, decide) as url:
        broken = {**options, "endpoint_url": url}
        if refused == "copy":
            with pytest.raises(AccessDeniedError):
                objects.write(f"{place}/f/", broken, num_bytes=16 << 20)
        else:
            objects.write(f"{place}/f/", broken, num_bytes=16 << 20)
            [message] = warnings_of(caplog)
            assert "storage.objects.delete" in message
    hidden = [path for path in gcs.paths(place) if path.rpartition("/")[2].startswith(".")]
    assert len(hidden) == (refused == "DELETE")
    if refused == "DELETE":
        assert len(objects.listed(f"{place}/f/", options)) == 4
    else:
        assert not [path for path in gcs.paths(place) if path.endswith("0.tar")]
    objects.write(f"{place}/f/", options, overwrite=True)
    assert len(objects.listed(f"{place}/f/", options)) == 4
