"""botocore's chain of credentials, with sources that are named if they fail, and asked again in time."""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import Any

from ...errors import StorageError
from ..errors import Table, translate_errors
from ..protocol import CONNECT_TIMEOUT_S
from .credential_errors import errors_of_source, none_found

ASK_AGAIN_S = 30.0  # between two questions to a source, while the credentials that it gave are valid
_log = logging.getLogger("torchdata_remote")


def use_chain(session: Any, region: str, url: str) -> None:
    """Let a botocore session load its credentials by :class:`CredentialChain`.

    Args:
        session: of botocore.
        region: in which a role is assumed, if its profile names none.
        url: of the bucket, for errors.
    """
    from botocore.config import Config

    session.register_component("credential_provider", CredentialChain(session, region, url))
    # Also of the clients for STS and SSO: botocore would wait for minutes, with the request of a store in line
    once = {"mode": "standard", "total_max_attempts": 1}
    timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": CONNECT_TIMEOUT_S}
    session.set_default_client_config(Config(retries=once, **timeouts))


def require_credentials(session: Any, url: str) -> Any:
    """Return the credentials of a botocore session.

    Raises:
        AccessDeniedError: if there are none.
    """
    found = session.get_credentials()
    if found is None:
        raise none_found(session, url)
    return found


class CredentialChain:
    """The sources that botocore asks, in its order.

    Args:
        session: of botocore.
        region: in which a role is assumed, if its profile names none.
        url: of the bucket, for errors.
    """

    def __init__(self, session: Any, region: str, url: str) -> None:
        self._session, self._region, self._url = session, region, url

    @functools.cached_property
    def providers(self) -> list[Any]:
        """The sources, of botocore."""
        from botocore.credentials import create_credential_resolver

        providers: list[Any] = create_credential_resolver(self._session, region_name=self._region).providers
        return providers

    def load_credentials(self) -> ChainCredentials | None:
        """Return the credentials of the first source that is configured; ``None`` if none is.

        Raises:
            CredentialSourceError: if the source has none.
            TransientStorageError: if the source cannot be reached.
        """
        for provider in self.providers:
            table = errors_of_source(str(provider.METHOD), self._session)
            with translate_errors(table, self._url):
                found = provider.load()
            if found is not None:
                return ChainCredentials(found, table, self._url)
        return None


class ChainCredentials:
    """Credentials of one source, for botocore and obstore.

    botocore renews credentials 15 minutes before they expire, and asks for each request from then on: also a source
    whose credentials never last longer, or which does not answer. Here it is asked once in a while, and its failure
    counts only when the credentials have expired.

    Args:
        credentials: of botocore.
        table: converts the exceptions of the source.
        url: of the bucket, for errors.
    """

    def __init__(self, credentials: Any, table: Table, url: str) -> None:
        self._credentials, self._table, self._url = credentials, table, url
        self._lock = threading.RLock()
        self._frozen: Any = None
        self._asked_s = 0.0

    @property
    def method(self) -> str:
        """Name of the source, as botocore has it."""
        return str(self._credentials.method)

    @property
    def access_key(self) -> str:
        return str(self.get_frozen_credentials().access_key)

    @property
    def secret_key(self) -> str:
        return str(self.get_frozen_credentials().secret_key)

    @property
    def token(self) -> str | None:
        token: str | None = self.get_frozen_credentials().token
        return token

    @property
    def account_id(self) -> str | None:
        account: str | None = self.get_frozen_credentials().account_id
        return account

    def get_deferred_property(self, name: str) -> Any:
        """Return a function that returns a property, as botocore's class does."""
        return lambda: getattr(self, name, None)

    def get_frozen_credentials(self) -> Any:
        """Return key, secret and token, from the source if they are new or expire soon.

        Raises:
            CredentialSourceError: if there are none.
            TransientStorageError: if the source cannot be reached.
        """
        if not self._lock.acquire(blocking=not self._is_valid()):
            return self._frozen  # while another thread asks
        try:
            if self._is_valid() and time.monotonic() < self._asked_s + ASK_AGAIN_S:
                return self._frozen
            try:
                with translate_errors(self._table, self._url):
                    self._frozen = self._credentials.get_frozen_credentials()
            except StorageError as error:
                if not self._is_valid():
                    raise
                _log.warning("%s The previous ones are used until they expire.", error)
            self._asked_s = time.monotonic()
            return self._frozen
        finally:
            self._lock.release()

    def _is_valid(self) -> bool:
        needs_renewal = getattr(self._credentials, "refresh_needed", None)  # missing where they never expire
        return self._frozen is not None and not (needs_renewal and needs_renewal(refresh_in=0))
