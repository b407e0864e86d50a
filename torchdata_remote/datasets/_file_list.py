"""Which files a dataset has, in which order."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import EmptyListingError
from ..fetch.listing.patterns import path_below
from ..fetch.listing.sources import list_source
from ..fetch.listing.url_table import StringColumn, UrlTable


def list_files(
    url: str,
    found: Iterable[tuple[str, str]] | None,
    extensions: tuple[str, ...] | None,
    options: StorageOptions,
    retry: RetryPolicy,
) -> tuple[UrlTable, StringColumn]:
    """The files of a folder, in the order of torchvision's ``ImageFolder``: by first folder, by folder, by name.

    Args:
        url: of the folder.
        found: URL and path below the folder of each, where these are known; ``None`` lists them.
        extensions: those to take; ``None`` takes all.
        options: for the store.
        retry: applied to each page of the listing.

    Returns:
        The URLs, and their paths below the folder.

    Raises:
        EmptyListingError: if there is none.
    """
    if found is None:
        below = path_below(url)
        listed = list_source(url, pattern=None, recursive=True, options=options, retry=retry)
        found = ((one, below(one)) for one in listed)
    urls, paths = UrlTable(), StringColumn()
    is_sorted, before = True, ("", "", "")
    for one, path in found:
        if extensions is None or path.lower().endswith(extensions):
            urls.append(one)
            paths.append(path)
            place = _place(path)
            is_sorted, before = is_sorted and before <= place, place
    if not urls:
        shown = redact(url)
        kinds = "" if extensions is None else f" whose name ends in one of {', '.join(extensions)}"
        raise EmptyListingError(f"{shown}: there is no file{kinds}.", url=shown)
    if is_sorted:
        return urls, paths
    order = sorted(range(len(urls)), key=lambda number: _place(paths[number]))
    return UrlTable(urls[number] for number in order), StringColumn(paths[number] for number in order)


def _place(path: str) -> tuple[str, str, str]:
    folder, _, name = path.rpartition("/")
    return folder.partition("/")[0], folder, name
