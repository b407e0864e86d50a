"""Google Cloud Storage: what options in gcsfs's words mean for obstore, and the tokens that google-auth gets."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...core.arguments import check
from ...core.options import StorageOptions
from ...core.urls import redact_text
from ...errors import AccessDeniedError, RemoteDataError, TransientStorageError, UrlError
from ..credentials import Credentials, Issued
from ..http.bearer_token import bearer_token
from ..network import ServerPools, obstore_client_options
from ..network_errors import unusable_response
from ..option_checks import is_server_url, option_flag
from ..protocol import CONNECT_TIMEOUT_S
from .bucket import CloudBucket

_log = logging.getLogger("torchdata_remote")
_DEFAULT_ENDPOINT = "https://storage.googleapis.com"
_EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
_FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/devstorage."
_EARLY_S = 225.0  # metadata servers have a new token four minutes before the end
_CHOICES = {
    "access": ("read_only", "read_write", "full_control"),
    # gcsfs checks what it has written on demand; here each upload has a checksum, which the store checks
    "consistency": ("none", "size", "md5", "crc32c"),
}
# Options of gcsfs about what this package does not do: caching listings, creating buckets, saving tokens
_WITHOUT_EFFECT = {"cache_timeout", "check_connection", "default_location", "secure_serialize"}
_DEFAULTS = {"asynchronous": False, "version_aware": False}  # which gcsfs has, and this package always follows
_TRANSLATED = {"token", "project", "endpoint_url", "requester_pays", *_CHOICES} | _WITHOUT_EFFECT
_UNTRANSLATED = {"block_size", "requests_timeout", "session_kwargs", "loop", "timeout"}
OPTIONS = frozenset(_TRANSLATED | _DEFAULTS.keys() | _UNTRANSLATED)  # of gcsfs
_PROJECT = re.compile(r"[\x21-\x7e]+")  # it is sent as a header
# Without it the server decompresses what is stored compressed, and ignores the range
_STORED_BYTES = {"Accept-Encoding": "gzip"}
_OPTION = "'token' of storage_options"
# Codes of RFC 6749, 5.2: the credentials were withdrawn. Other faults of credentials that have worked pass
_WITHDRAWN = re.compile(
    r"invalid_grant|invalid_client|unauthorized_client|access_denied|invalid_scope|disabled|deleted"
)


def untranslated(options: StorageOptions) -> list[str]:
    """Return the options that obstore has no word for. They select gcsfs."""
    given = {name: value for name, value in options.items() if value is not None}
    unknown = {name for name in given.keys() - _TRANSLATED if given[name] != _DEFAULTS.get(name, given)}
    if given.get("token") == "cache":
        unknown.add("token")
    return [repr(name) for name in sorted(unknown)]


def gcs_bucket(bucket: str, options: StorageOptions, read_timeout_s: float) -> CloudBucket:
    """Translate options without :func:`untranslated` ones.

    Raises:
        UrlError: for a value that gcsfs would refuse, or that needs a person at a browser.
    """
    url = f"gs://{bucket}"
    given = {name: value for name, value in options.items() if value is not None}
    for name, known in _CHOICES.items():
        if given.get(name, known[0]) not in known:
            choices = ", ".join(map(repr, known))
            raise UrlError(f"storage_options[{name!r}] is {given[name]!r}; expected one of {choices}.")
    endpoint_url, is_emulator = _endpoint(given.get("endpoint_url"))
    token = given.get("token", "anon" if is_emulator else None)
    _require_token(token)
    project, pays = given.get("project"), given.get("requester_pays", False)
    if isinstance(pays, str) and pays.strip().lower() not in ("true", "false"):  # the project that pays
        project, pays = pays, True
    pays = option_flag("requester_pays", pays)
    if project is not None and not isinstance(project, str):
        raise UrlError(f"storage_options['project'] must be a str, got {check.a_kind(project)}.")
    if project is not None and _PROJECT.fullmatch(project) is None:
        raise UrlError(f"storage_options name the project {project!r}, which has characters that no project has.")
    tokens = _Tokens(token, _SCOPE + given.get("access", "read_write"), url, read_timeout_s)

    def payer() -> dict[str, str]:
        return {"x-goog-user-project": _payer(project or tokens.project, url)} if pays else {}

    options_of_client = obstore_client_options(endpoint_url, read_timeout_s)
    return CloudBucket(
        url,
        "GCSStore",
        bucket,
        config={"base_url": endpoint_url},
        client_options={**options_of_client, "default_headers": _STORED_BYTES},
        credentials=Credentials(tokens.issue, url, early_s=_EARLY_S),
        more_headers=payer,
    )


def _payer(project: str | None, url: str) -> str:
    if not project:
        raise UrlError(
            f"{url}: storage_options['requester_pays'] needs a project that pays, and the credentials name none: pass "
            "storage_options={'requester_pays': 'my-project'}.",
            url=url,
        )
    return project


def _endpoint(endpoint_url: Any) -> tuple[str, bool]:
    """Return the address of the server, and whether the environment names it as an emulator."""
    shown, is_emulator = "storage_options['endpoint_url']", False
    if endpoint_url is None:
        endpoint_url = os.environ.get(_EMULATOR_VARIABLE, "")
        if endpoint_url in ("", "default"):
            return _DEFAULT_ENDPOINT, False
        shown, is_emulator = f"The environment variable {_EMULATOR_VARIABLE}", True
        if "://" not in endpoint_url:
            endpoint_url = f"http://{endpoint_url}"
    if "@" in str(endpoint_url):
        raise UrlError(
            f"{shown} holds credentials (an @). They do not belong into an address, which logs and errors show. Pass "
            "them by storage_options={'token': ...}."
        )
    if not is_server_url(endpoint_url):
        raise UrlError(f"{shown} is {endpoint_url!r}; expected such as 'https://host:port', without a path.")
    return endpoint_url.rstrip("/"), is_emulator


def _require_token(given: Any) -> None:
    if given == "browser":
        problem = (
            "is 'browser', which needs a person at each start. Log in once by `gcloud auth application-default "
            "login`, and leave the option out."
        )
    elif isinstance(given, str) and given.lstrip().startswith("{"):
        problem = "is the text of a JSON file. Pass the path of the file, or json.loads(text)."
    elif given is None or isinstance(given, str | os.PathLike | Mapping) or hasattr(given, "refresh"):
        return
    else:
        problem = (
            "must be 'google_default', 'cloud', 'anon', a path of a JSON file, its content as a dict, an access token, "
            f"or credentials of google.auth; got {check.a_kind(given)}."
        )
    raise UrlError(f"storage_options['token'] {problem}")


class _Tokens:
    """Access tokens by google-auth. The credentials are looked up by the first call of :meth:`issue`.

    Args:
        token: as for gcsfs; ``None`` for the application default credentials.
        scope: of the tokens.
        url: of the bucket, for errors.
        read_timeout_s: seconds without a byte after which a request fails; google-auth would wait for two minutes.
    """

    def __init__(self, token: Any, scope: str, url: str, read_timeout_s: float) -> None:
        self._token, self._scopes, self._url, self._read_timeout_s = token, [scope], url, read_timeout_s
        self._refresh: Callable[[], Issued] | None = None
        self._has_worked = False
        self.project: str | None = None  # that the credentials belong to

    def issue(self) -> Issued:
        """Return a new token, or that there are no credentials.

        Raises:
            AccessDeniedError: if credentials cannot be loaded, or exchanged for a token.
            TransientStorageError: if the server of tokens does not answer.
            UrlError: if a file or google-auth is missing.
        """
        if self._refresh is None:
            self._refresh = self._look_up()
        return self._refresh()

    def _look_up(self) -> Callable[[], Issued]:
        named = self._token
        if named == "anon":
            return partial(Issued, {}, None, "The request was not signed (token='anon').", can_renew=False)
        if named is None or named == "google_default":
            return self._default(is_required=named is not None)
        if isinstance(named, Mapping):
            return self._of_content(dict(named), _OPTION)
        if isinstance(named, str | os.PathLike) and named != "cloud":
            return self._of_text(os.fspath(named))
        _import_google(self._url)
        from google.auth import compute_engine, credentials

        make: Any = compute_engine.Credentials  # untyped
        if named == "cloud":
            source = "The credentials are from the metadata server (token='cloud')."
            return self._refreshing(make(scopes=self._scopes), None, source)
        with_scopes: Any = credentials.with_scopes_if_required
        return self._refreshing(with_scopes(named, self._scopes), None, _sentence(_OPTION, named))

    def _of_text(self, token: str) -> Callable[[], Issued]:
        """Credentials in a file, or a token itself."""
        path = os.path.expanduser(token)
        if os.path.exists(path):
            return self._of_content(self._content(path, "storage_options['token']"), f"{token} ({_OPTION})")
        if token.endswith(".json") or token.startswith(("/", "~", "./", "../")):
            raise UrlError(f"{self._url}: no such file: {token!r}, named by storage_options['token'].", url=self._url)
        source = f"The token is {_OPTION}, which cannot be renewed."
        return partial(Issued, {"token": bearer_token(token, self._url, source)}, None, source, can_renew=False)

    def _content(self, path: str, named: str) -> Any:
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError) as error:
            kind = type(error).__name__
            raise AccessDeniedError(
                f"{self._url}: {named} names {path!r}, which is no JSON of Google ({kind}).", url=self._url
            ) from None

    def _of_content(self, content: Any, shown: str) -> Callable[[], Issued]:
        """Credentials in the form of Google's JSON files. gcsfs accepts a user's without ``type``."""
        google = _import_google(self._url)
        if isinstance(content, dict) and "type" not in content:
            content = {"type": "authorized_user" if "refresh_token" in content else "service_account", **content}
        try:
            if content.get("type") == "external_account":
                credentials, project = _federated(content, self._scopes), None
            else:
                credentials, project = google.load_credentials_from_dict(content, scopes=self._scopes)
        except (google.exceptions.GoogleAuthError, ValueError, AttributeError, TypeError, KeyError) as error:
            raise AccessDeniedError(
                f"{self._url}: the credentials of {shown} cannot be used ({type(error).__name__}): they are "
                "incomplete, or of another kind than a service account, a user, or identity federation.",
                url=self._url,
            ) from None
        return self._refreshing(credentials, project, _sentence(shown, credentials))

    def _default(self, *, is_required: bool) -> Callable[[], Issued]:
        """Search the environment, gcloud's file and the metadata server."""
        file = os.environ.get(_FILE_VARIABLE)
        try:
            google = _import_google(self._url)
        except UrlError:
            if is_required or file:
                raise
            return self._without(
                "google-auth, which finds credentials, is not installed (pip install 'torchdata_remote[gs]')."
            )
        if file:
            return self._of_content(self._content(file, _FILE_VARIABLE), f"{file} ({_FILE_VARIABLE})")
        try:
            credentials, project = google.default(scopes=self._scopes, request=self._request())
        except google.exceptions.DefaultCredentialsError as error:
            if is_required:
                raise AccessDeniedError(
                    f"{self._url}: no application default credentials ({type(error).__name__}). Log in by `gcloud auth "
                    f"application-default login`, set {_FILE_VARIABLE}, or pass storage_options={{'token': ...}}.",
                    url=self._url,
                ) from None
            return self._without(
                f"no credentials were found: not by {_FILE_VARIABLE}, not in the file of `gcloud auth "
                "application-default login`, and there is no metadata server."
            )
        is_machine = type(credentials).__module__.startswith("google.auth.compute_engine")
        shown = "the metadata server" if is_machine else "the file of `gcloud auth application-default login`"
        return self._refreshing(credentials, project, _sentence(shown, credentials))

    def _without(self, why: str) -> Callable[[], Issued]:
        source = f"The request was not signed, because {why}"
        _log.warning("%s: %s Pass storage_options={'token': 'anon'} if the bucket is public.", self._url, source)
        return partial(Issued, {}, None, source, can_renew=False)

    def _refreshing(self, credentials: Any, project: str | None, source: str) -> Callable[[], Issued]:
        own = project or getattr(credentials, "project_id", None) or getattr(credentials, "quota_project_id", None)
        self.project = own if isinstance(own, str) else None
        return partial(self._refreshed, credentials, source)

    def _refreshed(self, credentials: Any, source: str) -> Issued:
        if self._has_worked or not credentials.token:  # one that is given can have a token
            self._exchange(credentials, source)
        self._has_worked = True
        ends: dt.datetime | None = credentials.expiry  # in UTC, without a time zone
        expires_s = None if ends is None else ends.replace(tzinfo=dt.timezone.utc).timestamp()
        return Issued({"token": bearer_token(credentials.token, self._url, source)}, expires_s, source)

    def _exchange(self, credentials: Any, source: str) -> None:
        from google.auth import exceptions

        try:
            credentials.refresh(self._request())
        except exceptions.GoogleAuthError as error:
            shown = f"{self._url}: no access token: {_first_line(error)}."
            if _may_pass(error, has_worked=self._has_worked):
                raise TransientStorageError(f"{shown} {source}", url=self._url) from None
            raise AccessDeniedError(
                f"{shown} Log in again, or check the service account. {source}", url=self._url
            ) from None
        except (RemoteDataError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  # google-auth expects a response as documented, which a proxy replaces
            raise unusable_response(
                self._url,
                f"no access token: the response of the server of tokens cannot be used ({type(error).__name__}). "
                f"{source.rstrip('.')}",
            ) from None

    def _request(self) -> Any:
        """Make what google-auth sends its requests by, with the proxies and authorities of all other requests."""
        from google.auth.transport.urllib3 import Request

        make: Any = Request  # untyped
        return make(_Http(self._read_timeout_s))


class _Http:
    """The part of urllib3's pools that google-auth uses."""

    def __init__(self, read_timeout_s: float) -> None:
        self._read_timeout_s, self._pools = read_timeout_s, ServerPools(retries=False)

    def request(self, method: str, url: str, **options: Any) -> Any:
        import urllib3

        asked_s = options.get("timeout")
        limit_s = min(self._read_timeout_s, asked_s) if isinstance(asked_s, int | float) else self._read_timeout_s
        options["timeout"] = urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, limit_s), read=limit_s)
        return self._pools.manager(url).request(method, url, **options)


