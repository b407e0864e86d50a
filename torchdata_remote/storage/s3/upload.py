"""Write to S3: one PUT for a small object, a multipart upload for a large one."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple, Protocol

from ...core.retry import call_with_retries
from ...errors import StorageError
from ..errors import from_status
from ..multipart import SLOW_BYTES_PER_S, MultipartWriter, make_visible
from ..protocol import Entry, UnsupportedRequestError
from .unfinished_uploads import MultipartUploads

_CHECKS_BEFORE_WRITING = (
    "refuses If-None-Match: whether an object exists is checked before it is written, and one that another process "
    "writes at the same moment is replaced"
)


class Bucket(Protocol):
    """What an upload needs of its store."""

    supports_conditional_writes: bool  # whether it honours If-None-Match on writes

    def url(self, path: str) -> str:
        """URL of an object, for errors."""

    def find(self, path: str) -> Entry | None:
        """The object, if it exists."""

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """Send one request."""

    def warn_unsupported(self, what: str, error: StorageError) -> None:
        """Warn, once, of a feature that this store lacks."""

    @property
    def uploads(self) -> MultipartUploads:
        """List and abort multipart uploads."""


class _UploadedPart(NamedTuple):
    etag: str
    md5: bytes


def _md5(data: bytes | bytearray) -> Any:
    return hashlib.md5(data, usedforsecurity=False)


class S3Writer(MultipartWriter[_UploadedPart]):
    """An object that is being written to S3.

    Args:
        store: sends the requests.
        path: of the object.
        overwrite: whether an existing object is replaced.
    """

    def __init__(self, store: Bucket, path: str, *, overwrite: bool) -> None:
        super().__init__()
        self._store, self._path, self._overwrite = store, path, overwrite

    def _send(self, name: str, request: dict[str, Any]) -> Any:
        return self._store.request(name, self._path, writing=True, Key=self._path, **request)

    def _call(self, name: str, **request: Any) -> Any:
        return call_with_retries(
            lambda: self._send(name, request),
            self._retry,
            url=self._store.url(self._path),
            expected_s=len(request.get("Body", b"")) / SLOW_BYTES_PER_S,
        )

    def _put(self, data: bytearray) -> None:
        self._publish(_md5(data).hexdigest(), "put_object", Body=data, ContentLength=len(data))

    def _start_upload(self) -> str:
        return str(self._call("create_multipart_upload")["UploadId"])

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> _UploadedPart:
        digest = _md5(data).digest()
        response = self._call("upload_part", UploadId=upload_id, PartNumber=number, Body=data)
        return _UploadedPart(str(response["ETag"]), digest)

    def _complete(self, upload_id: str) -> None:
        if self._buffer:
            self._submit_part()
        parts = self._wait_for_parts()
        self._publish(
            f"{_md5(b''.join(part.md5 for part in parts)).hexdigest()}-{len(parts)}",
            "complete_multipart_upload",
            UploadId=upload_id,
            MultipartUpload={"Parts": [{"PartNumber": n, "ETag": part.etag} for n, part in enumerate(parts, 1)]},
        )

    def _discard(self, upload_id: str) -> None:
        call_with_retries(
            lambda: self._store.uploads.abort(self._path, upload_id), self._retry, url=self._store.url(self._path)
        )

    def _publish(self, etag: str, name: str, **request: Any) -> None:
        """Send the request that makes the object visible, on condition that none exists if need be."""
        if not self._overwrite:
            self._require_absent()  # some stores ignore the condition, and send no error
        if not self._overwrite and self._store.supports_conditional_writes:
            try:
                self._make_visible(etag, name, {**request, "IfNoneMatch": "*"})
            except UnsupportedRequestError as error:
                self._store.supports_conditional_writes = False
                self._store.warn_unsupported(_CHECKS_BEFORE_WRITING, error)
            else:
                return
        if not self._overwrite:
            self._require_absent()
        self._make_visible(etag, name, request)

    def _make_visible(self, etag: str, name: str, request: dict[str, Any]) -> None:
        def is_visible() -> bool:
            existing = self._store.find(self._path)
            return existing is not None and existing.etag is not None and existing.etag.strip('"') == etag

        make_visible(
            lambda: self._send(name, request),
            is_visible,
            self._retry,
            url=self._store.url(self._path),
            num_bytes=len(request.get("Body", b"")),
        )

    def _require_absent(self) -> None:
        if (
            call_with_retries(lambda: self._store.find(self._path), self._retry, url=self._store.url(self._path))
            is not None
        ):
            raise from_status(412, "", self._store.url(self._path), writing=True)
