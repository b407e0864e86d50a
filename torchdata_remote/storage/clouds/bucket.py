"""What obstore has to know of a bucket: the result of a user's options, whatever the cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import StorageError
from ..credentials import Credentials
from ..network import for_small_bodies

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_NO_RETRIES = {"max_retries": 0}


@dataclass(frozen=True, repr=False)
class Target:
    """Where a bucket is, and how requests are sent.

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


class CloudBucket:
    """A bucket or container.

    Args:
        target: of its requests.
    """

    def __init__(self, target: Target) -> None:
        self.target, self.root = target, f"{target.url}/"

    def connect(self, *, retry: bool = False, small: bool = False) -> ObjectStore:
        """Make a store of obstore. It keeps credentials until they end.

        Args:
            retry: whether it repeats requests by itself.
            small: whether it is for small bodies.

        Raises:
            AccessDeniedError: if there are no credentials.
            TransientStorageError: if their source cannot be reached.
        """
        import obstore.store

        target = self.target
        target.credentials.current()
        headers = {**target.client_options.get("default_headers", {}), **target.more_headers()}
        options = {**target.client_options, "default_headers": headers}
        config = {**target.config, "skip_signature": target.credentials.are_anonymous}
        if not retry:
            config["retry_config"] = _NO_RETRIES
        store: ObjectStore = getattr(obstore.store, target.kind)(
            target.name,
            client_options=for_small_bodies(options) if small else options,
            credential_provider=target.credentials,  # always, or obstore searches for some itself
            **config,
        )
        return store

    @property
    def provider_fault(self) -> Exception | None:
        """Why obstore got no credentials; it keeps only the text."""
        return self.target.credentials.fault

    def renew(self, error: StorageError) -> bool:
        """Find other credentials after an error; whether the request is worth another attempt."""
        return self.target.credentials.renew(error)

    def explain(self, error: StorageError) -> StorageError:
        """Add what the credentials have to do with an error."""
        return self.target.credentials.explain(error)

    def paths(self, keys: list[str]) -> list[str]:
        """Return the paths of keys."""
        return keys
