"""Write to S3: one PUT for a small object, a multipart upload for a large one."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple, Protocol

from ...core.retry import call_with_retries
from ...errors import AccessDeniedError, StorageError
from ..errors import from_status
from ..multipart import SLOW_BYTES_PER_S, MultipartWriter, make_visible
from ..protocol import Answer, Entry, RangeNotSatisfiableError, UnsupportedRequestError
from .unfinished_uploads import MultipartUploads
from .upload_response import require_response

_CHECKS_BEFORE_WRITING = (
    "refuses If-None-Match: whether an object exists is checked before it is written, and one that another process "
    "writes at the same moment is replaced"
)

_PART_CHECKSUM = re.compile("Checksum(?!Type).+")


class Bucket(Protocol):
    """What an upload needs of its store."""

    supports_conditional_writes: bool  # whether it honours If-None-Match on writes
    has_md5_etags: bool  # whether the etag of an object that is not encrypted is made of MD5

    def url(self, path: str) -> str:
        """URL of an object, for errors."""

    def find(self, path: str) -> Entry | None:
        """The object, if it exists."""

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read an object."""

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
    num_bytes: int
    checksums: dict[str, str]  # which the store expects again at the end, if the upload has any


class _Content(NamedTuple):
    """What an object should contain.

    Args:
        etag: if it is made of MD5; ``None`` if the store has shown that it is not.
        parts: length and MD5 of each.
    """

    etag: str | None
    parts: list[tuple[int, bytes]]

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes for num_bytes, _ in self.parts)


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
        response = self._store.request(name, self._path, writing=True, Key=self._path, **request)
        return require_response(name, response, self._store.url(self._path))

    def _call(self, name: str, **request: Any) -> Any:
        return call_with_retries(
            lambda: self._send(name, request),
            self._retry,
            url=self._store.url(self._path),
            expected_s=len(request.get("Body", b"")) / SLOW_BYTES_PER_S,
        )

    def _put(self, data: bytearray) -> None:
        digest = _md5(data)
        content = _Content(digest.hexdigest(), [(len(data), digest.digest())])
        self._publish(content, "put_object", Body=data, ContentLength=len(data))

    def _start_upload(self) -> str:
        return str(self._call("create_multipart_upload")["UploadId"])

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> _UploadedPart:
        digest = _md5(data).digest()
        response = self._call("upload_part", UploadId=upload_id, PartNumber=number, Body=data)
        checksums = {name: str(value) for name, value in response.items() if _PART_CHECKSUM.fullmatch(name)}
        return _UploadedPart(str(response["ETag"]), digest, len(data), checksums)

    def _complete(self, upload_id: str) -> None:
        if self._buffer:
            self._submit_part()
        parts = self._wait_for_parts()
        are_md5 = all(part.etag.strip('"') == part.md5.hex() for part in parts)
        etag = f"{_md5(b''.join(part.md5 for part in parts)).hexdigest()}-{len(parts)}" if are_md5 else None
        self._publish(
            _Content(etag, [(part.num_bytes, part.md5) for part in parts]),
            "complete_multipart_upload",
            UploadId=upload_id,
            MultipartUpload={
                "Parts": [{"PartNumber": n, "ETag": part.etag, **part.checksums} for n, part in enumerate(parts, 1)]
            },
        )

    def _discard(self, upload_id: str) -> None:
        call_with_retries(
            lambda: self._store.uploads.abort(self._path, upload_id), self._retry, url=self._store.url(self._path)
        )

    def _publish(self, content: _Content, name: str, **request: Any) -> None:
        """Send the request that makes the object visible, on condition that none exists if need be."""
        if not self._overwrite:
            self._require_absent()  # some stores ignore the condition, and send no error
        if not self._overwrite and self._store.supports_conditional_writes:
            try:
                self._make_visible(content, name, {**request, "IfNoneMatch": "*"})
            except UnsupportedRequestError as error:
                self._store.supports_conditional_writes = False
                self._store.warn_unsupported(_CHECKS_BEFORE_WRITING, error)
            else:
                return
        if not self._overwrite:
            self._require_absent()
        self._make_visible(content, name, request)

    def _make_visible(self, content: _Content, name: str, request: dict[str, Any]) -> None:
        make_visible(
            lambda: self._send(name, request),
            lambda: self._is_visible(content),
            self._retry,
            url=self._store.url(self._path),
            num_bytes=len(request.get("Body", b"")),
        )

    def _is_visible(self, content: _Content) -> bool:
        """Whether the store has exactly this object.

        The etag tells it, unless it is not made of MD5: then an object of the same size is read.
        """
        found = self._store.find(self._path)
        if found is None or found.size not in (None, content.num_bytes):
            return False
        if found.etag is not None and found.etag.strip('"') == content.etag:
            return True
        return (content.etag is None or not self._has_md5_etag()) and self._has_content(content)

    def _has_md5_etag(self) -> bool:
        """Whether the etag of the object is that of its bytes: not if it is encrypted by KMS or a key of the user."""
        if not self._store.has_md5_etags:
            return False
        about = self._send("head_object", {})
        return about.get("ServerSideEncryption") in (None, "AES256") and about.get("SSECustomerAlgorithm") is None

    def _has_content(self, content: _Content) -> bool:
        start = 0
        for num_bytes, digest in content.parts:
            if num_bytes == 0:
                continue
            try:
                data = self._store.read_without_obstore(self._path, start, start + num_bytes, None).whole()
            except (AccessDeniedError, RangeNotSatisfiableError):  # a writer may have no right to read
                return False
            if _md5(data).digest() != digest:
                return False
            start += num_bytes
        return True

    def _require_absent(self) -> None:
        if (
            call_with_retries(lambda: self._store.find(self._path), self._retry, url=self._store.url(self._path))
            is not None
        ):
            raise from_status(412, "", self._store.url(self._path), writing=True)
