"""Account, endpoint and credentials of Azure, from a URL, storage options and the environment, in adlfs's words."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import dataclass, field
from typing import Any

from ...core.options import StorageOptions
from ...errors import UrlError
from ..option_checks import is_server_url, option_flag

AZURE_OPTIONS = {
    "account_name",
    "account_key",
    "connection_string",
    "credential",
    "sas_token",
    "client_id",
    "client_secret",
    "tenant_id",
    "anon",
    "account_host",
    "location_mode",
}
# Further ones, which select adlfs
ADLFS_OPTIONS = {
    *("assume_container_exists", "blocksize", "connection_timeout", "default_cache_type", "default_fill_cache"),
    *("max_concurrency", "read_timeout", "request_session", "socket_timeout", "timeout", "use_shared_client"),
    "version_aware",
}
_TEXTS = AZURE_OPTIONS - {"credential", "anon"}
# Those that adlfs reads
_VARIABLES = {
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "connection_string": "AZURE_STORAGE_CONNECTION_STRING",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
    "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
    "tenant_id": "AZURE_STORAGE_TENANT_ID",
    "anon": "AZURE_STORAGE_ANON",
}
_FALSE = {"false", "0", "f"}
_HOST = re.compile(r"[A-Za-z0-9.-]+(:\d+)?")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}(-secondary)?")
_PATH = re.compile(r"[^\s@#\\]+")
_SIGNED = re.compile(r"[\x21\x24-\x7e]+")
_SAS = re.compile(r"(?:^|[?&])sig=")
# Public: the account of the emulators (https://learn.microsoft.com/azure/storage/common/storage-use-azurite)
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


@dataclass(frozen=True)
class AzureSettings:
    """What is known of a container's account.

    Args:
        account_name: of the storage account.
        endpoint: URL of its blob service, without a slash at its end.
        credential: an account key or a SAS as ``str``, an object of azure-identity, ``None`` for the chain.
        kind: of the credential: ``key``, ``sas``, ``object``, ``client``, ``chain`` or ``anonymous``.
        client: tenant, ID and secret of an application.
        source: where the credential is from, for errors.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    account_name: str
    endpoint: str
    credential: Any = field(repr=False)
    kind: str
    client: tuple[str, str, str] | None = field(repr=False)
    source: str
    read_timeout_s: float


def azure_settings(bucket: str, options: StorageOptions, read_timeout_s: float) -> tuple[str, AzureSettings] | None:
    """Return the container and the settings; ``None`` if an option is one that only adlfs translates.

    Args:
        bucket: of the URL: ``container``, or ``container@account.dfs.core.windows.net``.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.

    Raises:
        UrlError: for a value of the wrong kind, an account that is missing, or one that two places name differently.
    """
    container, _, host = bucket.partition("@")
    where = f"az://{bucket}"
    for name in sorted(options.keys() & _TEXTS):
        if not isinstance(options[name], str | None):
            raise UrlError(
                f"{where}: storage_options[{name!r}] must be a str, got {type(options[name]).__name__}.", url=where
            )
    if options.keys() - AZURE_OPTIONS or inspect.iscoroutinefunction(
        getattr(options.get("credential"), "get_token", None)
    ):
        return None
    given = {name: options.get(name) or os.environ.get(variable) for name, variable in _VARIABLES.items()}
    anon = options.get("anon")
    if anon is None and given["anon"] is not None:
        anon = str(given["anon"]).lower() not in _FALSE
    elif anon is not None:
        anon = option_flag("anon", anon)
    has_own_account = any(options.get(name) for name in ("account_name", "account_key", "sas_token", "credential"))
    text = options.get("connection_string") or (None if has_own_account or host else given["connection_string"])
    parts = _parse(where, text) if text else {}
    account = _account(where, host, options.get("account_name") or parts.get("AccountName") or given["account_name"])
    is_secondary = "secondary" in (options.get("location_mode") or "primary")
    endpoint = _endpoint(where, host or options.get("account_host") or "", account, parts, is_secondary=is_secondary)
    kind, credential, client, source = _credential(where, options, given, parts, anon=anon)
    return container, AzureSettings(account, endpoint, credential, kind, client, source, read_timeout_s)


