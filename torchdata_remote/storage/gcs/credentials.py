"""Find credentials as Google's own libraries do, by google-auth, or as ``token`` of the storage options says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...errors import AccessDeniedError, UrlError
from ..network import requests_arguments
from ..protocol import CONNECT_TIMEOUT_S
from .settings import ANONYMOUS, DEFAULT, METADATA_SERVER, GcsSettings

_SCOPE = "https://www.googleapis.com/auth/devstorage."
_OPTION = "'token' of storage_options"
_FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_FEDERATION = "external_account"
_AWS_TOKEN = "urn:ietf:params:aws:token-type:aws4_request"  # noqa: S105  # the name of a kind
_KINDS = {
    "service_account": "a service account",
    "authorized_user": "a user",
    _FEDERATION: "workload identity federation",
    "external_account_authorized_user": "workforce identity federation",
    "impersonated_service_account": "an impersonated service account",
}


class Found(NamedTuple):
    """Where requests get their tokens from.

    Args:
        source: as a sentence, for errors.
        credentials: of google-auth.
        raw_token: an access token that cannot be renewed.
        project: that the credentials belong to.
        is_missing: whether requests are anonymous because nothing was found.
    """

    source: str
    credentials: Any = None
    raw_token: str | None = None
    project: str | None = None
    is_missing: bool = False

    def __repr__(self) -> str:
        return f"Found({self.source!r})"


def load_credentials(settings: GcsSettings, url: str) -> Found:
    """Look the credentials up. It may ask the metadata server.

    Raises:
        AccessDeniedError: if they are named and cannot be used.
        UrlError: if a file or google-auth is missing.
    """
    token = settings.token
    scopes = [_SCOPE + settings.access]
    if token == ANONYMOUS:
        return Found("The request was not signed (token='anon').")
    if token is None or token == DEFAULT:
        return _application_default(scopes, url, settings.read_timeout_s, is_required=token is not None)
    if token == METADATA_SERVER:
        _import_google(url)
        from google.auth import compute_engine

        make: Any = compute_engine.Credentials  # untyped
        return Found("The credentials are from the metadata server (token='cloud').", make(scopes=scopes))
    if isinstance(token, Mapping):
        return _of_content(dict(token), _OPTION, scopes, url)
    if isinstance(token, str | os.PathLike):
        return _of_text(os.fspath(token), scopes, url)
    _import_google(url)
    from google.auth import credentials

    with_scopes: Any = credentials.with_scopes_if_required  # untyped
    return Found(_sentence(_OPTION, token), with_scopes(token, scopes), None, _project_of(token))


def _of_text(token: str, scopes: list[str], url: str) -> Found:
    """Credentials in a file, or a token itself."""
    path = os.path.expanduser(token)
    if not os.path.exists(path):
        if token.endswith(".json") or token.startswith(("/", "~", "./", "../")):
            raise UrlError(f"{url}: no such file: {token!r}, named by storage_options['token'].", url=url)
        return Found(f"The token is {_OPTION}, which cannot be renewed.", raw_token=token)
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError) as error:
        kind = type(error).__name__
        raise AccessDeniedError(
            f"{url}: the file {token!r}, named by storage_options['token'], is no JSON of Google ({kind}).", url=url
        ) from None
    return _of_content(content, f"{token} ({_OPTION})", scopes, url)


def _of_content(content: Any, shown: str, scopes: list[str], url: str) -> Found:
    """Credentials in the form of Google's JSON files. gcsfs accepts a user's without ``type``."""
    google = _import_google(url)
    if isinstance(content, dict) and "type" not in content:
        content = {"type": "authorized_user" if "refresh_token" in content else "service_account", **content}
    try:
        if content.get("type") == _FEDERATION:
            credentials, project = _federated(content, scopes), None
        else:
            credentials, project = google.load_credentials_from_dict(content, scopes=scopes)
    except (google.exceptions.GoogleAuthError, ValueError, AttributeError, TypeError, KeyError) as error:
        raise AccessDeniedError(
            f"{url}: the credentials of {shown} cannot be used ({type(error).__name__}): they are incomplete, or of "
            "another kind than a service account, a user, or identity federation.",
            url=url,
        ) from None
    return Found(
        _sentence(shown, credentials, content.get("type")), credentials, None, project or _project_of(credentials)
    )


def _application_default(scopes: list[str], url: str, read_timeout_s: float, *, is_required: bool) -> Found:
    """Search the environment, gcloud's file and the metadata server."""
    try:
        google = _import_google(url)
    except UrlError:
        if is_required or _FILE_VARIABLE in os.environ:
            raise
        return Found(
            "The request was not signed, because google-auth, which finds credentials, is not installed (pip install "
            "'torchdata_remote[gs]').",
            is_missing=True,
        )
    if (file := os.environ.get(_FILE_VARIABLE)) and (content := _content_of(file)).get("type") == _FEDERATION:
        return _of_content(content, f"{file} ({_FILE_VARIABLE})", scopes, url)
    try:
        credentials, project = google.default(scopes=scopes, request=make_request(url, read_timeout_s))
    except google.exceptions.DefaultCredentialsError as error:
        if is_required or _FILE_VARIABLE in os.environ:
            where = f"{_FILE_VARIABLE} names {os.environ[_FILE_VARIABLE]!r}. " * (_FILE_VARIABLE in os.environ)
            raise AccessDeniedError(
                f"{url}: no application default credentials ({type(error).__name__}). {where}Log in by `gcloud auth "
                f"application-default login`, set {_FILE_VARIABLE}, or pass storage_options={{'token': ...}}.",
                url=url,
            ) from None
        return Found(
            f"The request was not signed, because no credentials were found: not by {_FILE_VARIABLE}, not in the file "
            "of `gcloud auth application-default login`, and there is no metadata server.",
            is_missing=True,
        )
    return Found(_sentence(_default_source(credentials), credentials), credentials, None, project)