def _may_pass(error: Any, *, has_worked: bool) -> bool:
    """Whether a fault is one of the server of tokens, and not of the credentials."""
    from google.auth import exceptions

    if isinstance(error, exceptions.TransportError) or isinstance(error.__cause__, exceptions.TransportError):
        return True
    return bool(getattr(error, "retryable", False) or (has_worked and not _WITHDRAWN.search(str(error))))


def _federated(content: dict[str, Any], scopes: list[str]) -> Any:
    """Credentials of identity federation. google-auth's loader would send two requests to find the project's name."""
    from google.auth import aws, identity_pool, pluggable

    kind: Any = identity_pool.Credentials
    if content.get("subject_token_type") == "urn:ietf:params:aws:token-type:aws4_request":
        kind = aws.Credentials
    elif "executable" in (content.get("credential_source") or {}):
        kind = pluggable.Credentials
    return kind.from_info(content, scopes=scopes)


def _sentence(shown: str, credentials: Any) -> str:
    email = str(getattr(credentials, "service_account_email", ""))
    return f"The credentials are from {shown}{f', {email}' if '@' in email else ''}."


def _first_line(error: Exception) -> str:
    text = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    return redact_text(text.partition("\n")[0].rstrip("."))


def _import_google(url: str) -> Any:
    """Import google-auth, which takes 0.1 s.

    Raises:
        UrlError: if it is not installed.
    """
    try:
        import google.auth
    except ImportError as error:
        raise UrlError(
            f"{url}: Google's credentials need the package google-auth ({error}): pip install 'torchdata_remote[gs]'. "
            "A public bucket needs none: storage_options={'token': 'anon'}.",
            url=url,
        ) from error
    return google.auth
