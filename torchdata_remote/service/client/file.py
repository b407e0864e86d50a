"""File objects of the fsspec filesystem."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from functools import partial
from typing import Any

from fsspec.spec import AbstractBufferedFile

from ...core.options import RetryPolicy
from ...core.retry import call_with_retries
from ...errors import TransientStorageError
from ...storage import ObjectWriter, RangeNotSatisfiableError, Store

READ_BYTES = 32 << 20  # of one request
_RETRY = RetryPolicy()
_log = logging.getLogger("torchdata_remote")


def _once(store: Store, path: str, start: int, end: int, etag: str | None) -> tuple[bytes, int, str | None]:
    """Read a range and check it; return its bytes, the size of the file, and its etag."""
    with store.read(path, start, end, etag) as answer:
        expected = (start, min(end, answer.total_bytes), etag or answer.etag)
        if (answer.start, answer.end, answer.etag) != expected:
            raise TransientStorageError(
                f"{path}: requested {start:,} to {end:,} of {etag}, received {answer.start:,} to {answer.end:,} of "
                f"{answer.total_bytes:,} of {answer.etag}."
            )
        return answer.whole(), answer.total_bytes, answer.etag


def read_checked(store: Store, path: str, start: int, end: int | None, etag: str | None = None) -> bytes:
    """Read bytes ``start`` to ``end`` (``None``: the rest) of one version, in requests of bounded size.

    Raises:
        ObjectChangedError: if the version is not ``etag``, or is replaced meanwhile.
    """
    pieces: list[bytes] = []
    while end is None or start < end:
        stop = start + READ_BYTES if end is None else min(end, start + READ_BYTES)
        try:
            data, total_bytes, etag = call_with_retries(partial(_once, store, path, start, stop, etag), _RETRY)
        except RangeNotSatisfiableError:  # the file ends before ``start``, or is empty
            break
        pieces.append(data)
        start, end = start + len(data), total_bytes if end is None else min(end, total_bytes)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class ReadFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec carries no types
    """A file that is read by ranges, all of the version that existed when it was opened."""

    def __init__(self, store: Store, inside: str, *arguments: Any, **options: Any) -> None:
        self._store, self._inside = store, inside
        super().__init__(*arguments, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return read_checked(self._store, self._inside, start, end, self.details["etag"])

    def __reduce__(self) -> Any:
        return _reopened, (self.fs, self.path, self.blocksize, self.tell())


def _reopened(fs: Any, path: str, block_size: int, position: int) -> Any:
    file = fs.open(path, "rb", block_size=block_size)
    file.seek(position)
    return file


class WrittenFile(io.RawIOBase):
    """A file that is open for writing. Closing it publishes it, unless an exception is the reason.

    ``fsspec.open`` and text wrappers close their files without the reason. So the exception that is being handled is
    compared with the one at the time of opening.

    Args:
        pending: receives the bytes.
        name: of the file, for messages.
        autocommit: whether closing publishes it; otherwise ``commit`` does (fsspec's transactions).
    """

    def __init__(self, pending: ObjectWriter, name: str, *, autocommit: bool) -> None:
        super().__init__()
        self._pending, self.path, self._autocommit = pending, name, autocommit
        self._before = sys.exc_info()[1]
        self._num_written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._num_written

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError(f"{self.path} is closed.")
        with memoryview(data) as view:
            self._pending.write(view.tobytes())
            self._num_written += view.nbytes
            return view.nbytes

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        now = sys.exc_info()[1]
        if now is not None and now is not self._before:
            _log.warning("%s is not published: it was closed while a %s was handled", self.path, type(now).__name__)
            self.discard()
        elif self._autocommit:
            self.commit()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def commit(self) -> None:
        """Publish the file."""
        try:
            self._pending.commit()
        except BaseException:
            self._pending.abort()
            raise

    def discard(self) -> None:
        """Discard what was written."""
        super().close()
        self._pending.abort()

    def __del__(self) -> None:
        if not self.closed:  # lost without a close, so it may be incomplete
            _log.warning("%s is not published: it was never closed", self.path)
            with contextlib.suppress(Exception):
                self.discard()
