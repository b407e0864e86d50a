"""Azure: the account, endpoint and credentials of a container, from URL, options and environment in adlfs's words."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from ...core.options import StorageOptions
from ...core.urls import redact_text
from ...errors import AccessDeniedError, StorageError, TransientStorageError, UrlError
from ..credentials import Credentials, Issued
from ..errors import to_package_error
from ..http.bearer_token import bearer_token
from ..network import obstore_client_options
from ..option_checks import is_server_url, option_flag
from ..protocol import CONNECT_TIMEOUT_S
from .bucket import Target

# Those that adlfs reads, too
_VARIABLES = {
    name: f"AZURE_STORAGE_{name.upper()}"
    for name in (
        *("account_name", "account_key", "connection_string", "sas_token"),
        *("client_id", "client_secret", "tenant_id", "anon"),
    )
}
AZURE_OPTIONS = {*_VARIABLES, "credential", "account_host", "location_mode"}
# Further ones, which select adlfs
ADLFS_OPTIONS = {
    *("assume_container_exists", "blocksize", "connection_timeout", "default_cache_type", "default_fill_cache"),
    *("max_concurrency", "read_timeout", "request_session", "socket_timeout", "timeout", "use_shared_client"),
    "version_aware",
}
_SCOPE = "https://storage.azure.com/.default"
_EARLY_S = 600.0
_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d+)?")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}(-secondary)?")
_PATH = re.compile(r"[^\s@#\\]+")
_SIGNED = re.compile(r"[\x21\x24-\x7e]+")
_SAS = re.compile(r"(?:^|[?&])sig=")
# Answers to credentials that are not valid any more: codes of RFC 6749 and of Microsoft Entra ID
_WITHDRAWN = re.compile(r"invalid_grant|invalid_client|unauthorized_client|access_denied|AADSTS(?:7000\d+|50\d+|65\d+)")
_EXTRA = "Install the packages for Azure: pip install 'torchdata_remote[az]'."
# Public: the account of the emulators (https://learn.microsoft.com/azure/storage/common/storage-use-azurite)
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


def untranslated(options: StorageOptions) -> list[str]:
    """Return the options that obstore has no word for. They select adlfs."""
    found = [repr(name) for name in sorted(options.keys() - AZURE_OPTIONS)]
    if inspect.iscoroutinefunction(getattr(options.get("credential"), "get_token", None)):
        found.append("'credential' of azure.identity.aio")
    return found


def azure_target(bucket: str, options: StorageOptions, read_timeout_s: float) -> Target:
    """Translate options without :func:`untranslated` ones.

    Args:
        bucket: of the URL: ``container``, or ``container@account.dfs.core.windows.net``.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.

    Raises:
        UrlError: for a value of the wrong kind, an account that is missing, or one that two places name differently.
    """
    container, _, host = bucket.partition("@")
    where = f"az://{bucket}"
    for name in sorted(options.keys() & AZURE_OPTIONS - {"credential", "anon"}):
        if not isinstance(options[name], str | None):
            kind = type(options[name]).__name__
            raise UrlError(f"{where}: storage_options[{name!r}] must be a str, got {kind}.", url=where)
    given = {name: options.get(name) or os.environ.get(variable) for name, variable in _VARIABLES.items()}
    has_own_account = any(options.get(name) for name in ("account_name", "account_key", "sas_token", "credential"))
    text = options.get("connection_string") or (None if has_own_account or host else given["connection_string"])
    parts = _parse(where, text) if text else {}
    account = _account(where, host, options.get("account_name") or parts.get("AccountName") or given["account_name"])
    is_secondary = "secondary" in (options.get("location_mode") or "primary")
    endpoint = _endpoint(where, host or options.get("account_host") or "", account, parts, is_secondary=is_secondary)
    issue = _credential(where, options, given, parts, read_timeout_s)
    return Target(
        where,
        "AzureStore",
        container,
        config={"endpoint": endpoint, "account_name": account},
        client_options=obstore_client_options(endpoint, read_timeout_s),
        credentials=Credentials(issue, where, early_s=_EARLY_S),
    )


def _parse(where: str, text: str) -> dict[str, str]:
    """Split a connection string into its parts."""
    pairs = [part.partition("=") for part in filter(None, text.strip().strip("\"'").split(";"))]
    if not all(equals for _, equals, _ in pairs):
        raise UrlError(
            f"{where}: the connection string is not NAME=VALUE;NAME=VALUE. Copy it from the access keys of the storage "
            "account.",
            url=where,
        )
    parts = {name.strip(): value.strip() for name, _, value in pairs}
    if parts.get("UseDevelopmentStorage", "").lower() == "true":
        return {**_EMULATOR, **parts}
    if not parts.keys() & {"AccountName", "BlobEndpoint"}:
        raise UrlError(f"{where}: the connection string has neither AccountName nor BlobEndpoint.", url=where)
    return parts


def _account(where: str, host: str, named: str | None) -> str:
    """Return the name of the account: that of the URL, or else that of the options or the environment."""
    in_url = host.partition(".")[0]
    if in_url and named and named != in_url and _ACCOUNT.fullmatch(named):
        raise UrlError(
            f"{where}: the URL names the account {in_url!r}, and the options or the environment {named!r}. "
            "Remove one of them.",
            url=where,
        )
    return in_url or named or ""


def _endpoint(where: str, host: str, account: str, parts: dict[str, str], *, is_secondary: bool) -> str:
    own = parts.get("BlobSecondaryEndpoint" if is_secondary else "BlobEndpoint", "").partition("?")[0].rstrip("/")
    scheme, suffix = parts.get("DefaultEndpointsProtocol", "https"), parts.get("EndpointSuffix", "core.windows.net")
    made = f"{scheme}://{account}{'-secondary' if is_secondary else ''}.blob.{suffix}"
    problem = ""
    if host:
        made = f"https://{host.replace('.dfs.', '.blob.')}"
        if not _HOST.fullmatch(host) or "." not in host:
            problem = f"{host!r} is no host of an account. Expected such as ACCOUNT.blob.core.windows.net."
    elif own:
        made = own
        if not is_server_url("/".join(own.split("/")[:3])) or not _PATH.fullmatch(own):
            problem = "BlobEndpoint of the connection string must be an http(s) URL."
    elif not account:
        problem = (
            "no storage account is named. Pass storage_options={'account_name': ...}, set AZURE_STORAGE_ACCOUNT_NAME, "
            "or write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH."
        )
    elif not is_server_url(made) or _HOST.fullmatch(made.partition("://")[2]) is None:
        problem = (
            f"{account!r} is no name of a storage account, or the connection string has a wrong "
            "DefaultEndpointsProtocol or EndpointSuffix."
        )
    if problem:
        raise UrlError(f"{where}: {problem}", url=where)
    return made


def _credential(
    where: str, options: StorageOptions, given: Mapping[str, Any], parts: Mapping[str, str], read_timeout_s: float
) -> Callable[[], Issued]:
    """Return what issues the first credential that is found."""
    anon = options.get("anon")
    if option_flag("anon", anon, where) if anon is not None else _is_true(given["anon"]):
        return partial(Issued, {}, None, "The request was not signed (anon=True).", can_renew=False)
    own, client_id = options.get("credential"), options.get("client_id")
    if own is not None and not isinstance(own, str):
        if not hasattr(own, "get_token"):
            raise UrlError(
                f"{where}: storage_options['credential'] must be an account key, a SAS, or a credential of "
                f"azure-identity, got {type(own).__name__}.",
                url=where,
            )
        source = f"The credentials are from {type(own).__name__}, in storage_options['credential']."
        return _Identity(lambda: own, source, where).issue
    for text, source in (
        (own, "'credential' of storage_options"),
        (options.get("account_key"), "'account_key' of storage_options"),
        (options.get("sas_token"), "'sas_token' of storage_options"),
        (parts.get("AccountKey"), "the connection string"),
        (parts.get("SharedAccessSignature"), "the SAS of the connection string"),
        (None if client_id else given["account_key"], "the environment (AZURE_STORAGE_ACCOUNT_KEY)"),
        (None if client_id else given["sas_token"], "the environment (AZURE_STORAGE_SAS_TOKEN)"),
    ):
        if text:
            return _given(where, text, source)
    limits: dict[str, Any] = {"connection_timeout": CONNECT_TIMEOUT_S, "read_timeout": read_timeout_s}
    client = tuple(given[name] for name in ("tenant_id", "client_id", "client_secret"))
    if not any(client[1:]):
        source = "The credentials are those that azure-identity finds (environment, identity, az login)."
        return _Identity(lambda: _identity("DefaultAzureCredential", where, **limits), source, where).issue
    if not all(client):
        raise UrlError(
            f"{where}: 'tenant_id', 'client_id' and 'client_secret' are needed together (storage_options or "
            "AZURE_STORAGE_TENANT_ID, AZURE_STORAGE_CLIENT_ID, AZURE_STORAGE_CLIENT_SECRET).",
            url=where,
        )
    source = "The credentials are those of the application 'client_id'."
    return _Identity(lambda: _identity("ClientSecretCredential", where, *client, **limits), source, where).issue


def _is_true(variable: str | None) -> bool:
    return variable is not None and variable.lower() not in ("false", "0", "f")


def _given(where: str, text: str, source: str) -> Callable[[], Issued]:
    """Return what issues an account key or a SAS, without the ``?`` of the URL that it was copied from."""
    text, shown = text.strip(), f"The credentials are from {source}."
    if "sas" not in source.lower() and _SAS.search(text) is None:
        if re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", text) is None or len(text) % 4:
            raise AccessDeniedError(
                f"{where}: the account key is not valid: it must be the Base64 text of the access keys of the storage "
                f"account. {shown}",
                url=where,
            )
        return partial(Issued, {"access_key": text}, None, shown, can_renew=False)
    sas = text.lstrip("?")
    if _SAS.search(sas) is None or _SIGNED.fullmatch(sas) is None or "://" in sas:
        raise UrlError(
            f"{where}: the SAS is none. Expected the text behind the '?' of a URL, with sig=, without spaces and "
            f"quotes. {shown}",
            url=where,
        )
    return partial(Issued, {"sas_token": sas}, _end_of(sas), shown, can_renew=False)


def _end_of(sas: str) -> float | None:
    try:
        end = dt.datetime.fromisoformat(parse_qs(sas)["se"][0].replace("Z", "+00:00"))
    except (LookupError, ValueError):
        return None
    return (end if end.tzinfo else end.replace(tzinfo=dt.timezone.utc)).timestamp()


def _identity(kind: str, where: str, *arguments: Any, **limits: Any) -> Any:
    try:
        import azure.identity
    except ImportError:
        raise AccessDeniedError(
            f"{where}: no credentials in storage_options and the environment; those of Azure's identities need a "
            f"package. {_EXTRA} A public container needs storage_options={{'anon': True}}.",
            url=where,
        ) from None
    return getattr(azure.identity, kind)(*arguments, **limits)


class _Identity:
    """Tokens by azure-identity.

    Args:
        make: returns its credential.
        source: as a sentence.
        where: URL of the container, for errors.
    """

    def __init__(self, make: Callable[[], Any], source: str, where: str) -> None:
        self._make, self._source, self._where = make, source, where
        self._identity: Any = None
        self._has_worked = False

    def issue(self) -> Issued:
        """Return a new token."""
        try:
            self._identity = self._identity or self._make()
            found = self._identity.get_token(_SCOPE)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001  # credentials of the user raise what they like
            raise self._failed(error) from None
        try:
            text, expires_s = found.token, float(found.expires_on)
        except (AttributeError, TypeError, ValueError) as error:
            raise AccessDeniedError(
                f"{self._where}: {type(self._identity).__name__}.get_token returned {type(found).__name__}, which is "
                f"no access token ({type(error).__name__}). {self._source}",
                url=self._where,
            ) from None
        token = bearer_token(text, self._where, self._source)
        self._has_worked = True
        return Issued({"token": token}, expires_s, self._source)

    def _failed(self, error: Exception) -> Exception:
        first_line = redact_text(str(error).partition("\n")[0])
        if (self._has_worked and _WITHDRAWN.search(str(error)) is None) or _is_of_network(error):
            message = f"{self._where}: no access token: {first_line.rstrip('.')}. {self._source}"
            return TransientStorageError(message, url=self._where)
        converted = to_package_error(lambda error, url: error, error, self._where)
        if isinstance(converted, AccessDeniedError):
            message = (
                f"{self._where}: azure-identity found no credentials: {first_line} Set AZURE_STORAGE_ACCOUNT_KEY or "
                "AZURE_STORAGE_SAS_TOKEN, run `az login`, use a managed identity, or pass storage_options={'anon': "
                "True} for a public container."
            )
            converted.args = (message,)
        return converted


def _is_of_network(error: BaseException | None) -> bool:
    """Whether an error of azure-identity, or one of its causes, is one of a server or a network."""
    if error is None:
        return False
    status = getattr(getattr(error, "response", error), "status_code", None)
    is_of_server = isinstance(status, int) and (status >= 500 or status in (408, 429))
    names = {kind.__name__ for kind in type(error).__mro__}
    return (
        is_of_server or bool(names & {"ServiceRequestError", "ServiceResponseError"}) or _is_of_network(error.__cause__)
    )
