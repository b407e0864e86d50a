"""Read by obstore, the transport of most bytes. All calls block and send one request.

obstore does not work in a process that was forked after its parent used it: requests hang there. The first use is
recorded, and ``is_usable`` returns ``False`` in such a child.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..core.urls import redact, redact_text
from ..errors import RemoteDataError, UrlError
from .error_tables import from_obstore
from .errors import translate_errors
from .http import IDENTITY, require_unencoded
from .network import ENVIRONMENT, NetworkSettings, obstore_client_options
from .protocol import Answer, UnsupportedByTransportError, for_if_match, normalized_etag

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PLAIN_HTTP_PATH = re.compile(r"[A-Za-z0-9_.~/-]+")

_used = False
_forked_after_use = False


def _after_fork() -> None:
    global _forked_after_use, _used
    _forked_after_use = _forked_after_use or _used


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_usable() -> bool:
    """Whether obstore works in this process."""
    return not _forked_after_use


def can_express(path: str) -> bool:
    """Whether obstore can request exactly this key. It strips outer slashes, and refuses empty and dot segments."""
    plain = not any(character < " " or character == "\x7f" for character in path)  # obstore refuses control characters
    return plain and not any(segment in ("", ".", "..") for segment in path.split("/"))


def can_express_http(path: str) -> bool:
    """Whether obstore can request exactly this path: it percent-encodes the path once more, and supports no query."""
    return can_express(path) and _PLAIN_HTTP_PATH.fullmatch(path) is not None


@contextlib.contextmanager
def construction_by_obstore(url: str) -> Iterator[None]:
    """Raise that obstore cannot be used, if it cannot make a store: the other transport then says what is wrong.

    Args:
        url: of the bucket.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, RemoteDataError | MemoryError) or not (isinstance(error, Exception) or _is_panic(error)):
            raise
        raise _unusable(error, url) from None


@contextlib.contextmanager
def _without_panics(url: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise _unusable(error, url) from None


def _is_panic(error: BaseException) -> bool:
    """Whether Rust code has failed: the class cannot be imported, and is no ``Exception``."""
    return type(error).__name__ == "PanicException"


def _unusable(error: BaseException, url: str) -> UnsupportedByTransportError:
    what = redact_text(str(error).partition("\n")[0])
    return UnsupportedByTransportError(f"{redact(url)}: {type(error).__name__}: {what}", url=redact(url))


class ObstoreReader:
    """Reads objects of one bucket or host.

    Args:
        store: an obstore store.
        root: URL of the store, with a slash at its end.
        if_match: whether to send If-Match.
        key: converts a path to the store's key.
        version: returns the version that a path names, if any.
        table: converts obstore's exceptions to this package's errors.
    """

    def __init__(
        self,
        store: ObjectStore,
        root: str,
        *,
        if_match: bool,
        key: Callable[[str], str] = str,
        version: Callable[[str], str | None] | None = None,
        table: Callable[[Exception, str], Exception] = from_obstore,
    ) -> None:
        global _used
        _used = True
        self._store, self._root = store, root
        self._if_match = if_match
        self._key, self._version, self._table = key, version, table

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        import obstore

        options: dict[str, Any] = {}
        if end is not None:
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}
        if self._if_match and (expected := for_if_match(etag)) is not None:
            options["if_match"] = expected
        version = None if self._version is None else self._version(path)
        if version is not None:
            options["version"] = version
        key = self._key(path)
        with _without_panics(self._root + path), translate_errors(self._table, self._root + path):
            result = obstore.get(self._store, key, options=options)  # type: ignore[arg-type]  # a TypedDict
            require_unencoded(result.attributes.get("Content-Encoding"), path, self._root + path)
            first, after = result.range
            chunks = self._chunks(path, result.stream(0))
            return Answer(first, after, int(result.meta["size"]), normalized_etag(result.meta["e_tag"]), chunks)

    def _chunks(self, path: str, stream: Iterable[Any]) -> Generator[memoryview, None, None]:
        with _without_panics(self._root + path), translate_errors(self._table, self._root + path):
            for chunk in stream:
                yield memoryview(chunk)


NO_RETRIES: dict[str, Any] = {"max_retries": 0}


def client_options(read_timeout_s: float, url: str, network: NetworkSettings = ENVIRONMENT) -> dict[str, Any]:
    """Options of obstore's HTTP client for the server of a URL."""
    return obstore_client_options(url, read_timeout_s, network)


def http_reader(origin: str, read_timeout_s: float, headers: dict[str, str] | None = None) -> ObstoreReader:
    """Make a reader of one HTTP host, such as ``https://host:port``, that sends ``headers`` with each request."""
    # If-Match fails for weak etags.
    return ObstoreReader(http_store(origin, read_timeout_s, headers), origin + "/", if_match=False)


def http_store(origin: str, read_timeout_s: float, headers: dict[str, str] | None = None) -> ObjectStore:
    """Make an obstore store of an HTTP host, or of a folder there, that sends ``headers`` with each request."""
    from obstore.store import HTTPStore

    # Not for s3: obstore would sign the header, which proxies change. There it sends none, which has the same effect.
    options = {**client_options(read_timeout_s, origin), "default_headers": {**IDENTITY, **(headers or {})}}
    try:
        return HTTPStore.from_url(origin, client_options=options, retry_config=NO_RETRIES)  # type: ignore[arg-type]
    except ValueError as error:
        shown = redact(origin)
        raise UrlError(f"{shown}: not an HTTP URL: {error}. Check host and port.", url=shown) from None
