"""What obstore has to know of a bucket: the result of a user's options, whatever the cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..credentials import Credentials
from ..obstore_reader import NO_RETRIES, construction_by_obstore

if TYPE_CHECKING:
    from obstore.store import ObjectStore


@dataclass(frozen=True, repr=False)
class CloudBucket:
    """A bucket or container.

    Args:
        url: for errors.
        kind: class of obstore.
        name: of the bucket.
        config: arguments of the class.
        client_options: of its HTTP client.
        credentials: of all requests.
        more_headers: returns headers of all requests that depend on the credentials.
    """

    url: str
    kind: str
    name: str
    config: Mapping[str, Any]
    client_options: Mapping[str, Any]
    credentials: Credentials
    more_headers: Callable[[], Mapping[str, str]] = dict

    def open(self) -> ObjectStore:
        """Make a store of obstore. It keeps credentials until they end.

        Raises:
            AccessDeniedError: if there are no credentials.
            TransientStorageError: if their source cannot be reached.
            UnsupportedByTransportError: if obstore refuses the configuration.
        """
        import obstore.store

        is_signed = bool(self.credentials.current().fields)
        headers = {**self.client_options.get("default_headers", {}), **self.more_headers()}
        with construction_by_obstore(self.url):
            store: ObjectStore = getattr(obstore.store, self.kind)(
                self.name,
                client_options={**self.client_options, "default_headers": headers},
                retry_config=NO_RETRIES,
                # Also without a signature: else obstore searches for credentials itself
                credential_provider=self.credentials,
                **self.config,
                **({} if is_signed else {"skip_signature": True}),
            )
            return store
