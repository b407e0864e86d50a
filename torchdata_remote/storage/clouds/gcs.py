"""Google Cloud Storage: what options in gcsfs's words mean for obstore, and the tokens that google-auth gets."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...core.arguments import check
from ...core.options import StorageOptions
from ...errors import AccessDeniedError, RemoteDataError, UrlError
from ..credentials import Credentials, Issued, bearer_token, no_token
from ..errors import unusable_response
from ..network import ServerPools, obstore_client_options
from ..option_checks import is_server_url, option_flag
from ..protocol import CONNECT_TIMEOUT_S
from .bucket import Target

_log = logging.getLogger("torchdata_remote")
_DEFAULT_ENDPOINT = "https://storage.googleapis.com"
_EMULATOR_VARIABLE, _FILE_VARIABLE = "STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"
_SCOPE = "https://www.googleapis.com/auth/devstorage."
_EARLY_S = 225.0  # metadata servers have a new token four minutes before the end
_CHOICES = {
    "access": ("read_only", "read_write", "full_control"),
    # gcsfs checks what it has written on demand; here each upload has a checksum, which the store checks
    "consistency": ("none", "size", "md5", "crc32c"),
}
# Options of gcsfs about what this package does not do: caching listings, creating buckets, saving tokens
_WITHOUT_EFFECT = {"cache_timeout", "check_connection", "default_location", "secure_serialize"}
_DEFAULTS = {"asynchronous": False, "version_aware": False}  # of gcsfs, and what this package does
_TRANSLATED = {"token", "project", "endpoint_url", "requester_pays", *_CHOICES} | _WITHOUT_EFFECT
_UNTRANSLATED = {"block_size", "requests_timeout", "session_kwargs", "loop", "timeout"}
OPTIONS = frozenset(_TRANSLATED | _DEFAULTS.keys() | _UNTRANSLATED)  # of gcsfs
_PROJECT = re.compile(r"[\x21-\x7e]+")  # it is sent as a header
# Without it the server decompresses what is stored compressed, and ignores the range
_STORED_BYTES = {"Accept-Encoding": "gzip"}
_OPTION, _LOGIN = "'token' of storage_options", "the file of `gcloud auth application-default login`"


def untranslated(options: StorageOptions) -> list[str]:
    """Return the options that obstore has no word for. They select gcsfs."""
    given = {name: value for name, value in options.items() if value is not None}
    unknown = {name for name in given.keys() - _TRANSLATED if given[name] != _DEFAULTS.get(name, given)}
    return [repr(name) for name in sorted(unknown | ({"token"} if given.get("token") == "cache" else set()))]


def gcs_target(bucket: str, options: StorageOptions, read_timeout_s: float) -> Target:
    """Translate options without :func:`untranslated` ones.

    Raises:
        UrlError: for a value that gcsfs would refuse.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name, known in _CHOICES.items():
        if given.get(name, known[0]) not in known:
            choices = ", ".join(map(repr, known))
            raise UrlError(f"storage_options[{name!r}] is {given[name]!r}; expected one of {choices}.")
    endpoint_url, is_emulator = _endpoint(given.get("endpoint_url"))
    project, pays = given.get("project"), given.get("requester_pays", False)
    if isinstance(pays, str):  # the project that pays
        project, pays = pays, True
    if project is not None and _PROJECT.fullmatch(str(project)) is None:
        raise UrlError(f"storage_options name the project {project!r}, which has characters that no project has.")
    url, scope = f"gs://{bucket}", _SCOPE + given.get("access", "read_write")
    tokens = _Tokens(given.get("token", "anon" if is_emulator else None), scope, url, read_timeout_s)
    return Target(
        url,
        "GCSStore",
        bucket,
        config={"base_url": endpoint_url},
        client_options={**obstore_client_options(endpoint_url, read_timeout_s), "default_headers": _STORED_BYTES},
        credentials=Credentials(tokens.issue, url, early_s=_EARLY_S),
        more_headers=partial(tokens.payer, project) if option_flag("requester_pays", pays) else dict,
    )


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
        self._credentials: Any = None  # of google-auth
        self._given: Issued | None = None  # instead of them
        self._source = ""
        self._project: str | None = None  # that the credentials belong to
        self._has_worked = False

    def issue(self) -> Issued:
        """Return a new token, or that there are no credentials.

        Raises:
            AccessDeniedError: if credentials cannot be loaded, or exchanged for a token.
            TransientStorageError: if the server of tokens does not answer.
            UrlError: for a token of another kind; if a file or google-auth is missing.
        """
        if self._credentials is None and self._given is None:
            self._look_up()
        if self._given is not None:
            return self._given
        credentials = self._credentials
        if self._has_worked or not credentials.token:  # those of the user may have one
            self._exchange(credentials)
        self._has_worked = True
        ends: dt.datetime | None = credentials.expiry  # in UTC, without a time zone
        expires_s = None if ends is None else ends.replace(tzinfo=dt.timezone.utc).timestamp()
        return Issued({"token": bearer_token(credentials.token, self._url, self._source)}, expires_s, self._source)

    def payer(self, project: str | None) -> dict[str, str]:
        """Return the header that names the project that pays, where the bucket's owner does not."""
        project = project or self._project
        if not project:
            raise self._unusable(
                "storage_options['requester_pays'] needs a project that pays, and the credentials name none: pass "
                "storage_options={'requester_pays': 'my-project'}."
            )
        return {"x-goog-user-project": project}

    def _unusable(self, problem: str) -> UrlError:
        return UrlError(f"{self._url}: {problem}", url=self._url)

    def _denied(self, problem: str) -> AccessDeniedError:
        return AccessDeniedError(f"{self._url}: {problem}", url=self._url)

    def _look_up(self) -> None:
        """Find credentials of google-auth, a token that is given, or that there is none."""
        given = self._token
        if given == "anon":
            self._given = Issued({}, None, "The request was not signed (token='anon').", can_renew=False)
        elif given is None or given == "google_default":
            self._default(is_required=given is not None)
        elif isinstance(given, str | os.PathLike) and given != "cloud":
            self._of_text(os.fspath(given))
        elif isinstance(given, Mapping):
            self._of_content(given, _OPTION)
        elif given == "cloud":
            self._use(self._import_google().compute_engine.Credentials(scopes=self._scopes), "the metadata server")
        elif hasattr(given, "refresh"):
            self._use(self._import_google().credentials.with_scopes_if_required(given, self._scopes), _OPTION)
        else:
            raise self._unusable(
                "storage_options['token'] must be 'google_default', 'cloud', 'anon', a path of a JSON file, its "
                f"content as a dict, an access token, or credentials of google.auth; got {check.a_kind(given)}."
            )

    def _of_text(self, text: str) -> None:
        """Credentials in a file, or a token itself."""
        path = os.path.expanduser(text)
        if os.path.exists(path):
            self._of_file(path, "storage_options['token']", f"{text} ({_OPTION})")
            return
        problem = ""
        if text == "browser":
            problem = (
                "is 'browser', which needs a person at each start. Log in once by `gcloud auth application-default "
                "login`, and leave the option out."
            )
        elif text.lstrip().startswith("{"):
            problem = "is the text of a JSON file. Pass the path of the file, or json.loads(text)."
        elif text.endswith(".json") or text.startswith(("/", "~", "./", "../")):
            problem = f"is no token, and there is no such file: {text!r}."
        if problem:
            raise self._unusable(f"storage_options['token'] {problem}")
        source = f"The token is {_OPTION}, which cannot be renewed."
        self._given = Issued({"token": bearer_token(text, self._url, source)}, None, source, can_renew=False)

    def _of_file(self, path: str, named: str, shown: str) -> None:
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError) as error:
            kind = type(error).__name__
            raise self._denied(f"{named} names {path!r}, which is no JSON of Google ({kind}).") from None
        self._of_content(content, shown)

    def _of_content(self, content: Any, shown: str) -> None:
        """Credentials in the form of Google's JSON files. gcsfs accepts a user's without ``type``."""
        google = self._import_google()
        try:
            kind = content.get("type") or ("authorized_user" if "refresh_token" in content else "service_account")
            if kind == "external_account":
                found: Any = _federated(dict(content), self._scopes)
            else:
                found, self._project = google.load_credentials_from_dict({**content, "type": kind}, self._scopes)
        except (google.exceptions.GoogleAuthError, ValueError, AttributeError, TypeError, KeyError) as error:
            raise self._denied(
                f"the credentials of {shown} cannot be used ({type(error).__name__}): they are incomplete, or of "
                "another kind than a service account, a user, or identity federation."
            ) from None
        self._use(found, shown)

    def _default(self, *, is_required: bool) -> None:
        """Search the environment, gcloud's file and the metadata server."""
        file = os.environ.get(_FILE_VARIABLE)
        if file:
            self._of_file(file, _FILE_VARIABLE, f"{file} ({_FILE_VARIABLE})")
            return
        try:
            google = self._import_google()
            found, self._project = google.default(scopes=self._scopes, request=self._request())
        except Exception as error:
            if type(error).__name__ != "DefaultCredentialsError" and (is_required or not isinstance(error, UrlError)):
                raise
            if is_required:
                raise self._denied(
                    f"no application default credentials ({type(error).__name__}). Log in by `gcloud auth "
                    f"application-default login`, set {_FILE_VARIABLE}, or pass storage_options={{'token': ...}}."
                ) from None
            source = (
                f"The request was not signed, because no credentials were found: not by {_FILE_VARIABLE}, not in "
                f"{_LOGIN}, and there is no metadata server, or no package google-auth."
            )
            _log.warning("%s: %s Pass storage_options={'token': 'anon'} if the bucket is public.", self._url, source)
            self._given = Issued({}, None, source, can_renew=False)
        else:
            is_of_machine = type(found).__module__.startswith("google.auth.compute_engine")
            self._use(found, "the metadata server" if is_of_machine else _LOGIN)

    def _use(self, credentials: Any, shown: str) -> None:
        named = (getattr(credentials, name, None) for name in ("project_id", "quota_project_id"))
        self._project = self._project or next((one for one in named if isinstance(one, str)), None)
        email = str(getattr(credentials, "service_account_email", ""))
        self._source = f"The credentials are from {shown}{f', {email}' if '@' in email else ''}."
        self._credentials = credentials

    def _exchange(self, credentials: Any) -> None:
        from google.auth import exceptions

        try:
            credentials.refresh(self._request())
        except exceptions.GoogleAuthError as error:
            advice = "Log in again, or check the service account."
            raise no_token(error, self._url, self._source, advice, has_worked=self._has_worked) from None
        except (RemoteDataError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  # google-auth expects a response as documented, which a proxy replaces
            raise unusable_response(
                self._url,
                f"no access token: the response of the server of tokens cannot be used ({type(error).__name__}). "
                f"{self._source.rstrip('.')}",
            ) from None

    def _request(self) -> Any:
        """Make what google-auth sends its requests by, with the proxies and authorities of all other requests."""
        from google.auth.transport.urllib3 import Request

        make: Any = Request  # untyped
        return make(_Http(self._read_timeout_s))

    def _import_google(self) -> Any:
        """Import google-auth, which takes 0.1 s."""
        try:
            import google.auth
            import google.auth.compute_engine
            import google.auth.credentials
        except ImportError as error:
            raise self._unusable(
                f"Google's credentials need the package google-auth ({error}): pip install 'torchdata_remote[gs]'. A "
                "public bucket needs none: storage_options={'token': 'anon'}."
            ) from error
        return google.auth


class _Http:
    """The part of urllib3's pools that google-auth uses."""

    def __init__(self, read_timeout_s: float) -> None:
        self._read_timeout_s, self._pools = read_timeout_s, ServerPools(retries=False)

    def request(self, method: str, url: str, *, timeout: float | None = None, **options: Any) -> Any:
        import urllib3

        limit_s = min(self._read_timeout_s, timeout or self._read_timeout_s)
        limits = urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, limit_s), read=limit_s)
        return self._pools.manager(url).request(method, url, timeout=limits, **options)


def _federated(content: dict[str, Any], scopes: list[str]) -> Any:
    """Credentials of identity federation. google-auth's loader would send two requests to find the project's name."""
    from google.auth import aws, identity_pool, pluggable

    kind: Any = identity_pool.Credentials
    if content.get("subject_token_type") == "urn:ietf:params:aws:token-type:aws4_request":
        kind = aws.Credentials
    elif "executable" in (content.get("credential_source") or {}):
        kind = pluggable.Credentials
    return kind.from_info(content, scopes=scopes)
