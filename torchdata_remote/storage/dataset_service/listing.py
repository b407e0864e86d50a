"""List the datasets of a host, and the files of each, page by page."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from ...errors import ObjectNotFoundError, UrlError
from ..entry_table import EntryTable
from ..protocol import Page
from .client import ServiceRequests

MAX_PAGE = 10_000  # entries, the service's limit


class DatasetFile(NamedTuple):
    """A file of a dataset: ``NAME/PATH``, size in bytes, etag with quotes, SHA-256 in hex."""

    path: str
    size: int
    etag: str
    sha256: str


def _seconds(modified: str | None) -> float | None:
    """Convert a time of RFC 3339 to seconds since 1970."""
    return None if modified is None else dt.datetime.fromisoformat(modified.replace("Z", "+00:00")).timestamp()


class ListRequests(ServiceRequests):
    """The requests that list the datasets and files of one host."""

    def names(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        response = self._client.request_json("GET", self._client.target(), "")
        with self._client.expecting("datasets", ""):
            return sorted(str(one["name"]) for one in response["datasets"])

    def has_dataset(self, name: str) -> bool:
        """Whether a dataset exists."""
        try:
            self._files(name, name, limit=1)
        except ObjectNotFoundError:
            return False
        return True

    def _files(self, name: str, path: str, **query: str | int | None) -> Any:
        if name in (".", ".."):
            raise UrlError(f"{self._client.url(path)}: {name!r} is no dataset's name.", url=self._client.url(path))
        return self._client.request_json("GET", self._client.target(name, "files", **query), path)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Return a page of a dataset, or, if the prefix names none, of all datasets one after the other."""
        name, slash, below = prefix.partition("/")
        if slash:
            return self._page(name, below, recursive, after, limit)
        folders = sorted(f"{name}/" for name in self.names() if name.startswith(prefix))  # "a-b/" sorts before "a/"
        remaining = [folder for folder in folders if folder > after or (recursive and after.startswith(folder))]
        if not recursive:
            return Page([], remaining[limit - 1] if len(remaining) > limit else None, remaining[:limit])
        if not remaining:
            return Page([], None)
        page = self._page(remaining[0][:-1], "", recursive, after, limit)
        return page._replace(next_token=remaining[1]) if page.next_token is None and len(remaining) > 1 else page

    def _page(self, name: str, below: str, recursive: bool, after: str, limit: int) -> Page:
        root = f"{name}/"
        if after > root and not after.startswith(root):
            return Page([], None)
        if any(segment in ("", ".", "..") for segment in below.split("/")[:-1]):
            return Page([], None)  # no file has such a path, and the service refuses it
        try:
            response = self._files(
                name,
                root + below,
                prefix=below or None,
                after=after[len(root) :] or None,
                limit=min(limit, MAX_PAGE),
                recursive=int(recursive),
            )
        except ObjectNotFoundError:
            return Page([], None)
        with self._client.expecting("files", root + below):
            files = response["files"]
            entries = EntryTable(
                [root + one["path"] for one in files],
                [int(one["size"]) for one in files],
                [str(one["etag"]) for one in files],
                [one.get("modified") for one in files],
                _seconds,
            )
            folders = [root + folder for folder in response["folders"]] if not recursive else []
            next_path = response["next"]
        return Page(entries, None if next_path is None else f"{root}{next_path}", folders)

    def digests(self, prefix: str, token: str | None) -> tuple[list[DatasetFile], str | None]:
        """List one page of the files whose path begins with ``NAME/`` or ``NAME/...``, with SHA-256.

        Args:
            prefix: of the paths.
            token: ``None``, or the token that was returned with the page before.

        Returns:
            The files, and the token of the next page (``None`` after the last page).

        Raises:
            ObjectNotFoundError: if there is no such dataset.
        """
        name, _, below = prefix.partition("/")
        path = f"{name}/{below}"
        response = self._files(name, path, prefix=below or None, after=token, limit=MAX_PAGE, recursive=1, digests=1)
        with self._client.expecting("digests", path):
            return [
                DatasetFile(f"{name}/{one['path']}", int(one["size"]), str(one["etag"]), str(one["sha256"]))
                for one in response["files"]
            ], response["next"]
