"""Read Google Cloud Storage by obstore, with the tokens that google-auth finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..obstore_reader import NO_RETRIES, ObstoreReader, client_options, construction_by_obstore
from .client import STORED_BYTES
from .settings import GcsSettings
from .tokens import Tokens


def gcs_reader(bucket: str, settings: GcsSettings, tokens: Tokens) -> ObstoreReader:
    """Make a reader of one bucket."""
    from obstore.store import GCSStore

    headers = dict(STORED_BYTES)
    project = tokens.user_project()
    if project is not None:
        headers["x-goog-user-project"] = project
    options = {**client_options(settings.read_timeout_s, settings.endpoint_url), "default_headers": headers}
    config: dict[str, Any] = {"base_url": settings.endpoint_url}
    if tokens.is_anonymous:
        config["skip_signature"] = True
    # With a provider obstore does not look for credentials, among whose files are some that it cannot read
    provider: Any = _provider(tokens)
    with construction_by_obstore(f"gs://{bucket}"):
        store = GCSStore(
            bucket,
            client_options=options,  # type: ignore[arg-type]  # a TypedDict
            retry_config=NO_RETRIES,  # type: ignore[arg-type]
            credential_provider=provider,
            **config,
        )
    return ObstoreReader(store, f"gs://{bucket}/", if_match=True)


def _provider(tokens: Tokens) -> Callable[[], dict[str, Any]]:
    def provide() -> dict[str, Any]:
        token = tokens.current()
        if token is None:
            return {"token": "", "expires_at": None}
        return {"token": token.text, "expires_at": token.expires_at}

    return provide
