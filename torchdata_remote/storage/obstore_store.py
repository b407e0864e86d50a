"""One bucket of S3, Google or Azure, by obstore; by fsspec what obstore cannot express."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import obstore

from ..errors import ObjectNotFoundError, StorageError
from .entry_table import EntryTable
from .errors import from_status, unusable_response
from .folder_walk import page_after
from .local.names import PARTIAL_SUFFIX
from .obstore_reader import ObstoreReader, Wanted, note_use
from .obstore_writer import own_name
from .protocol import (
    Answer,
    CredentialSourceError,
    Entry,
    ObjectWriter,
    Page,
    Store,
    UnreadableResponseError,
    UnsupportedByTransportError,
    normalized_etag,
    stat_if_allowed,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
PAGE_KEYS = 1000
MAX_HEADS = 64  # in one page, for empty objects; more of them are listed by fsspec, which shows the ends of keys
_FOLDER = f".folder{PARTIAL_SUFFIX}"  # an empty folder has an object of this name; its listing omits it
_MAX_CHARACTER = "\U0010ffff"
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")
_log = logging.getLogger("torchdata_remote")


class Bucket(Protocol):
    """What one cloud adds: an address, credentials, and the meaning of its errors.

    Args:
        root: URL of the bucket, with a slash at its end.
        odd: matches the paths that obstore cannot request exactly, or that name a version.
        odd_key: the same of keys.
        lists_in_order: whether listings have the order of keys, and can begin at any key.
        lists_by_fsspec: whether an option has no word in obstore's listings.
        hides_uploads: whether large objects are first written under a hidden name.
    """

    root: str
    odd: re.Pattern[str]
    odd_key: re.Pattern[str]
    lists_in_order: bool
    hides_uploads: bool
    lists_by_fsspec: bool

    @property
    def provider_fault(self) -> Exception | None:
        """Why obstore got no credentials; it keeps only the text."""

    def connect(self, *, reading: bool, retry: bool = False, small: bool = False) -> ObjectStore:
        """Make an obstore store, for reads, maybe of small bodies, or for all else; whether it repeats requests."""

    def renew(self, error: StorageError) -> bool:
        """Find other credentials, or another region, after an error; whether the request is worth another attempt."""

    def explain(self, error: StorageError) -> StorageError:
        """Add what the credentials have to do with an error."""

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        """Return the key and the version of a path.

        Raises:
            UrlError: for a name that is another one on its way, and for a version that would be written.
        """

    def paths(self, keys: list[str]) -> list[str]:
        """Return the paths of keys."""

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        """Start to write an object."""

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Abort unfinished uploads of keys below a prefix, by the key and its time, where they can be listed."""


class _Token(str):
    """The key after which a page begins, and the stream that continues there, if it is still at hand."""

    __slots__ = ("stream",)
    stream: Iterator[Sequence[Any]] | None


