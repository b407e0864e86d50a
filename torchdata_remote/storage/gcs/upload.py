"""Write to Google Cloud Storage: one PUT for a small object, a multipart upload for a large one.

An object carries the id of its upload as metadata. By that a writer recognises its own object after a response was
lost: etags of multipart uploads are no digests of their bytes.
"""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from ...core.retry import call_with_retries
from ...errors import AccessDeniedError, ExpiredCredentialsError, ObjectNotFoundError, StorageError
from ..multipart import SLOW_BYTES_PER_S, MultipartWriter, content_md5, make_visible
from ..s3.unfinished_uploads import MultipartUploads
from ..s3.upload_response import require_response
from .partial_names import partial_path

UPLOAD_ID = "torchdata-remote-upload"  # the name of the metadata
_META_HEADER = f"x-goog-meta-{UPLOAD_ID}"
_CANNOT_DELETE = (
    "does not let these credentials delete objects (storage.objects.delete): a second copy of each large object that "
    "was written without overwrite=True stays stored, omitted by listings of this package, and billed"
)


class Bucket(Protocol):
    """What an upload needs of its store."""

    def url(self, path: str) -> str:
        """URL of an object, for errors."""

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is no error."""

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """Send one request."""

    def copy_if_absent(self, source: str, path: str) -> None:
        """Copy an object within the bucket, unless there is one at ``path``."""

    def warn_unsupported(self, what: str, error: StorageError) -> None:
        """Warn, once, of a feature that this store lacks."""

    @property
    def uploads(self) -> MultipartUploads:
        """List and abort multipart uploads."""


class GcsWriter(MultipartWriter[str]):
    """An object that is being written.

    Args:
        store: sends the requests.
        path: of the object.
        overwrite: whether an existing object is replaced.
    """

    def __init__(self, store: Bucket, path: str, *, overwrite: bool) -> None:
        super().__init__()
        self._store, self._path, self._overwrite = store, path, overwrite
        self._id = uuid.uuid4().hex
        # Conditions are not possible on multipart uploads, but on the copy that follows
        self._upload_path = path if overwrite else partial_path(path, self._id)
        self._may_be_partial = False  # whether the store may have an object of that name

    def _send(self, name: str, path: str, **request: Any) -> Any:
        response = self._store.request(name, self._path, writing=True, Key=path, **request)
        return require_response(name, response, self._store.url(self._path))

    def _call(self, name: str, **request: Any) -> Any:
        return call_with_retries(
            lambda: self._send(name, self._upload_path, **request),
            self._retry,
            url=self._store.url(self._path),
            expected_s=len(request.get("Body", b"")) / SLOW_BYTES_PER_S,
        )

    def _put(self, data: bytearray) -> None:
        condition = {} if self._overwrite else {"IfNoneMatch": "*"}
        self._make_visible(
            self._path,
            "put_object",
            Body=data,
            ContentLength=len(data),
            ContentMD5=content_md5(data),
            Metadata={UPLOAD_ID: self._id},
            **condition,
        )

    def _start_upload(self) -> str:
        return str(self._call("create_multipart_upload", Metadata={UPLOAD_ID: self._id})["UploadId"])

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> str:
        request = {"UploadId": upload_id, "PartNumber": number, "Body": data, "ContentMD5": content_md5(data)}
        return str(self._call("upload_part", **request)["ETag"])

    def _complete(self, upload_id: str) -> None:
        if self._buffer:
            self._submit_part()
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(self._wait_for_parts(), 1)]
        self._may_be_partial = not self._overwrite
        self._make_visible(
            self._upload_path, "complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts}
        )
        if not self._overwrite:
            make_visible(
                lambda: self._store.copy_if_absent(self._upload_path, self._path),
                lambda: self._is_visible(self._path),
                self._retry,
                url=self._store.url(self._path),
            )
            self._delete_partial()

    def _discard(self, upload_id: str) -> None:
        url = self._store.url(self._path)
        call_with_retries(lambda: self._store.uploads.abort(self._upload_path, upload_id), self._retry, url=url)
        self._delete_partial()

    def _delete_partial(self) -> None:
        if not self._may_be_partial:
            return
        try:
            call_with_retries(
                lambda: self._store.delete(self._upload_path), self._retry, url=self._store.url(self._path)
            )
        except ExpiredCredentialsError:
            raise
        except AccessDeniedError as error:
            self._store.warn_unsupported(_CANNOT_DELETE, error)
        self._may_be_partial = False

    def _make_visible(self, path: str, name: str, **request: Any) -> None:
        make_visible(
            lambda: self._send(name, path, **request),
            lambda: self._is_visible(path),
            self._retry,
            url=self._store.url(self._path),
            num_bytes=len(request.get("Body", b"")),
        )

    def _is_visible(self, path: str) -> bool:
        """Whether the object of this name is the one of this writer."""
        try:
            response = self._store.request("head_object", path, Key=path)
        except ObjectNotFoundError:
            return False
        return bool(response["ResponseMetadata"]["HTTPHeaders"].get(_META_HEADER) == self._id)