def _content_of(file: str) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it has none, which google-auth reports."""
    try:
        with open(file, encoding="utf-8") as opened:
            content = json.load(opened)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _federated(content: dict[str, Any], scopes: list[str]) -> Any:
    """Credentials of identity federation. google-auth's loader would send two requests to find the project's name."""
    from google.auth import aws, identity_pool, pluggable

    kind: Any = identity_pool.Credentials
    if content.get("subject_token_type") == _AWS_TOKEN:
        kind = aws.Credentials
    elif "executable" in (content.get("credential_source") or {}):
        kind = pluggable.Credentials
    return kind.from_info(content, scopes=scopes)


def _default_source(credentials: Any) -> str:
    if file := os.environ.get(_FILE_VARIABLE):
        return f"{file} ({_FILE_VARIABLE})"
    if type(credentials).__module__.startswith("google.auth.compute_engine"):
        return "the metadata server"
    return "the file of `gcloud auth application-default login`"


def _sentence(shown: str, credentials: Any, kind: str | None = None) -> str:
    email = getattr(credentials, "service_account_email", None)
    account = email if isinstance(email, str) and "@" in email else _KINDS.get(kind or "")
    return f"The credentials are from {shown}{'' if account is None else f', {account}'}."


def _project_of(credentials: Any) -> str | None:
    project = getattr(credentials, "project_id", None) or getattr(credentials, "quota_project_id", None)
    return project if isinstance(project, str) else None


def _import_google(url: str) -> Any:
    """Import google-auth, which takes 0.1 s.

    Raises:
        UrlError: if it is not installed.
    """
    try:
        import google.auth
        import google.auth.transport.requests
    except ImportError as error:
        raise UrlError(
            f"{url}: Google's credentials need the package google-auth ({error}): pip install 'torchdata_remote[gs]'. "
            "A public bucket needs none: storage_options={'token': 'anon'}.",
            url=url,
        ) from error
    return google.auth


def make_request(url: str, read_timeout_s: float) -> Any:
    """Make what google-auth sends its requests by, with the proxies and authorities of all other requests.

    Args:
        url: of the bucket, for errors.
        read_timeout_s: seconds without a byte after which a request fails; google-auth would wait for two minutes.
    """
    _import_google(url)
    import requests
    from google.auth.transport.requests import Request

    class Session(requests.Session):
        def request(self, method: Any, url: Any, **options: Any) -> Any:  # type: ignore[override]
            asked_s = options.get("timeout")
            limit_s = min(read_timeout_s, asked_s) if isinstance(asked_s, int | float) else read_timeout_s
            options["timeout"] = (min(CONNECT_TIMEOUT_S, limit_s), limit_s)
            return super().request(method, url, **{**requests_arguments(str(url)), **options})

    session = Session()
    session.trust_env = False
    make: Any = Request  # untyped
    return make(session)
