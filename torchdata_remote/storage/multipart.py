"""Upload an object: a small one in one request, a large one in parts, several at a time."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from ..core.notices import host_of, say
from ..core.options import RetryPolicy
from ..core.retry import call_with_retries
from ..errors import AccessDeniedError, ObjectExistsError, ObjectNotFoundError
from .errors import from_status
from .protocol import UnsupportedRequestError

T = TypeVar("T")
PartT = TypeVar("PartT")
WRITER_ID = "torchdataremoteupload"  # name of the metadata; Azure allows no hyphens, and nginx drops underscores
_CHECKS_BEFORE_WRITING = (
    "refuses If-None-Match: whether an object exists is checked before it is written, and one that another process "
    "writes at the same moment is replaced"
)
UPLOAD_PART_BYTES = 16 << 20  # S3 requires at least 5 MiB, and accepts 10,000 parts: of 156 GiB
MAX_PARTS_IN_FLIGHT = 4
SLOW_BYTES_PER_S = 1 << 20  # of one request: an upload that is faster is not reported as slow


class MultipartWriter(ABC, Generic[PartT]):
    """An :class:`ObjectWriter` that buffers one part and uploads up to four others in threads.

    The object becomes visible as a whole, in ``commit``, or not at all. Subclasses send the requests; each of their
    methods retries transient faults by itself.

    Args:
        url: of the object, for errors.
    """

    def __init__(self, url: str) -> None:
        self._url, self._retry = url, RetryPolicy()
        self._buffer = bytearray()
        self._sent_bytes = 0
        self._upload_id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[Future[PartT]] = []

    @abstractmethod
    def _put(self, data: bytearray) -> None:
        """Store a small object in one request."""

    @abstractmethod
    def _start_upload(self) -> str:
        """Start a multipart upload, and return its ID."""

    @abstractmethod
    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> PartT:
        """Upload a part. Called in several threads.

        Args:
            upload_id: from :meth:`_start_upload`.
            number: of the part, from 1.
            start: the object's byte at which the part starts.
            data: its bytes.
        """

    @abstractmethod
    def _complete(self, upload_id: str) -> None:
        """Send the last part, which is still in the buffer, and make the object visible."""

    @abstractmethod
    def _discard(self, upload_id: str) -> None:
        """Delete the parts of an upload that is not completed."""

    def write(self, data: bytes) -> None:
        view = memoryview(data).cast("B")
        while view:
            if len(self._buffer) == UPLOAD_PART_BYTES:  # kept until more bytes arrive: ``commit`` has a last part
                self._submit_part()
                continue
            room = UPLOAD_PART_BYTES - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]

    def commit(self) -> None:
        if self._upload_id is None:
            self._put(self._take_buffer())
            return
        self._complete(self._upload_id)
        self._upload_id = None
        self._stop_threads()

    def abort(self) -> None:
        self._buffer = bytearray()
        self._stop_threads()
        if self._upload_id is not None:
            upload_id, self._upload_id = self._upload_id, None
            self._discard(upload_id)

    def _take_buffer(self) -> bytearray:
        data, self._buffer = self._buffer, bytearray()
        self._sent_bytes += len(data)
        return data

    def _submit_part(self) -> None:
        """Upload the buffer in a thread, when the part four parts before it is stored.

        Raises:
            StorageError: if an earlier part failed.
        """
        if self._upload_id is None:
            self._upload_id = self._start_upload()
            self._pool = ThreadPoolExecutor(MAX_PARTS_IN_FLIGHT, thread_name_prefix="upload")
        assert self._pool is not None
        if len(self._parts) >= MAX_PARTS_IN_FLIGHT:
            self._parts[-MAX_PARTS_IN_FLIGHT].result()
        start, data = self._sent_bytes, self._take_buffer()
        self._parts.append(self._pool.submit(self._send_part, self._upload_id, len(self._parts) + 1, start, data))

    def _wait_for_parts(self) -> list[PartT]:
        """What :meth:`_send_part` returned for each part, in order."""
        return [part.result() for part in self._parts]

    def _repeat(self, send: Callable[[], T], num_bytes: int = 0) -> T:
        """Call, and again after transient faults."""
        return call_with_retries(send, self._retry, url=self._url, expected_s=num_bytes / SLOW_BYTES_PER_S)

    def _stop_threads(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class ConditionalWriter(MultipartWriter[PartT]):
    """An object that is being written on condition that none exists, unless it may be replaced.

    It carries the id of its writer as metadata. By that a writer recognises its own object after a response was lost.

    Args:
        store: of the object. It has ``url``, ``find``, ``attributes`` (those that an object is stored with), and
            ``supports_conditional_writes``, which is cleared where it refuses If-None-Match.
        path: of the object.
        overwrite: whether an existing object is replaced.
    """

    def __init__(self, store: Any, path: str, *, overwrite: bool) -> None:
        super().__init__(store.url(path))
        self._target, self._path, self._overwrite, self._id = store, path, overwrite, uuid.uuid4().hex

    def _publish(self, send: Callable[[bool], Any], num_bytes: int) -> None:
        """Send the request that makes the object visible, on condition that none exists if need be."""
        if not self._overwrite:
            self._require_absent()  # some stores ignore the condition, and send no error
        if not self._overwrite and self._target.supports_conditional_writes:
            try:
                self._make_visible(lambda: send(True), num_bytes)
            except UnsupportedRequestError as error:
                self._target.supports_conditional_writes = False
                say("no conditions", self._url, f"{host_of(self._url)} {_CHECKS_BEFORE_WRITING} ({error})")
                self._require_absent()
            else:
                return
        self._make_visible(lambda: send(False), num_bytes)

    def _make_visible(self, send: Callable[[], Any], num_bytes: int = 0) -> None:
        """Send the request. A refusal may be due to the own object: libraries, too, send again what they have sent."""

        def attempt() -> None:
            try:
                send()
            except (ObjectExistsError, ObjectNotFoundError):
                if not self._is_own(self._path):
                    raise

        self._repeat(attempt, num_bytes)

    def _is_own(self, path: str) -> bool:
        """Whether the object of this name is the one of this writer."""
        try:
            return bool(self._target.attributes(path).get(WRITER_ID) == self._id)
        except (ObjectNotFoundError, AccessDeniedError):  # a writer may have no right to read
            return False

    def _require_absent(self) -> None:
        if self._repeat(lambda: self._target.find(self._path)) is not None:
            raise from_status(412, "", self._url, writing=True)
