"""Write by obstore: one PUT for a small object; a large one in parts under a hidden name, which is then copied.

A condition and parts exclude each other in obstore, but a copy may have one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import obstore

from ..core.retry import call_with_retries
from ..errors import AccessDeniedError, ExpiredCredentialsError, StorageError
from .multipart import MAX_PARTS_IN_FLIGHT, UPLOAD_PART_BYTES, WRITER_ID, ConditionalWriter
from .obstore_store import ObstoreStore, partial_path

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_CANNOT_DELETE = (
    "does not let these credentials delete objects (storage.objects.delete): a second copy of each large object that "
    "was written without overwrite=True stays stored, omitted by listings of this package, and billed"
)


class HiddenWriter(ConditionalWriter[Any]):
    """An object that is being written: a small one by one request, a large one under a hidden name, and then copied.

    Args:
        store: sends the requests.
        path: of the object.
        overwrite: whether an existing object is replaced; a large one is then written under its own name.
    """

    _file: Any = None  # obstore's stream of a large object
    _hidden = ""
    _may_be_hidden = False  # whether the store may have an object of that name

    def __init__(self, store: ObstoreStore, path: str, *, overwrite: bool) -> None:
        super().__init__(store, path, overwrite=overwrite)
        self._store = store

    def _put(self, data: bytearray) -> None:
        def put(store: ObjectStore, mode: Literal["create", "overwrite"]) -> None:
            about = {WRITER_ID: self._id}
            self._check(
                obstore.put(store, self._path, bytes(data), attributes=about, mode=mode, use_multipart=False), data
            )

        self._publish(
            lambda is_new: self._send(lambda store: put(store, "create" if is_new else "overwrite")), len(data)
        )

    def _check(self, made: Any, data: bytearray) -> None:
        """Compare what the store answers with what was sent."""

    def _send(self, request: Callable[[ObjectStore], Any], *, may_repeat: bool = True) -> Any:
        return self._store.call(self._path, request, writing=True, may_repeat=may_repeat)

    def _start_upload(self) -> str:
        self._hidden = self._path if self._overwrite else partial_path(self._path, self._id)

        def start(_: ObjectStore) -> Any:
            sizes: Any = {"buffer_size": UPLOAD_PART_BYTES, "max_concurrency": MAX_PARTS_IN_FLIGHT}
            store = self._store.connect_with_retries()
            return obstore.open_writer(store, self._hidden, attributes={WRITER_ID: self._id}, **sizes)

        self._file = self._send(start)
        return self._hidden

    def _submit_part(self) -> None:
        if self._upload_id is None:
            self._upload_id = self._start_upload()
        self._send_part(self._upload_id, 0, 0, self._take_buffer())

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> None:
        self._send(lambda _: self._file.write(bytes(data)), may_repeat=False)

    def _complete(self, upload_id: str) -> None:
        self._submit_part()
        self._may_be_hidden = not self._overwrite
        file, self._file = self._file, None
        try:
            self._send(lambda _: file.close(), may_repeat=False)
        except StorageError:
            if not call_with_retries(lambda: self._is_own(self._hidden), self._retry, url=self._url):
                raise
        if self._may_be_hidden:
            self._require_absent()
            self._make_visible(
                lambda: self._send(lambda store: obstore.copy(store, self._hidden, self._path, overwrite=False))
            )
            self._delete_hidden()

    def _discard(self, upload_id: str) -> None:
        if self._file is not None:
            self._file.__exit__(ValueError, ValueError(), None)  # which aborts the upload
            self._file = None
        self._delete_hidden()

    def _delete_hidden(self) -> None:
        if self._may_be_hidden:
            try:
                call_with_retries(lambda: self._store.delete(self._hidden), self._retry, url=self._url)
            except ExpiredCredentialsError:
                raise
            except AccessDeniedError as error:
                self._store.warn_once(_CANNOT_DELETE, error)
            self._may_be_hidden = False
