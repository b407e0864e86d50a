"""Write a file to a dataset service: one PUT for a small file, several for a large one, which can be resumed."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.options import RetryPolicy
from ...core.retry import call_with_retries
from ...errors import ObjectExistsError, ObjectNotFoundError, StorageError
from .protocol import DAMAGED

if TYPE_CHECKING:
    from .store import DatasetsStore

T = TypeVar("T")
REQUEST_BYTES = 64 << 20  # a larger file is sent by several requests
_PIECE_BYTES = 1 << 20


def send_file(
    store: DatasetsStore,
    path: str,
    size: int,
    sha256: str,
    pieces: Callable[[int, int], Iterable[memoryview]],
    request: Callable[..., Any],
    *,
    overwrite: bool = True,
    count: Callable[..., object] = lambda **_: None,
) -> None:
    """Send what the service lacks of a file.

    Args:
        store: of the file.
        path: ``NAME/PATH``.
        size: in bytes.
        sha256: in hex; the service compares it.
        pieces: return bytes ``start`` to ``end``.
        request: calls a function, and again after transient faults; takes the number of bytes that it sends.
        overwrite: whether an existing file is replaced.
        count: called with ``existing_bytes`` or ``num_bytes``.

    Raises:
        ObjectNotFoundError: if the dataset does not exist.
        ObjectExistsError: if the file exists and ``overwrite`` is ``False``.
        StorageError: if it was not stored.
    """
    starts, upload = range(0, max(1, size), REQUEST_BYTES), None
    missing, is_complete = list(starts), False
    if len(starts) > 1:  # the identifier depends on the file only
        upload = hashlib.sha256(f"{path}\n{sha256}\n{size} {REQUEST_BYTES}".encode()).hexdigest()[:32]
        there = request(partial(store.received, path, upload), 0)
        # A repeated part makes the service check whether all parts are there
        missing = [start for start in starts if not any(first <= start < end for first, end in there)] or [0]
        count(existing_bytes=size - sum(min(REQUEST_BYTES, size - start) for start in missing))

    def send(start: int) -> bool:
        end, num_attempts = min(size, start + REQUEST_BYTES), 0

        def put() -> bool:
            nonlocal num_attempts
            num_attempts += 1
            part = None if upload is None else (upload, start, size)
            try:
                return store.put(path, pieces(start, end), end - start, sha256=sha256, overwrite=overwrite, part=part)
            except ObjectExistsError:  # maybe by an attempt whose response was lost
                if num_attempts == 1 or store.sha256_of(path) != sha256:
                    raise
                return True

        try:
            is_last = request(put, end - start)
        except StorageError as error:
            if DAMAGED not in str(error):
                raise
            is_last = request(put, end - start)
        count(num_bytes=end - start)
        return bool(is_last)

    for start in missing:
        is_complete = send(start) or is_complete
    if is_complete:
        return
    # A response was lost, or another program has sent the rest: a repeated part has begun the upload again
    if request(partial(store.sha256_of, path), 0) != sha256:
        what = "all parts were sent, and the file was not created. Does another program send it, too?"
        raise StorageError(f"{store.url(path)}: {what}", url=store.url(path))
    request(partial(store.abort_upload, path, upload or ""), 0)


class DatasetsWriter:
    """A file that is being written: to a temporary file, which is sent when it is complete.

    Args:
        store: of the file.
        path: ``NAME/PATH``.
        overwrite: whether an existing file is replaced.
    """

    def __init__(self, store: DatasetsStore, path: str, *, overwrite: bool) -> None:
        self._store, self._path, self._overwrite = store, path, overwrite
        self._file, self._sha256 = tempfile.TemporaryFile(), hashlib.sha256()  # noqa: SIM115  # closed by ``abort``

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha256.update(data)

    def commit(self) -> None:
        file, url = self._file, self._store.url(self._path)

        def pieces(start: int, end: int) -> Iterable[memoryview]:
            file.seek(start)
            while start < end and (data := file.read(min(_PIECE_BYTES, end - start))):
                start += len(data)
                yield memoryview(data)

        def request(call: Callable[[], T], num_bytes: int) -> T:
            return call_with_retries(call, RetryPolicy(), url=url, expected_s=num_bytes / _PIECE_BYTES)

        size, sha256 = file.tell(), self._sha256.hexdigest()
        send = partial(send_file, self._store, self._path, size, sha256, pieces, request, overwrite=self._overwrite)
        try:
            send()
        except ObjectNotFoundError:  # the dataset is missing
            self._store.create_dataset(self._path.partition("/")[0])
            send()
        self.abort()

    def abort(self) -> None:
        self._file.close()
