"""Credentials of each kind: what is sent to Google's servers, compared with Google's documentation."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from google.oauth2.credentials import Credentials

from tests.servers.google import DATA, EMAIL, Google
from tests.servers.raw import answer, raw
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError, ExpiredCredentialsError, TransientStorageError, UrlError
from torchdata_remote.storage.gcs import tokens
from torchdata_remote.storage.gcs.credentials import Found
from torchdata_remote.storage.gcs.settings import GcsSettings, gcs_settings
from torchdata_remote.storage.gcs.store import GcsStore

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
).decode()
POOL = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/cluster"
# google-auth warns of files that others could have written; here the user names them
pytestmark = pytest.mark.filterwarnings("ignore:The load_credentials_from_dict method:DeprecationWarning")
SECRETS = ("refresh-secret", "client-secret", "subject-secret", PEM[100:140], "raw-secret")
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


def service_account(google: Google) -> dict[str, Any]:
    """A key file of a service account, as Google's console makes it."""
    return {
        "type": "service_account",
        "project_id": "my-project",
        "private_key_id": "key-1",
        "private_key": PEM,
        "client_email": EMAIL,
        "client_id": "1",
        "token_uri": f"{google.url}/token",
    }


def user(google: Google, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The file of ``gcloud auth application-default login``. Its tokens are always Google's own."""
    patch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{google.url}/token")
    return {
        "type": "authorized_user",
        "client_id": "client",
        "client_secret": "client-secret",
        "refresh_token": "refresh-secret",
    }


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


def store_of(google: Google, *, read_by_obstore: bool = True, **options: Any) -> GcsStore:
    settings = gcs_settings(StorageOptions({"endpoint_url": google.url, **options}), 30)
    assert settings is not None
    return GcsStore("bucket", settings, read_by_obstore=read_by_obstore)


def use(store: GcsStore) -> None:
    """Send one request by obstore and one by botocore."""
    assert store.read("a", 0, None, None).whole() == DATA
    assert store.find("b") is None


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


Way = Callable[[dict[str, Any], Path, pytest.MonkeyPatch], dict[str, Any]]


@pytest.mark.parametrize("way", [as_dict, as_file, as_default, as_login])
def test_a_service_account_signs_a_request_for_a_token(
    google: Google, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As https://developers.google.com/identity/protocols/oauth2/service-account says, and once for all requests."""
    use(store_of(google, **way(service_account(google), tmp_path, monkeypatch)))
    (asked,) = google.of_tokens()
    assert (asked.method, asked.path) == ("POST", "/token")
    assert asked.form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    head, claims, signature = asked.form["assertion"].split(".")
    assert json.loads(decoded(head)) == {"alg": "RS256", "typ": "JWT", "kid": "key-1"}
    said = json.loads(decoded(claims))
    assert (said["iss"], said["aud"], said["scope"]) == (EMAIL, "https://oauth2.googleapis.com/token", SCOPE)
    assert said["iat"] - 60 <= time.time() <= said["exp"] <= said["iat"] + 3600
    KEY.public_key().verify(decoded(signature), f"{head}.{claims}".encode(), padding.PKCS1v15(), hashes.SHA256())
    assert google.tokens_sent() == ["Bearer token-1"] * 2


@pytest.mark.parametrize("way", [as_dict, as_default, as_login])
def test_a_user_exchanges_the_refresh_token(
    google: Google, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As https://developers.google.com/identity/protocols/oauth2/native-app#offline says."""
    use(store_of(google, **way(user(google, monkeypatch), tmp_path, monkeypatch)))
    (asked,) = google.of_tokens()
    sent = {name: asked.form[name] for name in ("grant_type", "client_id", "client_secret", "refresh_token")}
    assert list(sent.values()) == ["refresh_token", "client", "client-secret", "refresh-secret"]
    assert google.tokens_sent() == ["Bearer token-1"] * 2


@pytest.mark.parametrize("way", [as_dict, as_file, as_default])
def test_workload_identity_exchanges_the_token_of_the_cluster(
    google: Google, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token says."""
    use(store_of(google, **way(federation(google, tmp_path), tmp_path, monkeypatch)))
    (asked,) = google.of_tokens()
    assert asked.path == "/sts"
    assert asked.form["grant_type"] == "urn:ietf:params:oauth:grant-type:token-exchange"
    assert (asked.form["audience"], asked.form["scope"]) == (POOL, SCOPE)
    assert asked.form["requested_token_type"] == "urn:ietf:params:oauth:token-type:access_token"
    assert asked.form["subject_token_type"] == "urn:ietf:params:oauth:token-type:jwt"
    assert asked.form["subject_token"] == "subject-secret"
    assert google.tokens_sent() == ["Bearer token-1"] * 2


METADATA_PROGRAM = """
import sys
from tests.storage.gcs.test_credentials import store_of, use
from tests.servers.google import Google
use(store_of(Google(sys.argv[1]), **eval(sys.argv[2])))
"""


@pytest.mark.system
@pytest.mark.parametrize("options", [{}, {"token": "cloud"}])
def test_the_metadata_server_of_a_machine_gives_tokens(google: Google, options: dict[str, str]) -> None:
    """As https://cloud.google.com/compute/docs/access/authenticate-workloads says: by a header, and with a scope."""
    host = google.url.removeprefix("http://")
    environment = {**os.environ, "GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "NO_GCE_CHECK": "false"}
    command = [sys.executable, "-c", METADATA_PROGRAM, google.url, repr(options)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    asked = [one for one in google.of_tokens() if one.path.endswith("/token")]
    accounts = "/computeMetadata/v1/instance/service-accounts"
    assert [one.path for one in asked] in ([f"{accounts}/{EMAIL}/token"], [f"{accounts}/default/token"])
    assert all(one.headers["metadata-flavor"] == "Google" for one in google.of_tokens())
    assert google.tokens_sent() == ["Bearer token-1"] * 2


def test_an_access_token_is_sent_as_it_is(google: Google) -> None:
    """It needs no package of Google."""
    use(store_of(google, token="raw-secret"))
    assert google.tokens_sent() == ["Bearer raw-secret"] * 2
    assert google.of_tokens() == []


def test_credentials_of_google_auth_are_used(google: Google) -> None:
    """Any object of the package's classes."""
    use(store_of(google, token=Credentials("raw-secret")))  # type: ignore[no-untyped-call]
    assert google.tokens_sent() == ["Bearer raw-secret"] * 2


def test_anonymous_requests_have_no_token(google: Google, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the environment has, even a file that obstore could not read."""
    as_default(federation(google, tmp_path), tmp_path, monkeypatch)
    use(store_of(google, token="anon"))
    assert google.tokens_sent() == [None, None]
    assert google.of_tokens() == []


def test_without_credentials_requests_are_anonymous_and_a_warning_says_so(
    google: Google, caplog: pytest.LogCaptureFixture
) -> None:
    """As with gcsfs, but not silently."""
    use(store_of(google))
    assert google.tokens_sent() == [None, None]
    (message,) = [one.getMessage() for one in caplog.records if one.name == "torchdata_remote"]
    assert "gs://bucket: The request was not signed, because no credentials were found" in message
    assert "storage_options={'token': 'anon'}" in message


def test_a_token_is_renewed_before_it_expires(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that ends within minutes is not used for another request."""
    store = store_of(google, read_by_obstore=False, token=service_account(google))
    use(store)
    now = tokens._now()
    monkeypatch.setattr(tokens, "_now", lambda: now + dt.timedelta(seconds=3400))
    use(store)
    assert google.tokens_sent() == ["Bearer token-1"] * 2 + ["Bearer token-2"] * 2


def test_a_token_that_lives_shortly_is_used_until_it_ends(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not renewed for each request."""
    google.expires_in_s = 100
    store = store_of(google, read_by_obstore=False, token=service_account(google))
    use(store)
    now = tokens._now()
    monkeypatch.setattr(tokens, "_now", lambda: now + dt.timedelta(seconds=40))
    use(store)
    assert google.tokens_sent() == ["Bearer token-1"] * 2 + ["Bearer token-2"] * 2


@pytest.mark.parametrize("read_by_obstore", [True, False])
def test_a_refused_token_is_renewed_once(google: Google, read_by_obstore: bool) -> None:
    """By reads and by other requests; the request is sent again, and the new token is used from then on."""
    google.refused = {"token-1"}
    store = store_of(google, read_by_obstore=read_by_obstore, token=service_account(google))
    assert store.read("a", 0, None, None).whole() == DATA
    use(store)
    assert google.tokens_sent() == ["Bearer token-1", *["Bearer token-2"] * 3]
    google.refused = {"token-1", "token-2", "token-3", "token-4"}
    with pytest.raises(ExpiredCredentialsError, match=f"gs://bucket/a: the store answered 401.* are from .*{EMAIL}"):
        store.read("a", 0, None, None)
    assert google.tokens_sent()[4:] == ["Bearer token-2", "Bearer token-3"]


def test_a_refused_access_token_is_an_error_at_once(google: Google) -> None:
    """It cannot be renewed."""
    google.refused = {"raw-secret"}
    with pytest.raises(ExpiredCredentialsError, match="'token' of storage_options, which cannot be renewed") as caught:
        store_of(google, token="raw-secret").find("a")
    assert len(google.requests) == 1
    assert "raw-secret" not in str(caught.value)


@pytest.mark.parametrize("read_by_obstore", [True, False])
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
        ({"token": "raw-secret"}, 400, "UserProjectMissing", "400.*pass storage_options={'requester_pays': 'my-proj"),
    ],
)
def test_an_error_of_access_says_what_to_do_and_where_the_credentials_are_from(
    google: Google, options: dict[str, Any], status: int, code: str, said: str, read_by_obstore: bool
) -> None:
    """A refused anonymous request is no expired one."""
    google.storage_status, google.code = status, code
    store = store_of(google, read_by_obstore=read_by_obstore, **options)
    for call in (lambda: store.read("a", 0, None, None), lambda: store.list_page("a", recursive=True, token=None)):
        with pytest.raises(AccessDeniedError, match=f"gs://bucket/a: the store answered {said}") as caught:
            call()
        assert not isinstance(caught.value, ExpiredCredentialsError)
        assert "raw-secret" not in str(caught.value)


@pytest.mark.parametrize("way", [as_dict, as_file, as_default])
def test_a_refused_exchange_names_the_file_and_shows_no_secret(
    google: Google, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a user whose login has been revoked."""
    google.status = 400
    shown: dict[Way, str] = {
        as_dict: "'token' of storage_options",
        as_file: "key.json",
        as_default: "GOOGLE_APPLICATION_CREDENTIALS",
    }
    store = store_of(google, **way(user(google, monkeypatch), tmp_path, monkeypatch))
    with pytest.raises(
        AccessDeniedError, match=f"no access token: invalid_grant.*Log in again.*{shown[way]}"
    ) as caught:
        store.read("a", 0, None, None)
    assert not any(secret in str(caught.value) for secret in SECRETS)


def test_a_server_of_tokens_that_does_not_answer_is_transient() -> None:
    """A request for a token is repeated like one for an object."""
    nowhere = Google("http://127.0.0.1:1")
    with pytest.raises(TransientStorageError, match="gs://bucket: no access token"):
        store_of(nowhere, token=service_account(nowhere)).find("a")


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("/nonexistent/key.json", "no such file: '/nonexistent/key.json'"),
        ({"type": "service_account", "private_key": "secret"}, "'token' of storage_options cannot be used"),
        ({"type": "odd"}, "cannot be used"),
        ({}, "cannot be used"),
    ],
)
def test_unusable_credentials_are_an_error_that_names_them(google: Google, token: Any, said: str) -> None:
    """Before any request."""
    with pytest.raises((UrlError, AccessDeniedError), match=said) as caught:
        store_of(google, token=token).find("a")
    assert "secret" not in str(caught.value)
    assert google.requests == []


def test_a_file_of_the_environment_that_is_missing_is_an_error(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was meant: requests are not anonymous then."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    with pytest.raises(AccessDeniedError, match=r"GOOGLE_APPLICATION_CREDENTIALS names '/nonexistent/key\.json'"):
        store_of(google).find("a")


def test_without_google_auth_the_extra_is_named(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anonymous requests and access tokens need no package."""
    monkeypatch.setitem(sys.modules, "google.auth", None)
    with pytest.raises(UrlError, match=r"pip install 'torchdata_remote\[gs\]'"):
        store_of(google, token="google_default").find("a")
    use(store_of(google, token="anon"))
    use(store_of(google, token="raw-secret"))
    assert google.tokens_sent() == [None, None, "Bearer raw-secret", "Bearer raw-secret"]


def test_a_project_pays_for_each_request(google: Google, tmp_path: Path) -> None:
    """That of the options, or that of the credentials; by reads and by other requests."""
    use(store_of(google, token="raw-secret", requester_pays="payer"))
    use(store_of(google, token="raw-secret", requester_pays=True, project="payer-2"))
    use(store_of(google, token=service_account(google), requester_pays=True))
    sent = [one.headers.get("x-goog-user-project") for one in google.of_storage()]
    assert sent == ["payer", "payer", "payer-2", "payer-2", "my-project", "my-project"]
    with pytest.raises(UrlError, match="needs a project that pays"):
        store_of(google, token="raw-secret", requester_pays=True).find("a")


def test_requests_have_the_headers_of_google_only(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of AWS, whatever its environment says; what is stored compressed is asked for as it is."""
    for name, value in {"AWS_PROFILE": "none", "AWS_USE_FIPS_ENDPOINT": "true", "AWS_ENDPOINT_URL_S3": "x"}.items():
        monkeypatch.setenv(name, value)
    for read_by_obstore in (True, False):
        store = store_of(google, read_by_obstore=read_by_obstore, token="raw-secret")
        store.read("a", 0, 3, '"1"').chunks.close()
        store.stat("a")
        store.find("a")
    writer = store.create("a", overwrite=False)
    writer.write(b"x")
    writer.commit()
    assert not [name for one in google.requests for name in one.headers if name.startswith(("x-amz", "amz-sdk"))]
    for number in (0, 3):
        read, stat, _ = google.requests[number : number + 3]
        assert (read.headers["range"], read.headers["if-match"]) == ("bytes=0-2", '"1"')
        assert read.headers["accept-encoding"] == stat.headers["accept-encoding"] == "gzip"
    put = google.requests[-1]
    assert (put.method, put.headers["x-goog-if-generation-match"], "if-none-match" in put.headers) == (
        "PUT",
        "0",
        False,
    )
    assert base64.b64decode(put.headers["content-md5"]) == hashlib.md5(b"x", usedforsecurity=False).digest()


def test_a_token_that_expires_unknown_when_is_kept(google: Google) -> None:
    """Credentials without an expiry, such as those that a program makes of a token."""
    token = Credentials("raw-secret", expiry=dt.datetime.now() + dt.timedelta(days=1))  # type: ignore[no-untyped-call]
    use(store_of(google, token=token))
    assert google.tokens_sent() == ["Bearer raw-secret"] * 2


def test_requests_for_tokens_use_the_proxies_of_all_other_requests(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server on this machine is reached past a proxy."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    use(store_of(google, token=service_account(google)))
    assert google.tokens_sent() == ["Bearer token-1"] * 2


@pytest.mark.parametrize("read_by_obstore", [True, False])
@pytest.mark.parametrize("token", ["raw-secret\nx", "raw secret", "raw-secret\u20ac"], ids=repr)
def test_a_token_that_no_header_can_hold_is_an_error_without_it(
    google: Google, token: str, read_by_obstore: bool
) -> None:
    """Libraries show it in their errors, and obstore panics."""
    with pytest.raises(
        AccessDeniedError, match=r"gs://bucket: the access token .*'token' of storage_options"
    ) as caught:
        use(store_of(google, token=token, read_by_obstore=read_by_obstore))
    assert "secret" not in str(caught.value)
    assert google.requests == []


def test_a_line_feed_behind_a_token_is_left_out(google: Google) -> None:
    """Files and commands end with one."""
    use(store_of(google, token="raw\n"))
    assert google.tokens_sent() == ["Bearer raw"] * 2


@pytest.mark.parametrize("read_by_obstore", [True, False])
@pytest.mark.parametrize("body", [b"<html>log in</html>", b"", b"[1]", b'{"access_token": "a", "expires_in": "soon"}'])
def test_a_server_of_tokens_that_sends_something_else_is_transient(body: bytes, read_by_obstore: bool) -> None:
    """It may be the page of a proxy; google-auth raises ``TypeError`` and others, as if the program were wrong."""
    with raw(lambda head: answer("200 OK", body, f"Content-Length: {len(body)}")) as server:
        store = store_of(Google(server.url), token=service_account(Google(server.url)), read_by_obstore=read_by_obstore)
        with pytest.raises(TransientStorageError, match=r"no access token: the response .* cannot be used"):
            store.read("a", 0, None, None)


def test_a_server_of_tokens_that_is_silent_is_given_up(google: Google) -> None:
    """After the timeout of all other requests, rather than the two minutes of google-auth."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = Google(f"http://127.0.0.1:{silent.getsockname()[1]}")
        settings = GcsSettings(google.url, service_account(nowhere), read_timeout_s=0.2)
        start_s = time.monotonic()
        with pytest.raises(TransientStorageError, match="gs://bucket: no access token"):
            GcsStore("bucket", settings, read_by_obstore=True).read("a", 0, None, None)
        assert time.monotonic() - start_s < 20


def test_a_failed_renewal_is_no_error_while_the_token_is_valid(
    google: Google, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of tokens is not asked for each request then."""
    google.expires_in_s = 100
    store = store_of(google, read_by_obstore=False, token=service_account(google))
    use(store)
    google.status, now = 400, tokens._now()
    monkeypatch.setattr(tokens, "_now", lambda: now + dt.timedelta(seconds=40))
    use(store)
    use(store)
    assert google.tokens_sent() == ["Bearer token-1"] * 6
    assert len(google.of_tokens()) == 2
    assert "The current token is used until it expires" in caplog.text
    monkeypatch.setattr(tokens, "_now", lambda: now + dt.timedelta(seconds=100))
    with pytest.raises(AccessDeniedError, match="invalid_grant"):
        use(store)


def test_reprs_of_tokens_do_not_show_them() -> None:
    """Debuggers and reports of errors show them."""
    assert "secret" not in repr(tokens.Token("secret", None))
    assert "secret" not in repr(Found("from a test", raw_token="secret"))
