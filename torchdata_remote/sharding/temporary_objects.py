"""Store bytes in temporary objects, so that they can be read by ranges."""

from __future__ import annotations

from typing import NamedTuple

from ..core.options import MIB, RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import RemoteUrl
from ..storage import ObjectWriter, list_folder, open_store

OBJECT_BYTES = 256 * MIB


class Kept(NamedTuple):
    """Location of stored bytes: the object, and the first byte in it."""

    url: RemoteUrl
    start: int


class TemporaryObjects:
    """Appends bytes to numbered objects under a prefix.

    Args:
        prefix: of the objects' URLs; no other object may begin with it.
        options: for the store.
        object_bytes: size at which the next object is started.
    """

    def __init__(self, prefix: str, options: StorageOptions, *, object_bytes: int = OBJECT_BYTES) -> None:
        self._prefix, self._options, self._object_bytes = prefix, options, object_bytes
        self._writer: ObjectWriter | None = None
        self._url = RemoteUrl(prefix)
        self._num_bytes = self._num_objects = 0

    @property
    def used(self) -> bool:
        """Whether anything was stored."""
        return self._num_objects > 0

    def put(self, data: bytes | memoryview) -> Kept:
        """Store bytes. They can be read after :meth:`finish`."""
        if self._writer is not None and self._num_bytes >= self._object_bytes:
            self.finish()
        if self._writer is None:
            self._url = RemoteUrl(f"{self._prefix}{self._num_objects:06d}")
            store, path = open_store(self._url, self._options)
            self._writer, self._num_bytes = store.create(path, overwrite=True), 0
            self._num_objects += 1
        start = self._num_bytes
        self._writer.write(bytes(data))
        self._num_bytes += len(data)
        return Kept(self._url, start)

    def finish(self) -> None:
        """Publish the open object."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.commit()
            except BaseException:
                writer.abort()
                raise

    def abort(self) -> None:
        """Drop the open object."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()

    def remove(self) -> None:
        """Remove all objects under the prefix."""
        retry = RetryPolicy()
        for url in list(list_folder(self._prefix, recursive=True, options=self._options, retry=retry)):
            store, path = open_store(url, self._options)
            call_with_retries(lambda store=store, path=path: store.delete(path), retry, url=url)  # type: ignore[misc]
