"""One bucket of S3, Google or Azure, by obstore; by fsspec what obstore cannot express."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import lt
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import obstore

from ..errors import ObjectNotFoundError, StorageError
from .folder_walk import page_after
from .local.names import PARTIAL_SUFFIX
from .obstore_reader import ObstoreReader, Wanted
from .protocol import (
    Answer,
    CredentialSourceError,
    Entry,
    EntryTable,
    ObjectWriter,
    Page,
    Store,
    normalized_etag,
    stat_if_allowed,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
PAGE_KEYS = 1000
MAX_HEADS = 64  # in one page, for empty objects; more of them are listed by fsspec, which shows the ends of keys
_MAX_CHARACTER = "\U0010ffff"
_MAX_NAME_BYTES = 1024
_PARTIAL = re.compile(rf"\.(.*)-[0-9a-f]{{32}}{re.escape(PARTIAL_SUFFIX)}", re.DOTALL)
_log = logging.getLogger("torchdata_remote")


class Bucket(Protocol):
    """What one cloud adds: an address, credentials, and the meaning of its errors.

    Args:
        root: URL of the bucket, with a slash at its end.
        odd: matches the paths that obstore cannot request exactly, or that name a version.
        lists_in_order: whether listings have the order of keys, and can begin at any key.
        lists_by_fsspec: whether an option has no word in obstore's listings.
        hides_uploads: whether large objects are first written under a hidden name.
    """

    root: str
    odd: re.Pattern[str]
    lists_in_order: bool
    hides_uploads: bool
    lists_by_fsspec: bool

    @property
    def provider_fault(self) -> Exception | None:
        """Why obstore got no credentials; it keeps only the text."""

    def connect(self, *, retry: bool = False, small: bool = False) -> ObjectStore:
        """Make an obstore store, maybe one for small bodies, or one that repeats requests."""

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


class _UnclearKeysError(StorageError):
    """A listing has keys that obstore does not show as they are."""


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
            lambda small: bucket.connect(small=small),
            lambda *wanted: (self._slower_for(wanted[0]) or self.slower).read(*wanted),
            odd=bucket.odd,
        )
        self.bucket, self.lists_in_order = bucket, bucket.lists_in_order
        self.begins_anywhere = bucket.lists_in_order
        self.supports_conditional_writes = True
        self._make_slower, self._has_slower = make_slower, has_slower
        self._slower: Store | None = None
        self._is_listed_slowly = bucket.lists_by_fsspec
        self._warned: set[str] = set()

    def url(self, path: str) -> str:
        """URL of an object, for errors."""
        return self._root + path

    @property
    def slower(self) -> Store:
        """The store by fsspec."""
        with self._lock:
            self._slower = self._slower or self._make_slower()
            return self._slower

    @property
    def without_obstore(self) -> Store:
        """The store by fsspec, if its package is installed."""
        return self.slower if self._has_slower else self

    def warn_once(self, what: str, error: StorageError) -> None:
        """Warn of a feature that this store does not support, and of the consequences."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s %s (%s)", self._root.rstrip("/"), what, error)

    # Requests

    def call(
        self, path: str, request: Callable[[ObjectStore], T], *, writing: bool = False, may_repeat: bool = True
    ) -> T:
        """Send one request; once more with other credentials, or in another region, if the store refuses the first."""
        store: ObjectStore | None = None
        try:
            store = self._store or self._connected()
            return request(store)
        except BaseException as error:  # noqa: BLE001  # Rust's panics are no Exception
            failure = self._converted(error, path, writing=writing)
        if store is not None and may_repeat and self._renewed(store, failure):
            return self.call(path, request, writing=writing, may_repeat=False)
        raise failure from failure.__cause__

    def connect_with_retries(self) -> ObjectStore:
        """Make an obstore store that repeats requests by itself."""
        return self.bucket.connect(retry=True)

    def _converted(self, error: BaseException, path: str, **options: bool) -> BaseException:
        if isinstance(error, obstore.exceptions.InvalidPathError):
            return _UnclearKeysError(f"has keys that obstore refuses ({str(error).partition(chr(10))[0]})")
        fault = self.bucket.provider_fault if isinstance(error, Exception) else None
        converted = fault or super()._converted(error, path, **options)
        if isinstance(converted, StorageError) and not isinstance(converted, CredentialSourceError):
            return self.bucket.explain(converted)
        return converted

    def _renewed(self, store: ObjectStore, failure: BaseException) -> bool:
        if not isinstance(failure, StorageError) or isinstance(failure, CredentialSourceError):
            return False
        with self._lock:
            if store not in (self._store, self._small):
                return True  # another thread has renewed it
            if not self.bucket.renew(failure):
                return False
            self._store = self._small = None
            return True

    def _read_after(self, failure: BaseException, store: ObjectStore | None, wanted: Wanted) -> Answer:
        if store is not None and self._renewed(store, failure):
            return self.call(wanted[0], lambda renewed: self._get(renewed, *wanted), may_repeat=False)
        if not self._has_slower:
            raise failure from failure.__cause__
        return super()._read_after(failure, store, wanted)

    def _slower_for(self, path: str) -> Store | None:
        """Return the store by fsspec for a path that obstore would change; ``None`` for others."""
        if self.bucket.odd.search(path) is None:
            return None
        self.bucket.key(path)  # raises for a name that the cloud changes, too
        return self.slower

    def read_if_changed(self, path: str, start: int, end: int | None, etag: str) -> Answer | None:
        return self.get_if_changed(path, start, end, etag, self.stat)

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by fsspec where the package for it is installed."""
        read = self._read_by_fallback if self._has_slower else self.read
        return read(path, start, end, etag)

    def stat(self, path: str) -> Entry:
        return self._stat(path)[0]

    def attributes(self, path: str) -> dict[str, Any]:
        """Return the attributes that an object is stored with: properties and metadata."""
        return self._stat(path)[1]

    def _stat(self, path: str) -> tuple[Entry, dict[str, Any]]:
        if slower := self._slower_for(path):
            return slower.stat(path), {}
        found = self.call(path, lambda store: obstore.get(store, path, options={"head": True}))
        about, meta = dict(found.attributes), found.meta
        if about.get("hdi_isfolder") == "true":
            raise ObjectNotFoundError(f"{self.url(path)} is a folder, not an object.", url=self.url(path))
        return Entry(path, meta["size"], normalized_etag(meta["e_tag"]), meta["last_modified"].timestamp()), about

    def create(self, path: str, *, overwrite: bool) -> ObjectWriter:
        slower = self._slower_for(path)
        if slower is None:
            return self.bucket.writer(self, path, overwrite=overwrite)
        return slower.create(path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        if slower := self._slower_for(path):
            slower.delete(path)
            return

        def remove(store: ObjectStore) -> None:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(store, path)

        self.call(path, remove, writing=True)

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        if not self._is_listed_slowly and self.bucket.odd.search(f"{prefix}x") is None:
            try:
                return self._keys(prefix, token, after) if recursive else self._folder(prefix)
            except _UnclearKeysError as error:
                self.slower  # noqa: B018  # raises that its package is missing
                self._is_listed_slowly, self.begins_anywhere = True, False
                _log.warning("%s %s: it is listed by fsspec, more slowly", self._root.rstrip("/"), error)
        if isinstance(token, _Token):
            token, after = None, str(token)
        page = self.slower.list_page(prefix, recursive=recursive, token=token, after=after)
        if not after:
            return page
        return page._replace(entries=sorted(one for one in page.entries if one.path > after))  # fsspec lists all

    def _keys(self, prefix: str, token: str | None, after: str, *, hidden: bool = False) -> Page:
        """Return a page that may have objects before and behind a prefix."""
        folder = prefix[: prefix.rfind("/") + 1]
        if not self.lists_in_order:  # not to be continued at a key
            return Page(self._entries(self.call(folder, lambda store: self._whole(store, folder)), hidden=hidden), None)
        begin = token or max(after, _before(prefix) if prefix != folder else "")
        stream: Iterator[Sequence[Any]] | None = None
        if isinstance(token, _Token):
            stream, token.stream = token.stream, None

        def following(store: ObjectStore) -> tuple[Iterator[Sequence[Any]], list[Any]]:
            nonlocal stream
            # After an error another stream begins at the key: one that has failed seems to have ended
            pages = stream or iter(obstore.list(store, folder or None, offset=begin or None, chunk_size=PAGE_KEYS))
            stream = None
            return pages, list(next(pages, ()))

        pages, batch = self.call(folder, following)
        table, last = self._entries(batch, hidden=hidden), batch[-1]["path"] if len(batch) == PAGE_KEYS else ""
        if not last or not (last.startswith(prefix) or last < prefix):
            return Page(table, None)
        more = _Token(last)
        more.stream = pages
        return Page(table, more)

    def _whole(self, store: ObjectStore, folder: str) -> list[Any]:
        """Return a listing without order.

        Raises:
            StorageError: if the store repeats an object: the listing would not end.
        """
        found: dict[str, Any] = {}
        for batch in obstore.list(store, folder or None, chunk_size=PAGE_KEYS):
            for one in batch:
                if found.setdefault(one["path"], one) is not one:
                    url = self.url(folder)
                    raise StorageError(f"{url}: the store lists {one['path']!r} twice. List again.", url=url)
        return list(found.values())

    def _entries(self, batch: list[Any], *, hidden: bool = False) -> EntryTable:
        """Return the objects of a page, without markers of folders: obstore strips the slash at their end."""
        table = EntryTable(
            self.bucket.paths([one["path"] for one in batch]),
            [one["size"] for one in batch],
            [normalized_etag(one["e_tag"]) for one in batch],
            [one["last_modified"] for one in batch],
        )
        if 0 in table.sizes:
            markers = self._markers([path for path, size in zip(table.paths, table.sizes, strict=True) if size == 0])
            table = table.selected([path not in markers for path in table.paths])
        if self.lists_in_order and not all(map(lt, table.paths, table.paths[1:])):
            raise _UnclearKeysError("has keys in another order than that of their names, or that end with a slash")
        return table if hidden else table.selected([not path.endswith(PARTIAL_SUFFIX) for path in table.paths])

    def _markers(self, empty: list[str]) -> set[str]:
        """Return which of the names of empty objects are those of folders."""

        def is_marker(path: str) -> bool:
            try:
                self.stat(path)
            except ObjectNotFoundError:
                return True
            return False

        if len(empty) > MAX_HEADS and self._has_slower:
            raise _UnclearKeysError("has many empty objects")
        with ThreadPoolExecutor(min(16, len(empty))) as threads:
            return {path for path, is_one in zip(empty, threads.map(is_marker, empty), strict=True) if is_one}

    def _folder(self, prefix: str) -> Page:
        """List one folder, and the folders in it."""
        folder = prefix[: prefix.rfind("/") + 1]
        found = self.call(folder, lambda store: obstore.list_with_delimiter(store, folder or None))
        objects = {one["path"]: one for one in found["objects"] if one["path"] != folder.rstrip("/")}
        table = self._entries([objects[path] for path in sorted(objects)])
        return Page(table, None, sorted(f"{name}/" for name in found["common_prefixes"]))

    def find(self, path: str) -> Entry | None:
        if self._is_listed_slowly or self._slower_for(f"{path}x"):
            return self.slower.find(path)
        if not self.lists_in_order:
            return stat_if_allowed(self, path)
        page = self.list_page(path, recursive=True, token=None)
        return next((one for one in page.entries if one.path == path), None)

    # Unfinished objects, and folders

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        folder = prefix[: prefix.rfind("/") + 1]

        def is_left(path: str, _: float | None) -> bool:
            name = path[len(folder) :]
            return "/" not in name and is_ours(own_name(name) or name)

        if self.bucket.hides_uploads:
            for entry in self._all(f"{folder}.{prefix[len(folder) :]}"):
                if own_name(entry.path) is not None and is_left(entry.path, entry.modified_s):
                    self.delete(entry.path)
        self.bucket.remove_unfinished(self, prefix, is_left)

    def _all(self, prefix: str) -> Iterator[Entry]:
        """Yield all objects that begin with a prefix, hidden ones too."""
        token: str | None = ""
        while token is not None:
            page = self._keys(prefix, token or None, "", hidden=True)
            yield from (entry for entry in page.entries if entry.path.startswith(prefix))
            token = page.next_token

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        if not recursive or not self.lists_in_order:

            def page_of(folder: str, token: str | None) -> Page:
                return ObstoreStore.list_page(self, folder, recursive=False, token=token)

            return page_after(page_of, prefix, after, recursive=recursive, limit=limit)
        page = ObstoreStore.list_page(self, prefix, recursive=True, token=None, after=after)
        entries = [one for one in page.entries if one.path.startswith(prefix)]
        if len(entries) > limit or (page.next_token is not None and entries):
            return Page(entries[:limit], entries[:limit][-1].path)
        return Page(entries, page.next_token)

    def has_folder(self, path: str) -> bool:
        try:
            return bool(self.call(path, lambda one: next(iter(obstore.list(one, path or None, chunk_size=1)), ())))
        except _UnclearKeysError:
            return True

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(_UnclearKeysError):  # fsspec has listed such a folder, and shows nothing more
            for entry in self._all(path):
                self.delete(entry.path)


def _before(prefix: str) -> str:
    """Return a text that sorts before all keys with a prefix, and behind most of those before them.

    >>> _before("train/b") == "train/a" + chr(0x10FFFF)
    True
    """
    start, last = prefix[:-1], chr(ord(prefix[-1]) - 1)
    if last.isprintable() and last != "/":
        return f"{start}{last}{_MAX_CHARACTER}"
    return "" if start.endswith("/") else start


def partial_path(path: str, upload: str) -> str:
    """Return the hidden name under which an object is uploaded, in the folder of its own name.

    The end of a name is left out if it would be longer than a name may be (https://cloud.google.com/storage/docs/objects#naming).

    >>> partial_path("train/0.tar", "0" * 32)
    'train/.0.tar-00000000000000000000000000000000.torchdata_remote-partial'
    """
    folder, slash, name = path.rpartition("/")
    around = f"{folder}{slash}.-{upload}{PARTIAL_SUFFIX}"
    shortened = name.encode()[: max(0, _MAX_NAME_BYTES - len(around.encode()))].decode(errors="ignore")
    return f"{folder}{slash}.{shortened}-{upload}{PARTIAL_SUFFIX}"


def own_name(path: str) -> str | None:
    """Return the base name of the object that was uploaded under this path; ``None`` if it is a path of another kind.

    >>> own_name(partial_path("train/0.tar", "0" * 32)), own_name("train/0.tar")
    ('0.tar', None)
    """
    found = _PARTIAL.fullmatch(path.rpartition("/")[2])
    return None if found is None else found[1]
