"""Read by obstore, the transport of most bytes, and by another one where obstore cannot. All calls block.

obstore does not work in a process that was forked after its parent used it: requests hang there. The first use is
recorded, and ``is_usable`` returns ``False`` in such a child.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import obstore
from obstore.exceptions import NotModifiedError

from ..core.urls import redact, redact_text
from ..errors import StorageError, TransientStorageError, UrlError
from .errors import Table, from_obstore, mark_host_known, to_package_error
from .http import IDENTITY, require_unencoded
from .network import for_small_bodies, obstore_client_options
from .protocol import (
    Answer,
    Entry,
    RangeNotSatisfiableError,
    UnreadableResponseError,
    for_if_match,
    normalized_etag,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Wanted = tuple[str, int, int | None, str | None]  # path, first byte, the byte after the last one, etag: of a read
Read = Callable[[str, int, int | None, str | None], Answer]
MAX_UNREADABLE = 8  # consecutive responses that only the fallback can read; then obstore is not used any more
SMALL_BYTES = 1 << 20  # bodies that are one buffer: their pieces would cost more than the request
MAX_IN_PIECES = 64  # bodies, after a small one that broke
NO_RETRIES: dict[str, Any] = {"max_retries": 0}
# Empty and dot segments, which obstore strips or refuses, and control characters
ODD_KEY = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f-\x9f]")
# It percent-encodes the path of a URL once more, and supports no query
ODD_HTTP_PATH = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[^A-Za-z0-9_.~/-]")
_log = logging.getLogger("torchdata_remote")
_used = False
_forked_after_use = False


def _after_fork() -> None:
    global _forked_after_use
    _forked_after_use = _forked_after_use or _used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_usable() -> bool:
    """Whether obstore works in this process."""
    return not _forked_after_use


class ObstoreReader:
    """Reads objects of one bucket or host.

    Args:
        root: URL of the store, with a slash at its end.
        connect: makes an obstore store, for small bodies or for others, at the first request of the kind: a parent that
            has not used obstore can be forked.
        fallback: reads what obstore cannot, and says what is wrong where both fail.
        odd: matches the paths that obstore cannot request exactly; ``None`` to use the fallback only.
        if_match: whether to send If-Match.
        key: converts a path to the store's key.
        table: converts obstore's exceptions to this package's errors.
    """

    def __init__(
        self,
        root: str,
        connect: Callable[[bool], ObjectStore],
        fallback: Read,
        *,
        odd: re.Pattern[str] | None = ODD_KEY,
        if_match: bool = True,
        key: Callable[[str], str] = str,
        table: Table = from_obstore,
    ) -> None:
        self._root, self._connect, self._fallback, self._odd = root, connect, fallback, odd
        self._if_match, self._key, self._table = if_match, key, table
        self._store: ObjectStore | None = None
        self._small: ObjectStore | None = None  # for requests whose bodies are read at once: they have a time limit
        self._num_unreadable = 0  # consecutive
        self._num_in_pieces = 0  # bodies that are read in pieces, also small ones, so that what arrives is kept
        self._is_known = False  # whether the host has responded
        self._lock = threading.RLock()

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like ``Store.read``."""
        odd = self._odd
        if odd is None or odd.search(path) is not None:
            return self._read_by_fallback(path, start, end, etag)
        store: ObjectStore | None = None
        try:
            if end is not None and end - start <= SMALL_BYTES and not self._num_in_pieces:
                store = self._small or self._connected(small=True)
            else:
                store = self._store or self._connected()
                self._num_in_pieces -= self._num_in_pieces > 0
            answer = self._get(store, path, start, end, etag)
        except BaseException as error:  # noqa: BLE001  # Rust's panics are no Exception
            return self._read_after(self._converted(error, path), store, (path, start, end, etag))
        if self._num_unreadable or not self._is_known:
            self._num_unreadable, self._is_known = 0, True
            mark_host_known(self._root)
        return answer

    def get_if_changed(
        self, path: str, start: int, end: int | None, etag: str, stat: Callable[[str], Entry]
    ) -> Answer | None:
        """Read as a :class:`ConditionalStore` does; where obstore cannot, by two requests.

        Args:
            path: of the object, as the following ones.
            start: first byte.
            end: byte after the last one.
            etag: of the version that is not wanted.
            stat: looks an object up.
        """
        if self._odd is not None and self._odd.search(path) is None:
            try:
                return self._get(self._store or self._connected(), path, start, end, None, if_none_match=etag)
            except NotModifiedError:
                return None
            except BaseException as error:  # noqa: BLE001  # Rust's panics are no Exception
                failure = self._converted(error, path)
                known = isinstance(failure, TransientStorageError | RangeNotSatisfiableError)  # as read() raises them
                if known or not isinstance(failure, StorageError):
                    raise failure from failure.__cause__
        return None if stat(path).etag == etag else self.read(path, start, end, None)

    def _get(
        self, store: ObjectStore, path: str, start: int, end: int | None, etag: str | None, **options: Any
    ) -> Answer:
        if end is not None:
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}
        if etag is not None and self._if_match and (expected := for_if_match(etag)) is not None:
            options["if_match"] = expected
        result = obstore.get(store, self._key(path), options=options)  # type: ignore[arg-type]  # a TypedDict
        encoding = result.attributes.get("Content-Encoding")
        if encoding is not None:
            require_unencoded(encoding, path, self._root + path)
        meta, (first, after) = result.meta, result.range
        is_small = store is self._small
        if is_small and after - first > SMALL_BYTES:  # of a server that ignores ranges
            return self._get(self._store or self._connected(), path, start, end, etag, **options)
        chunks = partial(self._body, path, result) if is_small else self._chunks(path, result)
        return Answer(first, after, meta["size"], normalized_etag(meta["e_tag"]), chunks)

    def _body(self, path: str, result: Any) -> memoryview:
        try:
            return memoryview(result.bytes())
        except Exception as error:  # noqa: BLE001  # converted
            self._raise_broken(error, path)

    def _chunks(self, path: str, result: Any) -> Generator[memoryview, None, None]:
        try:
            for chunk in result.stream(0):
                yield memoryview(chunk)
        except Exception as error:  # noqa: BLE001  # converted
            self._raise_broken(error, path)

    def _raise_broken(self, error: Exception, path: str) -> NoReturn:
        """Raise the error for a body that has ended early; the next bodies are read in pieces."""
        self._num_in_pieces = MAX_IN_PIECES
        failure = self._converted(error, path)
        raise failure from failure.__cause__

    def _read_by_fallback(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        answer = self._fallback(path, start, end, etag)
        mark_host_known(self._root)
        return answer

    read_without_obstore = _read_by_fallback

    def _read_after(self, failure: BaseException, store: ObjectStore | None, wanted: Wanted) -> Answer:
        """Read by the fallback after an error of obstore, if it is not the store's."""
        if not isinstance(failure, UnreadableResponseError):
            raise failure from failure.__cause__
        self._num_unreadable += 1
        if self._num_unreadable >= MAX_UNREADABLE and self._odd is not None:
            self._odd = None
            what = f"sends responses that obstore cannot read ({failure})"
            _log.warning("%s %s: it is read without obstore, more slowly", redact(self._root), what)
        return self._read_by_fallback(*wanted)

    def _connected(self, *, small: bool = False) -> ObjectStore:
        global _used
        with self._lock:
            _used = True
            if small:
                self._small = self._small or self._connect(True)
                return self._small
            self._store = self._store or self._connect(False)
            return self._store

    def _converted(self, error: BaseException, path: str, **options: bool) -> BaseException:
        """Return this package's error for one of obstore, with its cause."""
        if type(error).__name__ == "PanicException":  # of Rust: the class cannot be imported
            shown, what = redact(self._root + path), redact_text(str(error).partition("\n")[0])
            return StorageError(f"{shown}: obstore failed: {what}. Pass backend='fsspec' to read by another library.")
        if isinstance(error, Exception):
            return to_package_error(error, self._root + path, self._table, **options)
        return error


def http_reader(
    origin: str,
    read_timeout_s: float,
    fallback: Read,
    *,
    odd: re.Pattern[str] | None,
    headers: dict[str, str] | None = None,
) -> ObstoreReader:
    """Make a reader of one HTTP host, such as ``https://host:port``, that sends ``headers`` with each request."""
    # If-Match fails for weak etags.
    return ObstoreReader(
        origin + "/",
        lambda small: http_store(origin, read_timeout_s, headers, small=small),
        fallback,
        odd=odd,
        if_match=False,
    )


def http_store(
    origin: str, read_timeout_s: float, headers: dict[str, str] | None = None, *, small: bool = False
) -> ObjectStore:
    """Make an obstore store of an HTTP host, or of a folder there, that sends ``headers`` with each request."""
    from obstore.store import HTTPStore

    # Not for s3: obstore would sign the header, which proxies change. There it sends none, which has the same effect.
    options = {**obstore_client_options(origin, read_timeout_s), "default_headers": {**IDENTITY, **(headers or {})}}
    options = for_small_bodies(options) if small else options
    try:
        return HTTPStore.from_url(origin, client_options=options, retry_config=NO_RETRIES)  # type: ignore[arg-type]
    except ValueError as error:
        shown = redact(origin)
        raise UrlError(f"{shown}: not an HTTP URL: {error}. Check host and port.", url=shown) from None
