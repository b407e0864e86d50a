"""``RemoteFiles``: the files of a folder as a map-style dataset."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice, pairwise, tee
from typing import Any

from torch.utils.data import get_worker_info

from ..core import arguments as check
from ..core.arguments import explained, whole_or_none
from ..core.options import Backend, RetryPolicy
from ..core.processes import forks_by_default, num_processors
from ..core.shared_memory import Column, SharedColumns
from ..core.stats import DECODE, FETCH, timed
from ..core.threads import ordered_map
from ..core.urls import redact
from ..errors import DecodeError, EmptyListingError, RemoteDataError
from ..fetch.listing.index_file import Index, read_index
from ..fetch.listing.patterns import path_below
from ..fetch.listing.source_argument import url_of
from ..fetch.listing.sources import list_source
from ..fetch.listing.url_table import StringColumn, UrlTable
from ..fetch.listing.whereabouts import about_missing
from ..fetch.object_stream import ObjectStream
from ..fetch.session import FetchSession
from ..fetch.streams import stream_objects
from ..formats.error_policy import raise_error
from ..formats.sample import is_of_macos
from ..storage import open_store
from .map_style import MapStyle

OnError = Callable[[RemoteDataError], Any]


class FileTable:
    """URLs and labels of files, of which a host has one copy.

    Args:
        columns: those of a :class:`UrlTable`, and ``"labels"`` if there are labels.
    """

    def __init__(self, columns: SharedColumns) -> None:
        self.shared = columns
        self.urls = UrlTable.view(columns.columns)
        self.labels: Any = columns.columns.get("labels")

    def __reduce__(self) -> Any:
        return FileTable, (self.shared,)


@explained
class RemoteFiles(MapStyle):
    """The files below a folder, for example a prefix of a bucket, as a map-style dataset: ``[i] -> (url, bytes)``.

    torch's ``DataLoader`` requests complete batches, whose files are fetched concurrently. Files are sorted by first
    folder, by folder and by name.

    Args:
        url: of the folder; a glob or a brace range selects some of its files. ``escape_url(name)`` escapes one.
        index: a list of the files, used instead of listing the folder: URL or path of a JSON array of paths, as written
            by ``torchdata-remote index``, or the list itself. Entries without a scheme are keys in the bucket of the
            URL, or paths below a local folder.
        limit: number of files to use, from the first one; ``None`` uses all.
        storage_options: for the store, in fsspec's vocabulary.
        max_in_flight: maximum number of concurrent requests per worker.
        on_error: called with the error of a file that cannot be read; returns the item to use instead. If it returns
            ``None``, the error is raised, as by ``raise_error``: a batch is never shorter.
        cache_dir: local folder in which complete files are cached for later epochs; requires ``cache_bytes``.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        retry: policy for transient errors.
        backend: library that transfers the bytes.

    Raises:
        EmptyListingError: if there are no files.
        StorageError: for a file that cannot be read, with its URL.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/notes/a/2.txt": b"two", "/notes/a/1.txt": b"one"})
        >>> RemoteFiles("memory://notes/")[0]
        ('memory://notes/a/1.txt', b'one')
    """

    _suffixes: tuple[str, ...] | None = None  # of the files to take, in lower case with the dot; None takes all
    _decode: Callable[[bytes], Any] | None = None  # called in threads

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
        limit = whole_or_none("limit", limit)
        super().__init__(storage_options, max_in_flight, cache_dir, cache_bytes, retry, backend)
        self._on_error = check.function("on_error", on_error, example="lambda error: None")
        urls, paths = self._sorted(url_of(url, of=type(self).__name__), index)
        more = self._label(paths)  # of all files, also behind the limit
        if limit is not None:
            urls, paths = UrlTable(islice(urls, limit)), StringColumn(islice(paths, limit))
        self.names_digest = paths.digest()
        self._files = FileTable(SharedColumns({**urls.columns(), **{name: more[name][:limit] for name in more}}))

    def _sorted(self, url: str, index: Any) -> tuple[UrlTable, StringColumn]:
        """List the files as torchvision's ``ImageFolder`` sorts them; returns URLs, and paths below the folder."""
        urls, paths = UrlTable(), StringColumn()
        for file_url, path in self._listed(url, index):
            if self._suffixes is None or path.lower().endswith(self._suffixes):
                urls.append(file_url)
                paths.append(path)
        if not paths:
            shown, store = redact(url), open_store(url, self._session.storage_options)[0]
            kinds = "" if self._suffixes is None else f" whose name ends in one of {', '.join(self._suffixes)}"
            raise EmptyListingError(f"{shown}: there is no file{kinds}.{about_missing(store, url)}", url=shown)
        if any(later < earlier for earlier, later in pairwise(map(_sort_key, paths))):
            order = sorted(range(len(paths)), key=lambda number: _sort_key(paths[number]))
            urls, paths = UrlTable(map(urls.__getitem__, order)), StringColumn(map(paths.__getitem__, order))
        return urls, paths

    def _listed(self, url: str, index: Any) -> Iterator[tuple[str, str]]:
        """Yield URL and path of each file of the folder or of the index, but for those of macOS."""
        options, retry, skip = self._session.storage_options, self._session.options.retry, self.skipped.count_member
        if index is None:
            below = path_below(url)
            for found in list_source(
                url,
                pattern=None,
                recursive=True,
                options=options,
                retry=retry,
                on_skip=skip,
                by_obstore=not forks_by_default(),  # torch's loaders would fork this process: it is left to the workers
            ):
                yield found, below(found)
            return
        if not isinstance(index, str | os.PathLike):
            if not isinstance(index, Iterable) or isinstance(index, bytes):
                raise check.marked(
                    TypeError(f"index must be a URL, a path, a list of paths, or None, got {check.shown(index)}.")
                )
            index = [os.fspath(entry) if isinstance(entry, os.PathLike) else entry for entry in index]
        for file_url, path in read_index(index, url, options=options, retry=retry):
            if not is_of_macos(path) or skip("macos"):
                yield file_url, path

    def _label(self, paths: Sequence[str]) -> Mapping[str, Column]:
        """Return further columns of the table."""
        return {}

    def __len__(self) -> int:
        return len(self._files.urls)

    def _item(self, number: int, value: Any) -> Any:
        """Make an item in the caller's thread, in the batch's order, so that random transforms are reproducible."""
        return redact(self._files.urls[number]), value

    def _items(self, batches: Iterator[Sequence[int]]) -> Generator[list[Any], None, None]:
        self._session.keep()
        own, ahead = tee(batches)
        urls = (self._files.urls[number] for batch in ahead for number in batch)
        with closing(_fetched(urls, self._session, self._decode)) as results:
            for batch in own:
                yield [self._item_or_substitute(number, next(results)) for number in batch]

    def _item_or_substitute(self, number: int, found: Any) -> Any:
        if not isinstance(found, RemoteDataError):
            return self._item(number, found)
        substitute = self._on_error(found)
        if substitute is None:
            raise found  # otherwise the batch would be shorter
        return substitute


