"""S3: listing, stat and writing by botocore; reading by obstore where it can, by botocore where it cannot."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from ..errors import ObjectExistsError, ObjectNotFoundError, TransientStorageError
from ..options import RetryPolicy
from ..retry import call_with_retries
from . import _obstore
from ._errors import from_botocore, from_status, translated
from ._protocol import Blob, Entry, Page
from ._s3_settings import S3Settings, make_client

UPLOAD_PART_BYTES = 16 << 20  # S3 wants at least 5 MiB and at most 10,000 parts; grows with the object
_UPLOADS_IN_FLIGHT = 4


class S3Store:
    """One bucket.

    Args:
        bucket: its name.
        settings: endpoint, region, credentials.
        read_by_obstore: whether obstore may carry the data.
    """

    may_ignore_ranges = False

    def __init__(self, bucket: str, settings: S3Settings, *, read_by_obstore: bool) -> None:
        self._bucket = bucket
        self._settings = settings
        self._read_by_obstore = read_by_obstore
        self._session, self.client = make_client(settings, f"s3://{bucket}")
        self._obstore: Any = None  # made when something is read: a parent that only lists stays safe to fork
        self._lock = threading.Lock()

    def url(self, path: str) -> str:
        return f"s3://{self._bucket}/{path}"

    def errors_of(self, path: str, *, writing: bool = False) -> contextlib.AbstractContextManager[None]:
        """Turn what botocore raises into the errors of this package."""
        return translated(from_botocore, self.url(path), writing=writing)

    def list_page(self, prefix: str, *, recursive: bool, token: str | None) -> Page:
        return self._page(prefix, token, {} if recursive else {"Delimiter": "/"})

    def _page(self, prefix: str, token: str | None, extra: dict[str, Any]) -> Page:
        if token is not None:
            extra = {**extra, "ContinuationToken": token}
        with self.errors_of(prefix):
            answer = self.client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **extra)
        entries = [
            Entry(found["Key"], int(found["Size"]), found.get("ETag"))
            for found in answer.get("Contents", ())
            if not (found["Key"].endswith("/") and found["Size"] == 0)  # a folder's marker
        ]
        return Page(entries, answer.get("NextContinuationToken") if answer.get("IsTruncated") else None)

    def find(self, path: str) -> Entry | None:
        # A key sorts before all that it is a prefix of, so it comes first if it is there.
        for entry in self._page(path, None, {"MaxKeys": 1}).entries:
            if entry.path == path:
                return entry
        return None

    def stat(self, path: str) -> Entry:
        with self.errors_of(path):
            answer = self.client.head_object(Bucket=self._bucket, Key=path)
        return Entry(path, int(answer["ContentLength"]), answer.get("ETag"))

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Blob:
        if self._read_by_obstore and _obstore.can_express(path):
            return self._reader().read(path, start, end, etag)
        request: dict[str, Any] = {"Bucket": self._bucket, "Key": path}
        if end is not None:
            request["Range"] = f"bytes={start}-{end - 1}"
        if etag is not None:
            request["IfMatch"] = etag
        with self.errors_of(path):
            answer = self.client.get_object(**request)
            with contextlib.closing(answer["Body"]) as body:
                data = body.read()
        length, content_range = int(answer["ContentLength"]), answer.get("ContentRange")
        total = int(content_range.rpartition("/")[2]) if content_range else length
        expected = total if end is None else max(0, min(end, total) - start)
        right_place = content_range is None or content_range.startswith(f"bytes {start}-")
        if len(data) != length or length != expected or not right_place:
            raise TransientStorageError(
                f"{self.url(path)}: asked for bytes {start:,} to {expected + start:,}, got {len(data):,} bytes "
                f"(Content-Range {content_range!r}, Content-Length {length:,}).",
                url=self.url(path),
            )
        return Blob(memoryview(data), total, answer.get("ETag"))

    def _reader(self) -> _obstore.ObstoreReader:
        with self._lock:
            if self._obstore is None:
                self._obstore = _obstore.s3_reader(self._bucket, self._settings, self._session, self.client)
            reader: _obstore.ObstoreReader = self._obstore
            return reader

    def create(self, path: str, *, overwrite: bool) -> S3Pending:
        return S3Pending(self, self._bucket, path, overwrite)

    def delete(self, path: str) -> None:
        with self.errors_of(path):
            self.client.delete_object(Bucket=self._bucket, Key=path)


class S3Pending:
    """One PUT for a small object, a multipart upload for a large one: either way it appears whole or not at all."""

    def __init__(self, store: S3Store, bucket: str, path: str, overwrite: bool) -> None:
        self._store, self._bucket, self._path = store, bucket, path
        self._unless_there: dict[str, str] = {} if overwrite else {"IfNoneMatch": "*"}
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
        with self._store.errors_of(self._path, writing=True):
            return getattr(self._store.client, name)(Bucket=self._bucket, Key=self._path, **request)

    def _call(self, name: str, **request: Any) -> Any:
        return call_with_retries(lambda: self._once(name, request), self._retry)

    def _make_appear(self, etag: str, name: str, **request: Any) -> None:
        """The request that makes the object appear. If its answer is lost, the next attempt finds its own object."""
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
            self._make_appear(digest, "put_object", Body=body, ContentLength=len(body), **self._unless_there)
            return
        if self._buffer:
            self._upload_part()
        parts = [{"PartNumber": n, "ETag": part.result()} for n, part in enumerate(self._parts, 1)]
        if self._unless_there and self._store.find(self._path) is not None:
            # Not every store honours the condition on this request, so it is asked beforehand as well.
            raise from_status(412, "", self._store.url(self._path), writing=True)
        self._make_appear(
            f"{hashlib.md5(b''.join(self._digests), usedforsecurity=False).hexdigest()}-{len(parts)}",
            "complete_multipart_upload",
            UploadId=self._upload_id,
            MultipartUpload={"Parts": parts},
            **self._unless_there,
        )
        self._upload_id = None
        self._end_pool()

    def abort(self) -> None:
        self._buffer = []
        self._end_pool()
        if self._upload_id is not None:
            upload_id, self._upload_id = self._upload_id, None
            self._call("abort_multipart_upload", UploadId=upload_id)

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
