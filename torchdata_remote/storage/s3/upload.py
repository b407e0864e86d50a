"""Writing to S3: one PUT for a small object, parts for a large one; it appears whole or not at all."""

from __future__ import annotations

import hashlib
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from ...core.options import RetryPolicy
from ...core.retry import call_with_retries
from ...errors import ObjectExistsError, ObjectNotFoundError, StorageError
from ..errors import from_status
from ..protocol import Entry, UnsupportedRequestError
from .unfinished_uploads import MultipartUploads

UPLOAD_PART_BYTES = 16 << 20  # S3 wants at least 5 MiB and at most 10,000 parts; grows with the object
_UPLOADS_IN_FLIGHT = 4

_LOOKS_FIRST = (
    "refuses If-None-Match: whether an object is there is looked up before it is written, and one that another process "
    "writes in the same moment is replaced"
)


class Bucket(Protocol):
    """What an upload needs of its store."""

    knows_conditions: bool  # on what is written: If-None-Match

    def url(self, path: str) -> str:
        """For errors."""

    def find(self, path: str) -> Entry | None:
        """The object, if it is there."""

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """One request."""

    def lacks(self, what: str, error: StorageError) -> None:
        """Warn, once, of what this store does not do."""

    @property
    def uploads(self) -> MultipartUploads:
        """Give up multipart uploads, where the store can do so."""


class S3Pending:
    """One PUT for a small object, a multipart upload for a large one: either way it appears whole or not at all."""

    def __init__(self, store: Bucket, path: str, overwrite: bool) -> None:
        self._store, self._path = store, path
        self._overwrite = overwrite
        self._retry = RetryPolicy()
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._upload_id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._parts: list[Future[str]] = []
        self._running: set[Future[str]] = set()
        self._digests: list[bytes] = []  # of the parts

    def write(self, data: bytes) -> None:
        self._buffer.append(data)
        self._buffered += len(data)
        # S3 takes 10,000 parts at most: from part 2,000 on they grow, to 144 MiB, so that 770 GB fit
        if self._buffered >= UPLOAD_PART_BYTES * max(1, len(self._parts) // 1000):
            self._upload_part()

    def _once(self, name: str, request: dict[str, Any]) -> Any:
        return self._store.request(name, self._path, writing=True, Key=self._path, **request)

    def _call(self, name: str, **request: Any) -> Any:
        return call_with_retries(lambda: self._once(name, request), self._retry)

    def _make_appear(self, etag: str, name: str, **request: Any) -> None:
        """The request that makes the object appear, where it may."""
        if not self._overwrite and self._store.knows_conditions:
            try:
                self._repeat(etag, name, {**request, "IfNoneMatch": "*"})
            except UnsupportedRequestError as error:
                self._store.knows_conditions = False
                self._store.lacks(_LOOKS_FIRST, error)
            else:
                return
        if not self._overwrite:
            self._require_absent()
        self._repeat(etag, name, request)

    def _require_absent(self) -> None:
        if call_with_retries(lambda: self._store.find(self._path), self._retry) is not None:
            raise from_status(412, "", self._store.url(self._path), writing=True)

    def _repeat(self, etag: str, name: str, request: dict[str, Any]) -> None:
        """Send a request until it is answered. If an answer is lost, the next attempt finds its own object."""
        attempts = 0

        def once() -> None:
            nonlocal attempts
            attempts += 1
            try:
                self._once(name, request)
            except (ObjectExistsError, ObjectNotFoundError):
                found = self._store.find(self._path) if attempts > 1 else None
                if found is None or found.etag is None or found.etag.strip('"') != etag:
                    raise

        call_with_retries(once, self._retry)

    def _take_buffer(self) -> bytes:
        data, self._buffer, self._buffered = b"".join(self._buffer), [], 0
        return data

    def _upload_part(self) -> None:
        if self._upload_id is None:
            self._upload_id = self._call("create_multipart_upload")["UploadId"]
            self._pool = ThreadPoolExecutor(_UPLOADS_IN_FLIGHT, thread_name_prefix="upload")
        assert self._pool is not None
        if len(self._running) >= _UPLOADS_IN_FLIGHT:
            done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
            for part in done:
                part.result()
        data = self._take_buffer()
        self._digests.append(hashlib.md5(data, usedforsecurity=False).digest())
        self._parts.append(self._pool.submit(self._send_part, len(self._parts) + 1, data))
        self._running.add(self._parts[-1])

    def _send_part(self, number: int, data: bytes) -> str:
        answer = self._call("upload_part", UploadId=self._upload_id, PartNumber=number, Body=data)
        return str(answer["ETag"])

    def commit(self) -> None:
        if self._upload_id is None:
            body = self._take_buffer()
            digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
            self._make_appear(digest, "put_object", Body=body, ContentLength=len(body))
            return
        if self._buffer:
            self._upload_part()
        parts = [{"PartNumber": n, "ETag": part.result()} for n, part in enumerate(self._parts, 1)]
        if not self._overwrite:
            self._require_absent()  # not every store honours the condition on this request
        self._make_appear(
            f"{hashlib.md5(b''.join(self._digests), usedforsecurity=False).hexdigest()}-{len(parts)}",
            "complete_multipart_upload",
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
        )
        self._upload_id = None
        self._end_pool()

    def abort(self) -> None:
        self._buffer = []
        self._end_pool()
        if self._upload_id is not None:
            upload_id, self._upload_id = self._upload_id, None
            call_with_retries(lambda: self._store.uploads.abort(self._path, upload_id), self._retry)

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
