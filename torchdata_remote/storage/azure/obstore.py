"""Read Azure by obstore, with the credentials that this package finds."""

from __future__ import annotations

from typing import Any

from ..obstore_reader import NO_RETRIES, ObstoreReader, client_options, construction_by_obstore
from .credentials import AzureCredentials
from .settings import AzureSettings


def azure_reader(container: str, settings: AzureSettings, credentials: AzureCredentials, root: str) -> ObstoreReader:
    """Make a reader of one container.

    Args:
        container: its name.
        settings: of the account.
        credentials: asked again before they expire.
        root: URL of the container, with a slash at its end.
    """
    from obstore.store import AzureStore

    config: dict[str, Any] = {"endpoint": settings.endpoint, "account_name": settings.account_name}
    if credentials.are_anonymous:
        config["skip_signature"] = True
    else:
        config["credential_provider"] = credentials.for_obstore
    options = client_options(settings.read_timeout_s, settings.endpoint)
    with construction_by_obstore(root):
        store = AzureStore(container, client_options=options, retry_config=NO_RETRIES, **config)  # type: ignore[arg-type]
    return ObstoreReader(store, root, if_match=True)
