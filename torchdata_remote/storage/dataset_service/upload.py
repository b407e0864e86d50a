"""Write to a dataset service: one PUT for a small file, several for a large one."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...errors import ObjectExistsError, ObjectNotFoundError, StorageError
from ..multipart import MultipartWriter

if TYPE_CHECKING:
    from .store import DatasetsStore

T = TypeVar("T")


class DatasetsWriter(MultipartWriter[None]):
    """A file that is being written. A missing dataset is created when the first bytes are sent.

    Args:
        store: of the file.
        path: ``NAME/PATH``.
        overwrite: whether an existing file is replaced.
    """

    def __init__(self, store: DatasetsStore, path: str, *, overwrite: bool) -> None:
        super().__init__(store.url(path))
        self._store, self._path, self._overwrite = store, path, overwrite
        self._sha256 = hashlib.sha256()

    def _take_buffer(self) -> bytearray:
        data = super()._take_buffer()
        self._sha256.update(data)
        return data

    def _put(self, data: bytearray) -> None:
        self._make_visible(data, None)

    def _start_upload(self) -> str:
        return secrets.token_urlsafe(16)

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> None:
        def send() -> object:
            return self._store.put(self._path, data, len(data), part=(upload_id, start, None))

        self._repeat(lambda: self._in_dataset(send), len(data))

    def _complete(self, upload_id: str) -> None:
        start, data = self._sent_bytes, self._take_buffer()
        self._wait_for_parts()
        self._make_visible(data, (upload_id, start, self._sent_bytes))

    def _discard(self, upload_id: str) -> None:
        self._repeat(lambda: self._store.abort_upload(self._path, upload_id))

    def _in_dataset(self, send: Callable[[], T]) -> T:
        """Call ``send``; if the dataset does not exist, create it and call again."""
        try:
            return send()
        except ObjectNotFoundError:
            self._store.create_dataset(self._path.partition("/")[0])
            return send()

    def _make_visible(self, data: bytearray, part: tuple[str, int, int | None] | None) -> None:
        """Send the request that makes the file visible, and retry it.

        If the response to an earlier attempt was lost, the file may be visible already: a retry then succeeds, rather
        than to start a new upload, or to report that the file exists.
        """
        sha256, is_first = self._sha256.hexdigest(), True

        def is_visible() -> bool:
            return self._store.sha256_of(self._path) == sha256

        def send() -> str | None:
            return self._store.put(self._path, data, len(data), sha256=sha256, overwrite=self._overwrite, part=part)

        def attempt() -> None:
            nonlocal is_first
            was_first, is_first = is_first, False
            if not was_first and is_visible():
                return
            try:
                etag = self._in_dataset(send)
            except (ObjectExistsError, ObjectNotFoundError):
                if was_first or not is_visible():
                    raise
            else:
                if etag is None:
                    what = "the service has lost parts of the upload, or it was ended by another client"
                    raise StorageError(f"{self._url}: {what}. Write the file again.", url=self._url)

        self._repeat(attempt, len(data))
