"""A container of Azure Blob Storage for obstore, with the credentials that this package finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import AccessDeniedError, ExpiredCredentialsError, StorageError, UrlError
from ..errors import with_source
from ..network import obstore_client_options
from ..obstore_reader import NO_RETRIES, ODD_KEY
from ..obstore_writer import HiddenWriter
from ..protocol import ObjectWriter
from .credentials import AzureCredentials
from .errors import from_reader
from .settings import AzureSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from ..obstore_store import ObstoreStore

_CHANGED = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|\\")


class AzureBucket:
    """One container.

    Args:
        root: URL of the container, with a slash at its end.
        container: its name.
        settings: endpoint and credentials.
    """

    odd = odd_key = re.compile(rf"{ODD_KEY.pattern}|\\")
    lists_in_order = False  # with a hierarchical namespace, folders are listed as a tree
    hides_uploads = True
    lists_by_fsspec = False

    def __init__(self, root: str, container: str, settings: AzureSettings) -> None:
        self.root, self._container, self._settings = root, container, settings
        self._credentials = AzureCredentials(container, settings, root)
        self.provider_fault: Exception | None = None

    def connect(self, *, reading: bool, retry: bool = False) -> ObjectStore:
        from obstore.store import AzureStore

        settings = self._settings
        config: dict[str, Any] = {"endpoint": settings.endpoint, "account_name": settings.account_name}
        if self._credentials.are_anonymous:
            config["skip_signature"] = True
        else:
            found = [self._provide()]  # raises here what would be wrong at each request
            config["credential_provider"] = lambda: found.pop() if found else self._provide()
        if not retry:
            config["retry_config"] = NO_RETRIES
        options: Any = obstore_client_options(settings.endpoint, settings.read_timeout_s)
        return AzureStore(self._container, client_options=options, **config)

    def _provide(self) -> dict[str, Any]:
        try:
            found = self._credentials.for_obstore()
            self.provider_fault = None
        except Exception as error:
            self.provider_fault = error
            raise
        return found

    def table(self, error: Exception, url: str, *, writing: bool = False) -> Exception:
        return from_reader(error, url, writing=writing, anonymous=self._credentials.are_anonymous)

    def renew(self, error: StorageError) -> bool:
        credentials = self._credentials
        return isinstance(error, ExpiredCredentialsError) and credentials.renew(credentials.current())

    def explain(self, error: StorageError) -> StorageError:
        if isinstance(error, AccessDeniedError):
            where, source, ended = error.url or self.root, self._credentials.source, self._credentials.ended()
            if ended is not None:
                message = f"{where}: the SAS has expired at {ended}. Make a new one. {source}"
                return ExpiredCredentialsError(message, url=where)
            error.args = (with_source(error, source),)
        return error

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        if _CHANGED.search(path):
            raise UrlError(
                f"{self.root}{path}: a name with '.' or '..' between slashes, or with a backslash, is another one on "
                "its way to Azure.",
                url=self.root + path,
            )
        return path, None

    def paths(self, keys: list[str]) -> list[str]:
        return keys

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        return HiddenWriter(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Do nothing: Azure deletes blocks that are not committed after a week, and nobody else can."""
