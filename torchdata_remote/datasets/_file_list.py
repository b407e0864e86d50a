"""List the files of a dataset in the order of torchvision's ``ImageFolder``."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import EmptyListingError
from ..fetch.listing.patterns import path_below
from ..fetch.listing.sources import list_source
from ..fetch.listing.whereabouts import about_missing
from ..formats.sample import is_of_macos
from ..storage import open_store
from ._file_table import FileTable


def _forks_workers() -> bool:
    """Whether torch's loaders fork this process by default: then obstore is left to the workers."""
    default = multiprocessing.get_all_start_methods()[0]
    return (multiprocessing.get_start_method(allow_none=True) or default) == "fork"


def list_files(
    url: str,
    listed: Iterable[tuple[str, str]] | None,
    extensions: tuple[str, ...] | None,
    options: StorageOptions,
    retry: RetryPolicy,
    on_skip: Callable[[str], object],
) -> FileTable:
    """List the files of a folder, sorted as by torchvision's ``ImageFolder``: by first folder, by folder, by name.

    Args:
        url: of the folder.
        listed: URL and path below the folder of each file, if known; ``None`` lists the folder.
        extensions: of the files to select; ``None`` selects all.
        options: for the store.
        retry: applied to each page of the listing.
        on_skip: called with ``"macos"`` for each file that macOS added, which is left out.

    Returns:
        FileTable: URLs, and paths below the folder.

    Raises:
        EmptyListingError: if there are no such files.
    """

    def is_selected(path: str) -> bool:
        return extensions is None or path.lower().endswith(extensions)

    if listed is None:
        below = path_below(url)
        found = list_source(
            url,
            pattern=None,
            recursive=True,
            options=options,
            retry=retry,
            on_skip=on_skip,
            by_obstore=not _forks_workers(),
        )
        listed = ((file_url, below(file_url)) for file_url in found)
    else:
        listed = (file for file in listed if not is_of_macos(file[1]) or on_skip("macos"))
    is_sorted, previous = True, ("", "", "")

    def selected() -> Iterator[tuple[str, str]]:
        nonlocal is_sorted, previous
        for file_url, path in listed:
            if is_selected(path):
                key = _sort_key(path)
                is_sorted, previous = is_sorted and previous <= key, key
                yield file_url, path

    files = FileTable(selected())
    if not len(files):
        shown = redact(url)
        kinds = "" if extensions is None else f" whose name ends in one of {', '.join(extensions)}"
        raise EmptyListingError(
            f"{shown}: there is no file{kinds}.{about_missing(open_store(url, options)[0], url)}", url=shown
        )
    if is_sorted:
        return files
    return files.chosen(sorted(range(len(files)), key=lambda number: _sort_key(files.paths[number])))


def _sort_key(path: str) -> tuple[str, str, str]:
    folder, _, name = path.rpartition("/")
    return folder.partition("/")[0], folder, name
