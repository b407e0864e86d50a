"""List the datasets of a host, and the files of each, page by page."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ...errors import ObjectNotFoundError, UrlError
from ..protocol import EntryTable, Page
from .client import ServiceRequests
from .fields import byte_count, date_in_json, file_path, folder_path, next_path, text
from .json_body import DATASETS, page_limits
from .protocol import DATASET_NAME

MAX_PAGE = 10_000  # entries, the service's limit
_NAME = re.compile(DATASET_NAME)


class DatasetFile(NamedTuple):
    """A file of a dataset: ``NAME/PATH``, size in bytes, etag with quotes, SHA-256 in hex."""

    path: str
    size: int
    etag: str
    sha256: str


def _dataset_name(value: object) -> str:
    name = text(value)
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r:.80} is no dataset's name")
    return name


class ListRequests(ServiceRequests):
    """The requests that list the datasets and files of one host."""

    def names(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        response = self._client.request_json("GET", self._client.target(), "", limits=DATASETS)
        with self._client.expecting("datasets", ""):
            return sorted(_dataset_name(one["name"]) for one in response["datasets"])

    def has_dataset(self, name: str) -> bool:
        """Whether a dataset exists."""
        try:
            self._files(name, name, 1)
        except ObjectNotFoundError:
            return False
        return True

    def _files(self, name: str, path: str, limit: int, **query: str | int | None) -> Any:
        if name in (".", ".."):
            raise UrlError(f"{self._client.url(path)}: {name!r} is no dataset's name.", url=self._client.url(path))
        target = self._client.target(name, "files", limit=limit, **query)
        return self._client.request_json("GET", target, path, limits=page_limits(limit))

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
                min(limit, MAX_PAGE),
                prefix=below or None,
                after=after[len(root) :] or None,
                recursive=int(recursive),
            )
        except ObjectNotFoundError:
            return Page([], None)
        with self._client.expecting("files", root + below):
            files = response["files"]
            entries = EntryTable(
                [root + file_path(one["path"]) for one in files],
                [byte_count(one["size"]) for one in files],
                [text(one["etag"]) for one in files],
                [date_in_json(one.get("modified")) for one in files],
            )
            folders = [root + folder_path(folder) for folder in response["folders"]] if not recursive else []
            following = next_path(response["next"], after[len(root) :])
        return Page(entries, None if following is None else root + following, folders)

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
        response = self._files(name, path, MAX_PAGE, prefix=below or None, after=token, recursive=1, digests=1)
        with self._client.expecting("digests", path):
            return [
                DatasetFile(
                    f"{name}/{text(one['path'])}", byte_count(one["size"]), text(one["etag"]), text(one["sha256"])
                )
                for one in response["files"]
            ], next_path(response["next"], token or "")
