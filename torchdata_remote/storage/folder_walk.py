"""Listings that begin anywhere, of stores whose own begin at the first name, or are not sorted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from ..errors import ObjectNotFoundError
from .protocol import Entry, Page


class ByFolders(ABC):
    """A store that lists whole folders only."""

    may_ignore_ranges = False
    maps_files = False

    @abstractmethod
    def stat(self, path: str) -> Entry:
        """Return the object at exactly this path."""

    def find(self, path: str) -> Entry | None:
        """Return the object at exactly this path, or ``None``."""
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    @abstractmethod
    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        """Return a page of a listing."""

    def pages_of(self, folder: str) -> Iterator[Page]:
        """Yield the pages of a folder, without what is in its folders."""
        page = self.list_page(folder, recursive=False, token=None)
        yield page
        while page.next_token is not None:
            page = self.list_page(folder, recursive=False, token=page.next_token)
            yield page

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Return a page like ``FolderStore.list_after``, from listings of whole folders."""
        return page_after(self.pages_of, prefix, after, recursive=recursive, limit=limit)


def page_after(
    pages_of: Callable[[str], Iterable[Page]], prefix: str, after: str, *, recursive: bool, limit: int
) -> Page:
    """Return a page, like ``Store.list_after``, whose token is the path to go on after.

    Args:
        pages_of: returns the pages of a folder, without the folders in it.
        prefix: of the paths.
        after: a path.
        recursive: whether folders are entered.
        limit: number of objects and folders.
    """
    found = list(islice(walk(pages_of, prefix, after, recursive=recursive), limit + 1))
    entries = [entry for _, entry in found[:limit] if entry is not None]
    folders = [path for path, entry in found[:limit] if entry is None]
    return Page(entries, found[limit - 1][0] if len(found) > limit else None, folders)


def walk(
    pages_of: Callable[[str], Iterable[Page]], prefix: str, after: str, *, recursive: bool
) -> Iterator[tuple[str, Entry | None]]:
    """Yield the objects and folders that begin with a prefix and come after a path, sorted, folder by folder.

    Args:
        pages_of: returns the pages of a folder, without the folders in it.
        prefix: of the paths.
        after: a path.
        recursive: whether folders are entered; they are yielded otherwise, with ``None`` for the entry.
    """
    found: dict[str, Entry | None] = {}
    for page in pages_of(prefix):
        found.update({entry.path: entry for entry in page.entries})
        found.update(dict.fromkeys(page.folders))
    for path in sorted(path for path in found if path.startswith(prefix)):
        entry = found[path]
        if entry is None and recursive:
            if path > after or after.startswith(path):
                yield from walk(pages_of, path, after, recursive=True)
        elif path > after:
            yield path, entry
