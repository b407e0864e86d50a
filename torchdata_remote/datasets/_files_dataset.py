"""Base class of :class:`RemoteFiles` and :class:`RemoteImageFolder`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from typing import Any

from ..core.arguments import check
from ..core.arguments.amounts import whole_or_none
from ..core.options import Backend, FetchOptions, RetryPolicy, StorageOptions, policy_of
from ..core.urls import RemoteUrl
from ..errors import RemoteDataError
from ..fetch.listing.index_file import Index, read_index
from ..fetch.listing.source_argument import url_of
from ..fetch.session import FetchSession
from ..formats.error_policy import Skipped, raise_error
from ._file_list import list_files
from ._map_style import MapStyle
from ._parallel_fetch import Fetched, fetch_objects

OnError = Callable[[RemoteDataError], Any]


def limit_of(limit: object) -> int | None:
    """Return the ``limit`` of a dataset as an int. Called before its files are listed.

    Raises:
        ValueError: if it is neither ``None`` nor an int of at least 1.
    """
    return whole_or_none("limit", limit)


def index_of(index: Any) -> str | os.PathLike[str] | list[Any] | None:
    """Return the ``index`` of a dataset: where it is, or the list of its paths as ``str``.

    Raises:
        TypeError: if it is neither a URL, nor a list of paths, nor ``None``.
    """
    if index is None or isinstance(index, str | os.PathLike):
        return index
    # An array, or a column of a table, is no Sequence
    is_list = hasattr(index, "__len__") and hasattr(index, "__getitem__") and not isinstance(index, bytes | Mapping)
    if not is_list:
        advice = ""
        if isinstance(index, Iterable) and not isinstance(index, bytes | Mapping):
            advice = f" Write {'sorted' if isinstance(index, Set) else 'list'}(index)."
        raise check.marked(
            TypeError(f"index must be a URL, a path, a list of paths, or None, got {check.shown(index)}.{advice}")
        )
    return [os.fspath(entry) if isinstance(entry, os.PathLike) else entry for entry in index]


class FilesDataset(MapStyle[Any]):
    """Files of a folder. A subclass defines how their bytes become items.

    Args: as :class:`RemoteFiles`.
    """

    _suffixes: tuple[str, ...] | None = None  # of the files to take, in lower case with the dot; None takes all

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        index: Index | None = None,
        limit: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        max_in_flight: int = 64,
        on_error: OnError = raise_error,
        cache_dir: str | None = None,
        cache_bytes: int | None = None,
        retry: RetryPolicy | None = None,
        backend: Backend = Backend.AUTOMATIC,
    ) -> None:
        limit = limit_of(limit)
        options = FetchOptions(
            max_in_flight=max_in_flight,
            retry=policy_of(retry),
            backend=backend,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        self._session = FetchSession(options, StorageOptions(storage_options))
        self._on_error = check.function("on_error", on_error, example="lambda error: None")
        source, store_options = url_of(url, of=type(self).__name__), self._session.storage_options
        found = index_of(index)
        listed = None if found is None else read_index(found, source, options=store_options, retry=options.retry)
        self.skipped = Skipped()
        found_files = list_files(
            source, listed, self._suffixes, store_options, options.retry, self.skipped.count_member
        )
        self._files = found_files.first(limit)

    def __len__(self) -> int:
        return len(self._files)

    def names_digest(self) -> str:
        """Digest of the paths below the folder, in the order of the items."""
        return self._files.paths.digest()

    def _decoder(self) -> Callable[[bytes], Any] | None:
        """Return the decoder, which is called in threads; ``None`` for bytes."""
        raise NotImplementedError

    def _item(self, number: int, value: Any) -> Any:
        """Make an item in the caller's thread, in the batch's order, so that random transforms are reproducible."""
        raise NotImplementedError

    def _items(self, batches: Iterable[Sequence[int]]) -> Generator[list[Any], None, None]:
        self._session.keep()
        files = self._files.urls
        requested: deque[Sequence[int]] = deque()  # batches that are fetched ahead

        def urls() -> Iterator[RemoteUrl]:
            for batch in batches:
                requested.append(batch)
                for number in batch:
                    yield files[number]

        items: list[Any] = []
        with closing(fetch_objects(urls(), self._session, self._decoder())) as results:
            for fetched in results:
                while not requested[0]:
                    yield list(requested.popleft())
                items.append(self._item_or_substitute(requested[0][len(items)], fetched))
                if len(items) == len(requested[0]):
                    requested.popleft()
                    yield items
                    items = []
        yield from map(list, requested)  # empty batches at the end

    def _item_or_substitute(self, number: int, fetched: Fetched[Any]) -> Any:
        if fetched.error is None:
            return self._item(number, fetched.value)
        substitute = self._on_error(fetched.error)
        if substitute is None:
            raise fetched.error  # otherwise the batch would be shorter
        return substitute
