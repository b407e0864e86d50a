"""Authorize requests to Azure: by a shared access signature (SAS), or by a token of azure-identity.

Neither needs code of ours that signs: azure-storage-blob makes a SAS from an account key without a request.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from ...core.urls import redact_text
from ...errors import AccessDeniedError, RemoteDataError, StorageError, TransientStorageError
from ..errors import to_package_error
from ..http import bearer_token
from ..protocol import CONNECT_TIMEOUT_S
from .errors import may_pass
from .settings import AzureSettings

_log = logging.getLogger("torchdata_remote")
_SCOPE = "https://storage.azure.com/.default"
_SAS_S = 3600.0  # validity of those that are made here
_RENEW_S = 600.0  # before they expire
_RENEW_AGAIN_S = 30.0  # after a failure, or where all that are issued expire sooner
_SKEW = dt.timedelta(minutes=15)  # by which the clock of this machine may be ahead
_EXTRA = "Install the packages for Azure: pip install 'torchdata_remote[az]'."


class _Grant(NamedTuple):
    """What authorizes a request: a query (SAS) or a token, both empty for none; seconds since 1970 of its end."""

    query: str
    token: str
    expires_s: float | None

    def __repr__(self) -> str:
        return f"_Grant(expires_s={self.expires_s})"


class AzureCredentials:
    """The credentials of a container, renewed before they expire.

    Args:
        container: its name.
        settings: of the account.
        where: URL of the container, for errors.
    """

    def __init__(self, container: str, settings: AzureSettings, where: str) -> None:
        self._container, self._settings, self._where = container, settings, where
        self._identity: Any = settings.credential if settings.kind == "object" else None
        self._grant: _Grant | None = None
        self._has_worked = False
        self._again_s = 0.0  # when to renew at the earliest
        self.renewals = 0  # after the store has refused them
        self._lock = threading.RLock()

    def __reduce__(self) -> str:
        raise TypeError(
            "Credentials belong to their process, so they cannot be pickled. Open the store in each process."
        )

    @property
    def source(self) -> str:
        """Where they are from, as a sentence."""
        return self._settings.source

    @property
    def are_anonymous(self) -> bool:
        """Whether requests are not authorized at all."""
        return self._settings.kind == "anonymous"

    def ended(self) -> str | None:
        """When a SAS that was handed over has expired; ``None`` if it has not."""
        if self._settings.kind != "sas":
            return None
        end = parse_qs(self._settings.credential).get("se", [""])[0]
        try:
            when = dt.datetime.fromisoformat(end.replace("Z", "+00:00"))
        except ValueError:
            return None
        when = when if when.tzinfo else when.replace(tzinfo=dt.timezone.utc)
        return end if when.timestamp() < time.time() else None

    def current(self) -> _Grant:
        """Return valid credentials.

        Raises:
            AccessDeniedError: if there are none, or a package is missing.
        """
        grant = self._grant
        if grant is not None and (grant.expires_s is None or time.time() < grant.expires_s - _RENEW_S):
            return grant
        with self._lock:
            if self._grant is grant:
                self._grant = self._made_in_time(grant)
            assert self._grant is not None
            return self._grant

    def _made_in_time(self, grant: _Grant | None) -> _Grant:
        """Make new credentials. While the current ones are valid, a failure is logged, and they are used."""
        if grant is None or grant.expires_s is None:
            return self._make()
        now_s = time.time()
        if now_s < min(self._again_s, grant.expires_s):
            return grant
        try:
            made = self._make()
        except StorageError as error:
            if now_s >= grant.expires_s:
                raise
            _log.warning("%s The current token is used until it expires.", error)
            made = grant
        self._again_s = now_s + _RENEW_AGAIN_S
        return made

    def renew(self, refused: _Grant) -> bool:
        """Discard credentials that the store has refused; whether others may be had."""
        with self._lock:
            if self._settings.kind in ("sas", "anonymous"):
                return False
            if self._grant is refused:
                self._grant = None
                self.renewals += 1
            return True

    def for_obstore(self) -> dict[str, Any]:
        """Return the credentials as obstore's provider does."""
        grant = self.current()
        expires_at = None
        if grant.expires_s is not None:
            expires_at = dt.datetime.fromtimestamp(max(grant.expires_s - _RENEW_S, time.time() + 60), dt.timezone.utc)
        if grant.token:
            return {"token": grant.token, "expires_at": expires_at}
        return {"sas_token": grant.query, "expires_at": expires_at}

    def _make(self) -> _Grant:
        settings = self._settings
        if settings.kind == "anonymous":
            return _Grant("", "", None)
        if settings.kind == "sas":
            return _Grant(settings.credential, "", None)
        return self._signed() if settings.kind == "key" else self._token()

    def _signed(self) -> _Grant:
        try:
            from azure.storage.blob import ContainerSasPermissions, generate_container_sas
        except ImportError:
            raise AccessDeniedError(
                f"{self._where}: an account key needs a package. {_EXTRA}", url=self._where
            ) from None
        expires_s = time.time() + _SAS_S
        try:
            sas: str = generate_container_sas(
                self._settings.account_name,
                self._container,
                self._settings.credential,
                permission=ContainerSasPermissions(
                    read=True, add=True, create=True, write=True, delete=True, list=True
                ),
                expiry=dt.datetime.fromtimestamp(expires_s, dt.timezone.utc) + _SKEW,
            )
        except Exception:  # noqa: BLE001  # its errors may show the key
            raise AccessDeniedError(
                f"{self._where}: the account key is not valid: it must be the Base64 text of the access keys of the "
                f"storage account. {self.source}",
                url=self._where,
            ) from None
        return _Grant(sas, "", expires_s)

    def _token(self) -> _Grant:
        try:
            with self._lock:
                if self._identity is None:
                    self._identity = self._make_identity()
            found = self._identity.get_token(_SCOPE)
        except (RemoteDataError, MemoryError):
            raise
        except Exception as error:
            if may_pass(error, has_worked=self._has_worked):
                first_line = redact_text(str(error).partition("\n")[0].rstrip("."))
                raise TransientStorageError(
                    f"{self._where}: no access token: {first_line}. {self.source}", url=self._where
                ) from None
            converted = to_package_error(_keep, error, self._where)
            if isinstance(converted, AccessDeniedError):
                first_line = str(error).partition("\n")[0]
                message = (
                    f"{self._where}: azure-identity found no credentials: {first_line} Set AZURE_STORAGE_ACCOUNT_KEY "
                    "or AZURE_STORAGE_SAS_TOKEN, run `az login`, use a managed identity, or pass "
                    "storage_options={'anon': True} for a public container."
                )
                converted.args = (message,)
            raise converted from error
        try:
            text, expires_s = found.token, float(found.expires_on)
        except (AttributeError, TypeError, ValueError) as error:
            raise AccessDeniedError(
                f"{self._where}: {type(self._identity).__name__}.get_token returned {type(found).__name__}, which is "
                f"no access token ({type(error).__name__}). {self.source}",
                url=self._where,
            ) from None
        token = bearer_token(text, self._where, self.source)
        self._has_worked = True
        return _Grant("", token, expires_s)

    def _make_identity(self) -> Any:
        try:
            from azure.identity import ClientSecretCredential, DefaultAzureCredential
        except ImportError:
            raise AccessDeniedError(
                f"{self._where}: no credentials in storage_options and the environment; those of Azure's "
                f"identities need a package. {_EXTRA} A public container needs storage_options={{'anon': True}}.",
                url=self._where,
            ) from None
        # Its own is five minutes for each of eleven attempts
        limits: dict[str, Any] = {
            "connection_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": self._settings.read_timeout_s,
        }
        if self._settings.client is not None:
            return ClientSecretCredential(*self._settings.client, **limits)
        return DefaultAzureCredential(**limits)


def _keep(error: Exception, url: str) -> Exception:
    return error