def _parse(where: str, text: str) -> dict[str, str]:
    """Split a connection string into its parts."""
    parts = dict[str, str]()
    for part in filter(None, text.strip().strip("\"'").split(";")):
        name, equals, value = part.partition("=")
        if not equals:
            raise UrlError(
                f"{where}: the connection string is not NAME=VALUE;NAME=VALUE. Copy it from the access keys of the "
                "storage account.",
                url=where,
            )
        parts[name.strip()] = value.strip()
    if parts.get("UseDevelopmentStorage", "").lower() == "true":
        parts = {**_EMULATOR, **parts}
    elif not parts.keys() & {"AccountName", "BlobEndpoint"}:
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
    if host:
        if not _HOST.fullmatch(host) or "." not in host:
            raise UrlError(
                f"{where}: {host!r} is no host of an account. Expected such as ACCOUNT.blob.core.windows.net.",
                url=where,
            )
        return f"https://{host.replace('.dfs.', '.blob.')}"
    own = parts.get("BlobSecondaryEndpoint" if is_secondary else "BlobEndpoint")
    if own:
        own = own.partition("?")[0].rstrip("/")
        if not is_server_url("/".join(own.split("/")[:3])) or not _PATH.fullmatch(own):
            raise UrlError(f"{where}: BlobEndpoint of the connection string must be an http(s) URL.", url=where)
        return own
    if not account:
        raise UrlError(
            f"{where}: no storage account is named. Pass storage_options={{'account_name': ...}}, set "
            "AZURE_STORAGE_ACCOUNT_NAME, or write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.",
            url=where,
        )
    scheme, suffix = parts.get("DefaultEndpointsProtocol", "https"), parts.get("EndpointSuffix", "core.windows.net")
    made = f"{scheme}://{account}{'-secondary' if is_secondary else ''}.blob.{suffix}"
    if not is_server_url(made) or _HOST.fullmatch(made.partition("://")[2]) is None:
        raise UrlError(
            f"{where}: {account!r} is no name of a storage account, or the connection string has a wrong "
            "DefaultEndpointsProtocol or EndpointSuffix.",
            url=where,
        )
    return made


def _credential(
    where: str, options: StorageOptions, given: dict[str, Any], parts: dict[str, str], *, anon: bool | None
) -> tuple[str, Any, tuple[str, str, str] | None, str]:
    """Return kind, credential, client and source of the first credential that is found."""
    if anon:
        return "anonymous", None, None, "The request was not signed (anon=True)."
    own = options.get("credential")
    if own is not None and not isinstance(own, str):
        if not hasattr(own, "get_token"):
            raise UrlError(
                f"{where}: storage_options['credential'] must be an account key, a SAS, or a credential of "
                f"azure-identity, got {type(own).__name__}.",
                url=where,
            )
        return "object", own, None, f"The credentials are from {type(own).__name__}, in storage_options['credential']."
    sources: tuple[tuple[str | None, str], ...] = (
        (own, "'credential' of storage_options"),
        (options.get("account_key"), "'account_key' of storage_options"),
        (options.get("sas_token"), "'sas_token' of storage_options"),
        (parts.get("AccountKey"), "the connection string"),
        (parts.get("SharedAccessSignature"), "the SAS of the connection string"),
    )
    if options.get("client_id") is None:
        sources += (
            (given["account_key"], "the environment (AZURE_STORAGE_ACCOUNT_KEY)"),
            (given["sas_token"], "the environment (AZURE_STORAGE_SAS_TOKEN)"),
        )
    for text, source in sources:
        if text:
            shown = f"The credentials are from {source}."
            if "sas" in source.lower() or _SAS.search(text):
                return "sas", _sas(where, text, shown), None, shown
            return "key", text.strip(), None, shown
    client = tuple(given[name] for name in ("tenant_id", "client_id", "client_secret"))
    if any(given[name] for name in ("client_id", "client_secret")):
        if not all(client):
            raise UrlError(
                f"{where}: 'tenant_id', 'client_id' and 'client_secret' are needed together (storage_options or "
                "AZURE_STORAGE_TENANT_ID, AZURE_STORAGE_CLIENT_ID, AZURE_STORAGE_CLIENT_SECRET).",
                url=where,
            )
        return "client", None, client, "The credentials are those of the application 'client_id'."
    return "chain", None, None, "The credentials are those that azure-identity finds (environment, identity, az login)."


def _sas(where: str, text: str, source: str) -> str:
    """Return a SAS as it is sent: without the ``?`` of the URL that it was copied from."""
    sas = text.strip().lstrip("?")
    if _SAS.search(sas) is None or _SIGNED.fullmatch(sas) is None or "://" in sas:
        raise UrlError(
            f"{where}: the SAS is none. Expected the text behind the '?' of a URL, with sig=, without spaces and "
            f"quotes. {source}",
            url=where,
        )
    return sas