def _sort_key(path: str) -> tuple[str, str, str]:
    folder, _, name = path.rpartition("/")
    return folder.partition("/")[0], folder, name


def _fetched(
    urls: Iterable[str], session: FetchSession, decode: Callable[[bytes], Any] | None
) -> Generator[Any, None, None]:
    """Yield what each object is decoded to, in order, or its error; objects are fetched and decoded ahead.

    Args:
        urls: read ahead, in the thread that iterates.
        session: for the requests.
        decode: called in threads; may raise anything. ``None`` yields the bytes.
    """
    with closing(stream_objects(urls, session)) as streams:
        found = ((url, _whole(stream)) for url, stream in streams)
        if decode is None:
            yield from (data for _, data in found)
            return
        worker = get_worker_info()
        num_threads = max(1, num_processors() // (1 if worker is None else worker.num_workers))
        tasks = (partial(_decoded, url, data, decode) for url, data in found)
        with closing(ordered_map(tasks, max_threads=num_threads)) as results:
            yield from timed(results, DECODE, within=FETCH)


def _whole(stream: ObjectStream) -> bytes | RemoteDataError:
    with stream:
        try:
            return stream.whole()
        except RemoteDataError as error:
            return error


def _decoded(url: str, data: bytes | RemoteDataError, decode: Callable[[bytes], Any], wait: object) -> Any:
    if isinstance(data, RemoteDataError):
        return data
    began_s = time.perf_counter()
    try:
        return decode(data)
    except Exception as cause:  # noqa: BLE001  # a damaged file or a user's decoder may raise anything
        shown = redact(url)
        error = DecodeError(
            f"{shown}: its {len(data):,} bytes cannot be decoded: {type(cause).__name__}: {cause}", url=shown
        )
        error.__cause__ = cause
        return error
    finally:
        DECODE.worked(began_s, len(data), items=1)
