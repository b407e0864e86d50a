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
from ...errors import AccessDeniedError, StorageError, UrlError
from ..credentials import Credentials, Issued, bearer_token, no_token
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
_ADVICE = (
    "azure-identity found no credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, run `az login`, "
    "use a managed identity, or pass storage_options={'anon': True} for a public container."
)
_KEY = re.compile(r"[A-Za-z0-9+/]+={0,2}")
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
        AccessDeniedError: for an account key that is none.
    """
    container, _, host = bucket.partition("@")
    where = f"az://{bucket}"
    for name in sorted(options.keys() & AZURE_OPTIONS - {"credential", "anon"}):
        if not isinstance(options[name], str | None):
            kind = type(options[name]).__name__
            raise _unusable(where, f"storage_options[{name!r}] must be a str, got {kind}.")
    given = {name: options.get(name) or os.environ.get(variable) for name, variable in _VARIABLES.items()}
    has_own_account = any(options.get(name) for name in ("account_name", "account_key", "sas_token", "credential"))
    text = options.get("connection_string") or (None if has_own_account or host else given["connection_string"])
    parts = _parse(where, text) if text else {}
    named, in_url = options.get("account_name") or parts.get("AccountName") or given["account_name"], host.split(".")[0]
    if in_url and named and named != in_url and _ACCOUNT.fullmatch(named):
        raise _unusable(
            where,
            f"the URL names the account {in_url!r}, and the options or the environment {named!r}. Remove one of them.",
        )
    is_secondary = "secondary" in (options.get("location_mode") or "primary")
    endpoint = _endpoint(where, host or options.get("account_host"), in_url or named, parts, is_secondary=is_secondary)
    return Target(
        where,
        "AzureStore",
        container,
        config={"endpoint": endpoint, "account_name": in_url or named or ""},
        client_options=obstore_client_options(endpoint, read_timeout_s),
        credentials=Credentials(_credential(where, options, given, parts, read_timeout_s), where, early_s=_EARLY_S),
    )


def _unusable(where: str, problem: str) -> UrlError:
    return UrlError(f"{where}: {problem}", url=where)


def _denied(where: str, problem: str) -> AccessDeniedError:
    return AccessDeniedError(f"{where}: {problem}", url=where)


def _parse(where: str, text: str) -> dict[str, str]:
    """Split a connection string into its parts."""
    pairs = [part.partition("=") for part in filter(None, text.strip().strip("\"'").split(";"))]
    if not all(equals for _, equals, _ in pairs):
        advice = "Copy it from the access keys of the storage account."
        raise _unusable(where, f"the connection string is not NAME=VALUE;NAME=VALUE. {advice}")
    parts = {name.strip(): value.strip() for name, _, value in pairs}
    if parts.get("UseDevelopmentStorage", "").lower() == "true":
        return {**_EMULATOR, **parts}
    if not parts.keys() & {"AccountName", "BlobEndpoint"}:
        raise _unusable(where, "the connection string has neither AccountName nor BlobEndpoint.")
    return parts


def _endpoint(where: str, host: str | None, account: str | None, parts: dict[str, str], *, is_secondary: bool) -> str:
    own = parts.get("BlobSecondaryEndpoint" if is_secondary else "BlobEndpoint", "").partition("?")[0].rstrip("/")
    if host:
        if not _HOST.fullmatch(host) or "." not in host:
            example = "Expected such as ACCOUNT.blob.core.windows.net."
            raise _unusable(where, f"{host!r} is no host of an account. {example}")
        return f"https://{host.replace('.dfs.', '.blob.')}"
    if own:
        if not is_server_url("/".join(own.split("/")[:3])) or not _PATH.fullmatch(own):
            raise _unusable(where, "BlobEndpoint of the connection string must be an http(s) URL.")
        return own
    if not account:
        raise _unusable(
            where,
            "no storage account is named. Pass storage_options={'account_name': ...}, set AZURE_STORAGE_ACCOUNT_NAME, "
            "or write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.",
        )
    scheme, suffix = parts.get("DefaultEndpointsProtocol", "https"), parts.get("EndpointSuffix", "core.windows.net")
    made = f"{scheme}://{account}{'-secondary' * is_secondary}.blob.{suffix}"
    if not is_server_url(made) or not _HOST.fullmatch(made.partition("://")[2]):
        raise _unusable(
            where,
            f"{account!r} is no name of a storage account, or the connection string has a wrong "
            "DefaultEndpointsProtocol or EndpointSuffix.",
        )
    return made


def _credential(
    where: str, options: StorageOptions, given: Mapping[str, Any], parts: Mapping[str, str], read_timeout_s: float
) -> Callable[[], Issued]:
    """Return what issues the first credential that is found."""
    anon, own, client_id = options.get("anon"), options.get("credential"), options.get("client_id")
    if anon is None:
        anon = str(given["anon"]).lower() not in ("none", "false", "0", "f")
    if option_flag("anon", anon, where):
        return partial(Issued, {}, None, "The request was not signed (anon=True).", can_renew=False)
    for text, source in (
        (own, "'credential' of storage_options"),
        (options.get("account_key"), "'account_key' of storage_options"),
        (options.get("sas_token"), "'sas_token' of storage_options"),
        (parts.get("AccountKey"), "the connection string"),
        (parts.get("SharedAccessSignature"), "the SAS of the connection string"),
        (None if client_id else given["account_key"], "the environment (AZURE_STORAGE_ACCOUNT_KEY)"),
        (None if client_id else given["sas_token"], "the environment (AZURE_STORAGE_SAS_TOKEN)"),
    ):
        if isinstance(text, str) and text:
            return _given(where, text, f"The credentials are from {source}.")
        if text is not None and hasattr(text, "get_token"):
            source = f"The credentials are from {type(text).__name__}, in storage_options['credential']."
            return _Identity(text, source, where).issue
        if text:
            raise _unusable(
                where,
                "storage_options['credential'] must be an account key, a SAS, or a credential of azure-identity, got "
                f"{type(text).__name__}.",
            )
    client = tuple(given[name] for name in ("tenant_id", "client_id", "client_secret"))
    if any(client[1:]) and not all(client):
        raise _unusable(
            where,
            "'tenant_id', 'client_id' and 'client_secret' are needed together (storage_options or "
            "AZURE_STORAGE_TENANT_ID, AZURE_STORAGE_CLIENT_ID, AZURE_STORAGE_CLIENT_SECRET).",
        )
    kind, arguments, source = (
        "ClientSecretCredential",
        client,
        "The credentials are those of the application 'client_id'.",
    )
    if not all(client):
        kind, arguments = "DefaultAzureCredential", ()
        source = "The credentials are those that azure-identity finds (environment, identity, az login)."
    # Its own limits are five minutes for each of eleven attempts
    limits = {"connection_timeout": CONNECT_TIMEOUT_S, "read_timeout": read_timeout_s}
    return _Identity(partial(_identity, where, kind, *arguments, **limits), source, where).issue


def _given(where: str, text: str, source: str) -> Callable[[], Issued]:
    """Return what issues an account key or a SAS, without the ``?`` of the URL that it was copied from."""
    text = text.strip().lstrip("?")
    if "sas" not in source.lower() and _SAS.search(text) is None:
        if _KEY.fullmatch(text) is None or len(text) % 4:
            what = "it must be the Base64 text of the access keys of the storage account"
            raise _denied(where, f"the account key is not valid: {what}. {source}")
        return partial(Issued, {"access_key": text}, None, source, can_renew=False)
    if _SAS.search(text) is None or _SIGNED.fullmatch(text) is None or "://" in text:
        expected = "Expected the text behind the '?' of a URL, with sig=, without spaces and quotes"
        raise _unusable(where, f"the SAS is none. {expected}. {source}")
    try:
        end = dt.datetime.fromisoformat(parse_qs(text)["se"][0].replace("Z", "+00:00"))
        expires_s = (end if end.tzinfo else end.replace(tzinfo=dt.timezone.utc)).timestamp()
    except (LookupError, ValueError):
        expires_s = None
    return partial(Issued, {"sas_token": text}, expires_s, source, can_renew=False)


def _identity(where: str, kind: str, *arguments: Any, **limits: Any) -> Any:
    try:
        import azure.identity
    except ImportError:
        raise _denied(
            where,
            "no credentials in storage_options and the environment; those of Azure's identities need a package: pip "
            "install 'torchdata_remote[az]'. A public container needs storage_options={'anon': True}.",
        ) from None
    return getattr(azure.identity, kind)(*arguments, **limits)


class _Identity:
    """Tokens by azure-identity.

    Args:
        identity: of azure-identity, or a function that makes one.
        source: as a sentence.
        where: URL of the container, for errors.
    """

    def __init__(self, identity: Any, source: str, where: str) -> None:
        self._identity, self._source, self._where = identity, source, where
        self._has_worked = False

    def issue(self) -> Issued:
        """Return a new token."""
        try:
            if isinstance(self._identity, partial):
                self._identity = self._identity()
            found = self._identity.get_token(_SCOPE)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001  # credentials of the user raise what they like
            raise no_token(error, self._where, self._source, _ADVICE, has_worked=self._has_worked) from None
        try:
            text, expires_s = found.token, float(found.expires_on)
        except (AttributeError, TypeError, ValueError) as error:
            kind, what = type(self._identity).__name__, type(found).__name__
            problem = f"{kind}.get_token returned {what}, which is no access token ({type(error).__name__})"
            raise _denied(self._where, f"{problem}. {self._source}") from None
        token = bearer_token(text, self._where, self._source)
        self._has_worked = True
        return Issued({"token": token}, expires_s, self._source)
