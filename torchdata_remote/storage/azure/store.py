"""Azure Blob Storage: read by obstore, or by urllib3 what obstore cannot read; all other requests by urllib3."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ...errors import ObjectNotFoundError
from ..entry_table import EntryTable
from ..errors import from_status
from ..folder_walk import page_after
from ..http import parse_content_length
from ..obstore_reader import ObstoreReader, can_express
from ..paging import every_page, first_page
from ..preferred_reader import PreferredReader
from ..protocol import Answer, Entry, Page, normalized_etag
from .client import AzureClient
from .credentials import AzureCredentials
from .errors import MissingContainerError
from .obstore import azure_reader
from .pages import parse_page, seconds
from .settings import AzureSettings
from .upload import AzureWriter

_MAX_NAMES = 5000  # Azure's limit for a page


def _can_express(path: str) -> bool:
    return can_express(path) and "\\" not in path  # Azure makes slashes of them, so the client refuses them


class AzureStore:
    """One container.

    Args:
        root: URL of the container, with a slash at its end.
        container: its name.
        settings: endpoint and credentials.
        read_by_obstore: whether to read by obstore what it can.
    """

    may_ignore_ranges = False
    maps_files = False
    lists_in_order = False  # with a hierarchical namespace, folders are listed as a tree

    def __init__(self, root: str, container: str, settings: AzureSettings, *, read_by_obstore: bool) -> None:
        self._root, self._container, self._settings = root, container, settings
        self._credentials = AzureCredentials(container, settings, root)
        self._client = AzureClient(container, settings, self._credentials)
        self._lock = threading.RLock()
        self._obstore: tuple[int, ObstoreReader] | None = None  # it keeps a token until it expires
        self._read = PreferredReader(
            root.rstrip("/"),
            self._read_by_obstore,
            self.read_without_obstore,
            _can_express if read_by_obstore else None,
        )

    def url(self, path: str) -> str:
        """URL of an object, for errors."""
        return self._root + path

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | bytearray | None = None,
    ) -> tuple[Mapping[str, str], bytes]:
        """Send one request, and return headers and body of the response."""
        return self._client.call(method, path, self.url(path), query=query, headers=headers, body=body)

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        return self._page(prefix, recursive=recursive, token=token)

    def _page(self, prefix: str, *, recursive: bool, token: str | None, limit: int = _MAX_NAMES) -> Page:
        query = {"restype": "container", "comp": "list", "maxresults": str(limit), "prefix": prefix}
        if not recursive:
            query["delimiter"] = "/"
        if token is not None:
            query["marker"] = token
        shown = self.url(prefix)
        _, body = self._client.call("GET", "", shown, query=query)
        return parse_page(body, shown)

    def _pages(self, prefix: str, *, recursive: bool, limit: int = _MAX_NAMES) -> Iterator[Page]:
        return every_page(
            lambda token: self._page(prefix, recursive=recursive, token=token, limit=limit), self.url(prefix)
        )

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Return a page of the folders' complete listings: Azure's begin at the first name only."""
        return page_after(partial(self._pages, recursive=False), prefix, after, recursive=recursive, limit=limit)

    def find(self, path: str) -> Entry | None:
        return self.find_first(path, 1)[0]

    def find_first(self, path: str, limit: int) -> tuple[Entry | None, Page]:
        page = first_page(self._pages(path, recursive=True, limit=limit))
        entry = next((one for one in page.entries if one.path == path), None)
        if entry is None and page.next_token is not None and path and not path.endswith("/"):
            with contextlib.suppress(ObjectNotFoundError):  # a tree is listed in another order
                entry = self.stat(path)
        return entry, page

    # Objects

    def stat(self, path: str) -> Entry:
        headers, _ = self.request("HEAD", path)
        if headers.get("x-ms-meta-hdi_isfolder") == "true" or headers.get("x-ms-resource-type") == "directory":
            raise ObjectNotFoundError(f"{self.url(path)} is a folder, not an object.", url=self.url(path))
        size, etag = parse_content_length(headers.get("Content-Length")), normalized_etag(headers.get("ETag"))
        return Entry(path, size, etag, seconds(headers.get("Last-Modified")))

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._read(path, start, end, etag)

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by urllib3."""
        return self._client.read(path, start, end, etag, self.url(path))

    def _read_by_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        # It asks for credentials first, where their errors are not obstore's
        return self._client.with_renewal(self.url(path), lambda: self._reader().read(path, start, end, etag))

    def _reader(self) -> ObstoreReader:
        """Made by the first read, since a parent that only lists can be forked; again when a token was refused."""
        with self._lock:
            renewals = self._credentials.renewals
            if self._obstore is None or self._obstore[0] != renewals:
                reader = azure_reader(self._container, self._settings, self._credentials, self._root)
                self._obstore = renewals, reader
            return self._obstore[1]

    def create(self, path: str, *, overwrite: bool) -> AzureWriter:
        return AzureWriter(self, path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        try:
            self.request("DELETE", path)
        except MissingContainerError:
            raise
        except ObjectNotFoundError:
            pass

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        """Do nothing: Azure deletes blocks that are not committed after a week, and nobody else can."""

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        """Do nothing, as above."""

    # Folders

    def has_folder(self, path: str) -> bool:
        return bool(EntryTable.of(first_page(self._pages(path, recursive=True, limit=1)).entries).keys)

    def make_folder(self, path: str) -> None:
        """Create an empty object whose name ends with a slash. Listings omit it."""
        if self.has_folder(path):
            raise from_status(412, "", self.url(path), writing=True)
        self.create(path, overwrite=False).commit()

    def remove_folder(self, path: str) -> None:
        pages = self._pages(path, recursive=True)
        keys = {key for page in pages for key in EntryTable.of(page.entries).keys}
        for key in sorted(keys - {path}, reverse=True):  # directories behind what is in them
            self.delete(key)
        self.delete(path)  # the marker is last: until then the folder exists
