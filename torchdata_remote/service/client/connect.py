"""Open a dataset service with the methods that it has beyond other stores."""

from __future__ import annotations

from ...core.options import StorageOptions
from ...core.urls import redact, split_url
from ...errors import UrlError
from ...storage import Connection, open_store
from ...storage.dataset_service.store import DATASETS, DatasetFile, DatasetsStore

__all__ = ["DatasetFile", "DatasetsStore", "open_service"]

_DEFAULT = Connection()


def open_service(url: str, options: StorageOptions, connection: Connection = _DEFAULT) -> tuple[DatasetsStore, str]:
    """Return the store and path of a ``datasets://host:port/NAME/PATH`` URL. One store per host, options and process.

    Args:
        url: of a dataset, or of a folder or file in it.
        options: ``token`` and ``secure``.
        connection: backend and timeouts.

    Raises:
        UrlError: for another scheme, or options of another store.

    Example:
        >>> open_service("datasets://127.0.0.1:8080/photos/cat/1.jpg", StorageOptions())[1]
        'photos/cat/1.jpg'
    """
    if split_url(url)[0] != DATASETS:
        raise UrlError(f"{redact(url)}: expected datasets://host:port/NAME, a dataset of a service.", url=redact(url))
    store, path = open_store(url, options, connection)
    if not isinstance(store, DatasetsStore):
        raise UrlError(
            f"{redact(url)}: backend={connection.backend.value!r} cannot write. Use backend='automatic'.",
            url=redact(url),
        )
    return store, path