class ObstoreStore(ObstoreReader):
    """One bucket.

    Args:
        bucket: of a cloud.
        make_slower: makes the store by fsspec, for what obstore cannot express.
        has_slower: whether the package for it is installed.
    """

    maps_files = False
    may_ignore_ranges = False

    def __init__(self, bucket: Bucket, make_slower: Callable[[], Store], *, has_slower: bool) -> None:
        super().__init__(
            bucket.root,
            lambda small: bucket.connect(reading=True, small=small),
            lambda *arguments: self.slower.read(*arguments),
            odd=bucket.odd,
        )
        self.bucket, self.lists_in_order = bucket, bucket.lists_in_order
        self.begins_anywhere = bucket.lists_in_order
        self.supports_conditional_writes = True
        self._odd_keys, self._make_slower, self._has_slower = bucket.odd_key, make_slower, has_slower
        self._slower: Store | None = None
        self._general: ObjectStore | None = None  # for all but reads
        self._is_listed_slowly = bucket.lists_by_fsspec
        self._warned: set[str] = set()

    def url(self, path: str) -> str:
        """URL of an object, for errors."""
        return self._root + path

    @property
    def slower(self) -> Store:
        """The store by fsspec."""
        with self._lock:
            if self._slower is None:
                self._slower = self._make_slower()
            return self._slower

    @property
    def without_obstore(self) -> Store:
        """The store by fsspec, if its package is installed."""
        return self.slower if self._has_slower else self

    def warn_once(self, what: str, error: StorageError) -> None:
        """Warn of a feature that this store does not support, and of the consequences."""
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        _log.warning("%s %s (%s)", self._root.rstrip("/"), what, error)

    # Requests

    def call(
        self,
        path: str,
        request: Callable[[ObjectStore], T],
        *,
        reading: bool = False,
        writing: bool = False,
        may_repeat: bool = True,
    ) -> T:
        """Send one request; once more with other credentials, or in another region, if the store refuses the first."""
        store: ObjectStore | None = None
        while True:
            try:
                store = (self._store or self._connected()) if reading else self._for_all()
                return request(store)
            except BaseException as error:  # noqa: BLE001  # Rust's panics are no Exception
                failure = self._failure(error, path, writing=writing)
            if isinstance(failure, UnreadableResponseError):  # of a proxy
                raise unusable_response(self.url(path), str(failure)) from failure
            if store is None or not may_repeat or not self._renewed(store, failure):
                raise failure from failure.__cause__
            may_repeat = False

    def connect_with_retries(self) -> ObjectStore:
        """Make an obstore store that repeats requests by itself."""
        return self.bucket.connect(reading=False, retry=True)

    def _for_all(self) -> ObjectStore:
        with self._lock:
            if self._general is None:
                note_use()
                self._general = self.bucket.connect(reading=False)
            return self._general

    def _failure(self, error: BaseException, path: str, *, writing: bool = False) -> BaseException:
        fault = self.bucket.provider_fault
        converted = (
            fault
            if fault is not None and isinstance(error, Exception)
            else self._converted(error, path, writing=writing)
        )
        if isinstance(converted, StorageError) and not isinstance(converted, CredentialSourceError):
            return self.bucket.explain(converted)
        return converted

    def _renewed(self, store: ObjectStore, failure: BaseException) -> bool:
        if not isinstance(failure, StorageError) or isinstance(failure, CredentialSourceError):
            return False
        with self._lock:
            if store not in (self._store, self._small, self._general):
                return True  # another thread has renewed it
            if not self.bucket.renew(failure):
                return False
            self._store = self._small = self._general = None
            return True

    def _read_after(self, error: BaseException, store: ObjectStore | None, wanted: Wanted) -> Answer:
        path = wanted[0]
        failure = self._failure(error, path)
        if store is not None and self._renewed(store, failure):
            return self.call(path, lambda renewed: self._get(renewed, *wanted), reading=True, may_repeat=False)
        if isinstance(failure, UnreadableResponseError | UnsupportedByTransportError):
            if not self._has_slower:
                raise unusable_response(self.url(path), str(failure)) from failure
            return super()._read_after(error, store, wanted)
        raise failure from failure.__cause__

    def _read_odd(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        key, version = self.bucket.key(path)
        if self._odd is None or self._odd_keys.search(key):
            return self._read_by_fallback(path, start, end, etag)
        options = {} if version is None else {"version": version}
        return self.call(path, lambda store: self._get(store, key, start, end, etag, **options), reading=True)

    def read_if_changed(self, path: str, start: int, end: int | None, etag: str) -> Answer | None:
        return self.get_if_changed(path, start, end, etag, self.stat)

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by fsspec where the package for it is installed."""
        return self._read_by_fallback(path, start, end, etag) if self._has_slower else self.read(path, start, end, etag)

    def stat(self, path: str) -> Entry:
        return self._stat(path)[0]

    def _stat(self, path: str) -> tuple[Entry, dict[str, Any]]:
        """Return an object and the attributes that it is stored with."""
        key, version = self.bucket.key(path)
        if self._odd_keys.search(key):
            return self.slower.stat(path), {}
        options: Any = {"head": True} if version is None else {"head": True, "version": version}
        found = self.call(path, lambda store: obstore.get(store, key, options=options), reading=True)
        about, meta = dict(found.attributes), found.meta
        if about.get("hdi_isfolder") == "true":
            raise ObjectNotFoundError(f"{self.url(path)} is a folder, not an object.", url=self.url(path))
        return Entry(path, meta["size"], normalized_etag(meta["e_tag"]), meta["last_modified"].timestamp()), about

    def attributes(self, path: str) -> dict[str, Any]:
        """Return the attributes that an object is stored with: properties and metadata."""
        return self._stat(path)[1]

    def delete(self, path: str) -> None:
        key, _ = self.bucket.key(path, writing=True)
        if self._odd_keys.search(key):
            self.slower.delete(path)
            return

        def remove(store: ObjectStore) -> None:
            try:
                obstore.delete(store, key)
            except FileNotFoundError as error:
                if _NO_BUCKET.search(str(error)):
                    raise

        self.call(path, remove, writing=True)

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        if not self._is_listed_slowly and self._odd_keys.search(f"{prefix}x") is None:
            try:
                return self._page(prefix, recursive=recursive, token=token, after=after)
            except _UnclearKeysError as error:
                self._list_slowly(str(error))
        return self.slower.list_page(prefix, recursive=recursive, token=token, after=after)

    def _list_slowly(self, why: str) -> None:
        self.slower  # noqa: B018  # raises that its package is missing
        self._is_listed_slowly = True
        _log.warning("%s %s: it is listed by fsspec, more slowly", self._root.rstrip("/"), why)

    def _page(self, prefix: str, *, recursive: bool, token: str | None, after: str) -> Page:
        if not recursive:
            return self._folder(prefix)
        page = self._raw_page(prefix, token, after)
        table = _without_hidden(EntryTable.of(page.entries))
        if prefix and not all(path.startswith(prefix) for path in (table.keys[:1] + table.keys[-1:])):
            table = table.selected([path.startswith(prefix) for path in table.paths])
        return page._replace(entries=table)

    def _raw_page(self, prefix: str, token: str | None, after: str, limit: int = PAGE_KEYS) -> Page:
        """Return a page that may have objects before and behind a prefix, and hidden ones."""
        folder = prefix[: prefix.rfind("/") + 1]
        begin = token or max(after, _before(prefix) if self.lists_in_order and prefix != folder else "")
        stream, batch = self._listing(folder, begin, token, limit)
        if not self.lists_in_order:  # not to be continued at a key
            batch = self._whole(folder, stream, batch)
        table = self._entries(batch)
        is_last = len(batch) < limit or not self.lists_in_order
        if is_last or not (batch[-1]["path"].startswith(prefix) or batch[-1]["path"] < prefix):
            return Page(table, None)
        following = _Token(batch[-1]["path"])
        following.stream = stream
        return Page(table, following)

    def _listing(self, folder: str, begin: str, token: str | None, limit: int) -> tuple[Iterator[Any], list[Any]]:
        """Return a stream of pages, and its first one."""
        stream: Iterator[Any] | None = None
        if isinstance(token, _Token):
            stream, token.stream = token.stream, None  # after an error another one begins at the key

        def following(store: ObjectStore) -> tuple[Iterator[Any], list[Any]]:
            pages = stream
            if pages is None:
                pages = iter(obstore.list(store, folder or None, offset=begin or None, chunk_size=limit))
            return pages, list(next(pages, ()))

        return self._clear(folder, following)

    def _whole(self, folder: str, stream: Iterator[Any], batch: list[Any]) -> list[Any]:
        """Return the rest of a listing without order.

        Raises:
            StorageError: if the store repeats a page: the listing would not end.
        """
        seen, found = set[str](), list[Any]()
        while batch:
            for one in batch:
                if one["path"] in seen:
                    url = self.url(folder)
                    raise StorageError(f"{url}: the store lists {one['path']!r} twice. List again.", url=url)
                seen.add(one["path"])
            found += batch
            batch = self._clear(folder, lambda _: list(next(stream, ())))
        return found

    def _clear(self, path: str, request: Callable[[ObjectStore], T]) -> T:
        """Send a request for a listing; a key that obstore cannot express is an error of its own."""

        def send(store: ObjectStore) -> T:
            try:
                return request(store)
            except obstore.exceptions.InvalidPathError as error:
                raise _UnclearKeysError(f"has keys that obstore refuses ({str(error).partition(chr(10))[0]})") from None

        return self.call(path, send)

    def _entries(self, batch: list[Any]) -> EntryTable:
        """Return the objects of a page, without markers of folders: obstore strips the slash at their end."""
        table = EntryTable(
            self.bucket.paths([one["path"] for one in batch]),
            [one["size"] for one in batch],
            [normalized_etag(one["e_tag"]) for one in batch],
            [one["last_modified"] for one in batch],
            _seconds,
        )
        if 0 in table.sizes:
            table = table.selected(self._are_objects(table))
            table.keys = table.paths
        if self.lists_in_order and not table.is_sorted():
            raise _UnclearKeysError("has keys in another order than that of their names, or that end with a slash")
        return table

    def _are_objects(self, table: EntryTable) -> list[bool]:
        empty = [path for path, size in zip(table.paths, table.sizes, strict=True) if size == 0]
        if len(empty) > MAX_HEADS and self._has_slower:
            raise _UnclearKeysError("has many empty objects")
        with ThreadPoolExecutor(min(16, len(empty))) as threads:
            markers = {
                path for path, is_there in zip(empty, threads.map(self._exists, empty), strict=True) if not is_there
            }
        return [path not in markers for path in table.paths]

    def _exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except ObjectNotFoundError:
            return False
        return True

    def _folder(self, prefix: str, *, hidden: bool = False) -> Page:
        """List one folder, and the folders in it."""
        folder = prefix[: prefix.rfind("/") + 1]
        found = self._clear(folder, lambda store: obstore.list_with_delimiter(store, folder or None))
        objects = [one for one in found["objects"] if one["path"] != folder.rstrip("/")]
        table = self._entries(sorted(objects, key=lambda one: str(one["path"])))
        folders = [f"{name}/" for name in found["common_prefixes"]]
        return Page(table if hidden else _without_hidden(table), None, sorted(folders))

    def find(self, path: str) -> Entry | None:
        return self.find_first(path, 1)[0]

    def find_first(self, path: str, limit: int) -> tuple[Entry | None, Page]:
        key, version = self.bucket.key(path)
        if version is not None:
            return stat_if_allowed(self, path), Page([], None)
        if self._is_listed_slowly or self._odd_keys.search(f"{key}x"):
            return self.slower.find(path), self.slower.list_page(path, recursive=True, token=None)
        if self.lists_in_order:
            page = ObstoreStore.list_page(self, key, recursive=True, token=None)  # not counted as another request
            return next((one for one in page.entries if one.path == path), None), page
        below = f"{key.rstrip('/')}/" if key else None
        batch = self._clear(path, lambda store: list(next(iter(obstore.list(store, below, chunk_size=limit)), ())))
        more = batch[-1]["path"] if len(batch) == limit else None
        return stat_if_allowed(self, path), Page(_without_hidden(self._entries(batch)), more)

    # Writing

    def create(self, path: str, *, overwrite: bool) -> ObjectWriter:
        key, _ = self.bucket.key(path, writing=True)
        if self._odd_keys.search(key):
            return self.slower.create(path, overwrite=overwrite)
        return self.bucket.writer(self, key, overwrite=overwrite)

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        folder, slash, start = prefix.rpartition("/")

        def is_left(path: str, _: float | None) -> bool:
            name = path[len(folder) + len(slash) :]
            return "/" not in name and is_ours(own_name(name) or name)

        if self.bucket.hides_uploads:
            hidden = f"{folder}{slash}.{start}"
            for page in self._raw_pages(hidden) if self.lists_in_order else [self._folder(prefix, hidden=True)]:
                self._remove_hidden(page.entries, is_left)
        self.bucket.remove_unfinished(self, prefix, is_left)

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        def is_left(_: str, began_s: float | None) -> bool:
            return began_s is not None and began_s < before_s

        if self.bucket.hides_uploads:
            for page in self._raw_pages(path):
                self._remove_hidden(page.entries, is_left)
        self.bucket.remove_unfinished(self, path, is_left)

    def _remove_hidden(self, entries: Sequence[Entry], is_left: Callable[[str, float | None], bool]) -> None:
        if any(key.endswith(PARTIAL_SUFFIX) for key in EntryTable.of(entries).keys):
            for entry in entries:
                if own_name(entry.path) is not None and is_left(entry.path, entry.modified_s):
                    self.delete(entry.path)

    def _raw_pages(self, prefix: str) -> Iterator[Page]:
        token: str | None = None
        while True:
            page = self._raw_page(prefix, token, "")
            yield page
            token = page.next_token
            if token is None:
                return

    # Folders

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        if self._is_listed_slowly:
            slower: Any = self.slower
            return cast(Page, slower.list_after(prefix, recursive=recursive, after=after, limit=limit))
        if recursive and self.lists_in_order:
            page = self._raw_page(prefix, None, after, limit)
            table = _without_hidden(EntryTable.of(page.entries))
            return page._replace(entries=table.selected([one.startswith(prefix) for one in table.paths]))

        def pages_of(folder: str) -> list[Page]:
            return [self.list_page(folder, recursive=False, token=None)]

        return page_after(pages_of, prefix, after, recursive=recursive, limit=limit)

    def has_folder(self, path: str) -> bool:
        try:
            return bool(self._clear(path, lambda one: next(iter(obstore.list(one, path or None, chunk_size=1)), ())))
        except _UnclearKeysError:
            return True

    def make_folder(self, path: str) -> None:
        if self.has_folder(path):
            raise from_status(412, "", self.url(path), writing=True)
        self.create(path + _FOLDER, overwrite=False).commit()

    def remove_folder(self, path: str) -> None:
        for page in self._raw_pages(path):
            for key in EntryTable.of(page.entries).keys:
                if key != path + _FOLDER:
                    self.delete(key)
        self.delete(path + _FOLDER)  # it is last: until then the folder exists


class _UnclearKeysError(StorageError):
    """A listing has keys that obstore does not show as they are."""


def _before(prefix: str) -> str:
    """Return a text that sorts before all keys with a prefix, and behind those before them.

    >>> _before("train/b") == "train/a" + chr(0x10FFFF)
    True
    """
    last = ord(prefix[-1]) - 1
    while last in (0x2F, 0x7F) or 0x80 <= last < 0xA0 or 0xD800 <= last < 0xE000:  # which no text may have here
        last -= 1
    return prefix[:-1] if last < ord(" ") else f"{prefix[:-1]}{chr(last)}{_MAX_CHARACTER}"


def _seconds(modified: Any) -> float:
    return float(modified.timestamp())


def _without_hidden(table: EntryTable) -> EntryTable:
    if not any(key.endswith(PARTIAL_SUFFIX) for key in table.keys):
        return table
    return table.selected([not key.endswith(PARTIAL_SUFFIX) for key in table.paths])
