"""Objects of a bucket with conditions and metadata, by obstore: what a dataset service needs beyond a ``Store``."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import obstore

from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import AZURE, split_url
from ..errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, UrlError
from .multipart import UPLOAD_PART_BYTES, WRITER_ID
from .obstore_store import ObstoreStore
from .options import nested
from .protocol import Page, Store, normalized_etag

__all__ = ["CHANGED", "UPLOAD_PART_BYTES", "WRITER_ID", "BucketObjects", "Found", "bucket_objects", "etag_of"]

T = TypeVar("T")
Mode = Any  # "overwrite"; "create", where no object may exist; or the ``version`` of the object that is replaced
_SENT = {"SSECustomerKey", "ExpectedBucketOwner", "RequestPayer"}  # arguments that obstore sends
_DELETED = 1000  # objects in one request
CHANGED = (ObjectExistsError, ObjectChangedError, ObjectNotFoundError)  # by a condition that does not hold


class Found(NamedTuple):
    """An object: size in bytes, etag, time of the last write, metadata by names in lower case, version as a mode."""

    size: int
    etag: str
    modified_s: float
    metadata: dict[str, str]
    version: Mode


def etag_of(received: str | None, size: int | None) -> str:
    """Return an etag in quotes; the size for a store without any."""
    return normalized_etag(received) or f'"{size}"'


def bucket_objects(store: Store, options: StorageOptions, retry: RetryPolicy) -> BucketObjects | None:
    """Return the objects of a store if it is a bucket that obstore writes to.

    Args:
        store: of the bucket.
        options: that it was opened with.
        retry: of each request.

    Raises:
        UrlError: for a property of objects that obstore cannot write, rather than to write without it.
    """
    if not isinstance(store, ObstoreStore):
        return None
    properties = nested(options, "s3_additional_kwargs")
    for name in sorted(properties.keys() - _SENT):
        what = f"storage_options['s3_additional_kwargs'][{name!r}] is not written with datasets"
        raise UrlError(
            f"{store.url('')}: {what}. Make it the bucket's default, such as its encryption.", url=store.url("")
        )
    return BucketObjects(store, retry, can_sign=not properties and not options.get("requester_pays"))


def _found(meta: Any, attributes: Mapping[str, Any]) -> Found:
    version = {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}
    metadata = {str(key).lower(): value for key, value in attributes.items()}
    size, modified = meta["size"], meta["last_modified"]
    return Found(size, etag_of(meta["e_tag"], size), modified.timestamp(), metadata, version)


class BucketObjects:
    """Sends requests to a bucket, and repeats what fails for the moment.

    Args:
        store: of the bucket.
        retry: of each request.
        can_sign: whether a signed URL is all that a reader needs, and not headers, such as a key.
    """

    def __init__(self, store: ObstoreStore, retry: RetryPolicy, *, can_sign: bool) -> None:
        self.store, self._retry, self.can_sign = store, retry, can_sign

    def _send(self, path: str, request: Callable[[Any], T], *, writing: bool = False) -> T:
        return self._repeat(lambda: self.store.call(path, request, writing=writing))

    def _repeat(self, call: Callable[[], T]) -> T:
        return call_with_retries(call, self._retry)

    def head(self, path: str) -> Found | None:
        """Return what is known of an object; ``None`` if it does not exist."""
        with contextlib.suppress(ObjectNotFoundError):
            found = self._send(path, lambda store: obstore.get(store, path, options={"head": True}))
            return _found(found.meta, found.attributes)
        return None

    def get(self, path: str) -> tuple[bytes, Found] | None:
        """Return a small object, and what is known of it; ``None`` if it does not exist."""

        def get(store: Any) -> tuple[bytes, Found]:
            found = obstore.get(store, path)
            return bytes(found.bytes()), _found(found.meta, found.attributes)

        with contextlib.suppress(ObjectNotFoundError):
            return self._send(path, get)
        return None

    def put(self, path: str, data: bytes, mode: Mode = "overwrite", metadata: Mapping[str, str] | None = None) -> str:
        """Write a small object by one request, and return its etag.

        Raises:
            ObjectExistsError, ObjectChangedError, ObjectNotFoundError: if the condition does not hold; after a lost
                response this may be due to this very request.
        """

        def put(store: Any) -> Any:
            return obstore.put(store, path, data, attributes=dict(metadata or {}), mode=mode, use_multipart=False)

        try:
            return etag_of(self._send(path, put, writing=True)["e_tag"], len(data))
        except CHANGED:
            found, tag = self.head(path), mode.get("e_tag", "") if isinstance(mode, dict) else ""
            if found is None or found.version.get("e_tag") != tag or not tag.startswith('"'):
                raise
            return self.put(path, data, {**mode, "e_tag": tag.strip('"')}, metadata)  # as Ceph 16 compares it

    def page(self, prefix: str, *, recursive: bool = True, after: str = "", limit: int = 10_000) -> Page:
        """List one page of objects, sorted."""
        return self._repeat(lambda: self.store.list_after(prefix, recursive=recursive, after=after, limit=limit))

    def pages(self, prefix: str, *, recursive: bool = True) -> Iterator[Page]:
        """List all objects, sorted."""
        after: str | None = ""
        while after is not None:
            page = self.page(prefix, recursive=recursive, after=after)
            yield page
            after = page.next_token

    def has_folder(self, folder: str) -> bool:
        """Whether there is an object in a folder."""
        return self._repeat(lambda: self.store.has_folder(folder))

    def delete(self, paths: list[str]) -> None:
        """Remove objects; a missing one is no error."""
        odd = [path for path in paths if self.store.bucket.odd.search(path) is not None]
        for path in odd:  # which obstore refuses, or takes for others
            self._repeat(partial(self.store.delete, path))
        paths = [path for path in paths if path not in odd] if odd else paths
        for at in range(0, len(paths), _DELETED):
            some = paths[at : at + _DELETED]

            def delete(store: Any, some: list[str] = some) -> None:
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(store, some)

            self._send(some[0], delete, writing=True)

    def delete_folder(self, folder: str, before_each: Callable[[], object]) -> None:
        """Remove all objects in a folder.

        Args:
            folder: with a slash at its end.
            before_each: called before each request that removes.
        """
        for page in self.pages(folder):
            paths = [one.path for one in page.entries]
            for at in range(0, len(paths), _DELETED):
                before_each()
                self.delete(paths[at : at + _DELETED])
        before_each()
        self._repeat(lambda: self.store.remove_folder(folder))  # what listings hide

    def signed_url(self, path: str, seconds: float) -> str | None:
        """Return a URL by which anyone can read an object for some time.

        Returns:
            ``None`` for a name that obstore signs in percent-encoding, which Azure does not accept.

        Raises:
            StorageError: without a key.
        """
        if split_url(self.store.url(path))[0] in AZURE and quote(path) != path:
            return None
        end = dt.timedelta(seconds=seconds)
        return self.store.call(path, lambda store: str(obstore.sign(store, "GET", path, end)))  # type: ignore[call-overload]
