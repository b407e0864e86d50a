"""Listings that begin anywhere, of stores whose own begin at the first name, or are not sorted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from ..errors import ObjectNotFoundError
from .protocol import Entry, Page

Names = Callable[[str], Sequence[str]]


class ByFolders(ABC):
    """A store that finds an object by asking for it."""

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


def page_after(
    page_of: Callable[[str, str | None], Page], prefix: str, after: str, *, recursive: bool, limit: int
) -> Page:
    """Return a page, like ``Store.list_after``, whose token is the path to go on after.

    Args:
        page_of: returns the page of a token of a folder, without what is in its folders.
        prefix: of the paths.
        after: a path.
        recursive: whether folders are entered.
        limit: number of objects and folders.
    """
    found: dict[str, Entry] = {}

    def names_of(prefix: str) -> list[str]:
        paths, page, skip = set[str](), None, prefix.rfind("/") + 1
        while page is None or page.next_token is not None:
            page = page_of(prefix, page and page.next_token)
            found.update((entry.path, entry) for entry in page.entries)
            paths.update(page.folders, (entry.path for entry in page.entries))
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
