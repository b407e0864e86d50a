"""Temporary objects: what has to be read again by ranges, and lies where it cannot be."""

from __future__ import annotations

from typing import NamedTuple

from ..core.options import MIB, RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import RemoteUrl
from ..storage.listing.folder import list_folder
from ..storage.registry import ObjectWriter, open_store

OBJECT_BYTES = 256 * MIB


class Kept(NamedTuple):
    """Where bytes lie: the object, and the first byte in it."""

    url: RemoteUrl
    start: int


class TemporaryObjects:
    """Bytes put one after the other into objects of a prefix of their own.

    Args:
        prefix: what the URLs of its objects begin with, and no other's.
        options: for the store.
        object_bytes: an object that has so many is followed by the next one.
    """

    def __init__(self, prefix: str, options: StorageOptions, *, object_bytes: int = OBJECT_BYTES) -> None:
        self._prefix, self._options, self._object_bytes = prefix, options, object_bytes
        self._pending: ObjectWriter | None = None
        self._url = RemoteUrl(prefix)
        self._num_bytes = self._num_objects = 0

    @property
    def used(self) -> bool:
        """Whether anything was put into it."""
        return self._num_objects > 0

    def put(self, data: bytes | memoryview) -> Kept:
        """Keep bytes. They can be read after :meth:`finish`."""
        if self._pending is not None and self._num_bytes >= self._object_bytes:
            self.finish()
        if self._pending is None:
            self._url = RemoteUrl(f"{self._prefix}{self._num_objects:06d}")
            store, path = open_store(self._url, self._options)
            self._pending, self._num_bytes = store.create(path, overwrite=True), 0
            self._num_objects += 1
        start = self._num_bytes
        self._pending.write(bytes(data))
        self._num_bytes += len(data)
        return Kept(self._url, start)

    def finish(self) -> None:
        """Make the object at hand appear."""
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                pending.commit()
            except BaseException:
                pending.abort()
                raise

    def abort(self) -> None:
        """Drop the object at hand."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.abort()

    def remove(self) -> None:
        """Remove all of its objects."""
        retry = RetryPolicy()
        for url in list(list_folder(self._prefix, recursive=True, options=self._options, retry=retry)):
            store, path = open_store(url, self._options)
            call_with_retries(lambda store=store, path=path: store.delete(path), retry)  # type: ignore[misc]
