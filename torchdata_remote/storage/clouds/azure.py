"""Azure: the account, endpoint and credentials of a container, from URL, options and environment in adlfs's words."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from obstore.store import AzureStore

from ...core import arguments as check
from ...core.options import StorageOptions
from ...errors import AccessDeniedError, RemoteDataError, UrlError
from ..network import obstore_client_options, server_address
from ..obstore_reader import ODD_KEY
from ..options import OF_AZURE
from ..protocol import CONNECT_TIMEOUT_S
from .bucket import CloudBucket, Credentials, Issued, no_token

_SCOPE = "https://storage.azure.com/.default"
_EARLY_S = 600.0
_CHANGED = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|\\")
# Public: the account of the emulators (https://learn.microsoft.com/azure/storage/common/storage-use-azurite)
_EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}


class AzureBucket(CloudBucket):
    """One container.

    Args:
        url: of the container.
        name: ``container``, or ``container@account.dfs.core.windows.net``.
        options: of the user, without those that select adlfs.
        read_timeout_s: seconds without a byte after which a request fails.

    Raises:
        UrlError: if no account is named, or an option cannot be used.
        AccessDeniedError: if credentials need a package that is missing.
    """

    store_class = AzureStore
    odd = re.compile(rf"{ODD_KEY.pattern}|\\")
    lists_in_order = False  # with a hierarchical namespace, folders are listed as a tree

    def __init__(self, url: str, name: str, options: StorageOptions, read_timeout_s: float) -> None:
        container, _, host = name.partition("@")
        given = {one: options.get(one) or os.environ.get(f"AZURE_STORAGE_{one.upper()}") for one in OF_AZURE}
        has_own = any(options.get(one) for one in ("account_name", "account_key", "sas_token", "credential"))
        text = options.get("connection_string") or (None if host or has_own else given["connection_string"])
        parts = _parse(text or "")
        account = host.split(".")[0] or options.get("account_name") or parts.get("AccountName") or given["account_name"]
        is_secondary = "secondary" in (options.get("location_mode") or "primary")
        address = parts.get("BlobSecondaryEndpoint" if is_secondary else "BlobEndpoint", "").partition("?")[0]
        if named := host or options.get("account_host"):
            address = f"https://{named.replace('.dfs.', '.blob.')}"
        elif not address:
            if not account:
                raise UrlError(
                    f"{url}: no storage account is named. Pass storage_options={{'account_name': ...}} or a "
                    "connection_string, set AZURE_STORAGE_ACCOUNT_NAME, or write "
                    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.",
                    url=url,
                )
            scheme, suffix = parts.get("DefaultEndpointsProtocol", "https"), parts.get("EndpointSuffix")
            address = f"{scheme}://{account}{'-secondary' * is_secondary}.blob.{suffix or 'core.windows.net'}"
        address = server_address(url, address, "the account, account_host or BlobEndpoint of the connection string")
        super().__init__(
            url,
            container,
            {"endpoint": address, "account_name": account or ""},
            obstore_client_options(address, read_timeout_s),
            Credentials(_issuer(url, options, given, parts, read_timeout_s), url, _EARLY_S),
        )

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        if _CHANGED.search(path):
            raise UrlError(
                f"{self.root}{path}: a name with '.' or '..' between slashes, or with a backslash, is another one on "
                "its way to Azure.",
                url=self.root + path,
            )
        return path, None


def _parse(text: str) -> dict[str, str]:
    """Split a connection string into its parts."""
    pairs = [part.partition("=") for part in text.strip().strip("\"'").split(";")]
    parts = {name.strip(): value.strip() for name, _, value in pairs}
    return _EMULATOR | parts if parts.get("UseDevelopmentStorage") == "true" else parts


def _issuer(
    url: str, options: StorageOptions, given: Mapping[str, Any], parts: Mapping[str, str], read_timeout_s: float
) -> Callable[[], Issued]:
    """Return what issues the first credential that is found."""
    anon, client = options.get("anon"), [given[name] for name in ("tenant_id", "client_id", "client_secret")]
    if anon is None:
        anon = str(given["anon"]).lower() not in ("none", "false", "0", "f")
    if check.flag("storage_options['anon']", anon):
        return lambda: Issued({}, "The request was not signed (anon=True).")
    for value, source in (
        (options.get("credential"), "'credential' of storage_options"),
        (options.get("account_key"), "'account_key' of storage_options"),
        (options.get("sas_token"), "'sas_token' of storage_options"),
        (parts.get("AccountKey"), "the connection string"),
        (parts.get("SharedAccessSignature"), "the SAS of the connection string"),
        (None if options.get("client_id") else given["account_key"], "the environment (AZURE_STORAGE_ACCOUNT_KEY)"),
        (None if options.get("client_id") else given["sas_token"], "the environment (AZURE_STORAGE_SAS_TOKEN)"),
    ):
        if hasattr(value, "get_token"):
            return partial(_token, value, f"The credentials are from {type(value).__name__}, in {source}.", url)
        if value:  # a SAS maybe with the ? of the URL that it was copied from
            text = value.strip().lstrip("?")
            issued = Issued(
                {"sas_token" if "sig=" in text else "access_key": text}, f"The credentials are from {source}."
            )
            return lambda: issued
    try:
        import azure.identity as identity
    except ImportError:
        raise AccessDeniedError(
            f"{url}: no credentials in storage_options and the environment; those of Azure's identities need a "
            "package: pip install 'torchdata_remote[az]'. A public container needs storage_options={'anon': True}.",
            url=url,
        ) from None
    # Its own limits are five minutes for each of eleven attempts
    limits: dict[str, Any] = {"connection_timeout": CONNECT_TIMEOUT_S, "read_timeout": read_timeout_s}
    if client[1] or client[2]:
        source = "The credentials are those of the application 'client_id'."
        return partial(_token, identity.ClientSecretCredential(*client, **limits), source, url)
    source = (
        "The credentials are those that azure-identity finds: set AZURE_STORAGE_ACCOUNT_KEY or "
        "AZURE_STORAGE_SAS_TOKEN, run `az login`, use a managed identity, or pass storage_options={'anon': True} for a "
        "public container."
    )
    return partial(_token, identity.DefaultAzureCredential(**limits), source, url)


def _token(identity: Any, source: str, url: str) -> Issued:
    """Return a new token."""
    try:
        found = identity.get_token(_SCOPE)
        return Issued({"token": found.token.strip()}, source, float(found.expires_on))
    except (RemoteDataError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # credentials of the user raise what they like
        raise no_token(error, url, source) from None
