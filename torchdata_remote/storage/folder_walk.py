"""Listings that begin anywhere, of stores whose own begin at the first name, or are not sorted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from ..errors import ObjectNotFoundError
from .protocol import Entry, Page

Names = Callable[[str], Sequence[str]]


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
        page = None
        while page is None or page.next_token is not None:
            page = self.list_page(folder, recursive=False, token=page and page.next_token)
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
    found: dict[str, Entry] = {}

    def names_of(prefix: str) -> list[str]:
        paths = set[str]()
        for page in pages_of(prefix):
            found.update((entry.path, entry) for entry in page.entries)
            paths.update(page.folders, (entry.path for entry in page.entries))
        skip = prefix.rfind("/") + 1
        return sorted(path[skip:] for path in paths if path.startswith(prefix))

    return page_of_names(names_of, found.get, prefix, after, recursive=recursive, limit=limit)


def page_of_names(
    names_of: Names, find: Callable[[str], Entry | None], prefix: str, after: str, *, recursive: bool, limit: int
) -> Page:
    """Return a page as :func:`page_after`.

    Args:
        names_of: returns the names in the folder of a prefix, sorted; those of folders end with a slash.
        find: returns an object; ``None`` if it was removed since.
        prefix: of the paths.
        after: a path.
        recursive: whether folders are entered.
        limit: number of objects and folders.
    """
    found = list(islice(_walk(names_of, prefix, after, recursive), limit + 1))
    entries = [entry for path in found[:limit] if path[-1] != "/" and (entry := find(path)) is not None]
    token = found[limit - 1] if len(found) > limit else None
    return Page(entries, token, [path for path in found[:limit] if path[-1] == "/"])


def _walk(names_of: Names, prefix: str, after: str, recursive: bool) -> Iterator[str]:
    """Yield the paths of objects, or of folders too, that begin with a prefix and come after a path."""
    folder = prefix[: prefix.rfind("/") + 1]
    # The folder that the path is in sorts before it
    begin = (recursive and after[: after.find("/", len(folder)) + 1]) or after
    names = names_of(prefix)
    for index in range(bisect_left(names, max(prefix, begin), key=folder.__add__), len(names)):
        path = folder + names[index]
        if not path.startswith(prefix):
            return
        if recursive and path[-1] == "/":
            if path > after or after.startswith(path):
                yield from _walk(names_of, path, after, True)
        elif path > after:
            yield path
