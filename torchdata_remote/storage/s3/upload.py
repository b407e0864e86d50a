"""Write large objects to S3 in parts, by the client of s3fs: obstore has no condition for the end of an upload."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.retry import call_with_retries
from ...errors import AccessDeniedError, ExpiredCredentialsError, ObjectNotFoundError
from ..errors import from_botocore, from_os, translate_errors, unusable_response
from ..multipart import SLOW_BYTES_PER_S
from ..obstore_writer import WRITER_ID, ObstoreWriter
from ..protocol import UnsupportedRequestError

if TYPE_CHECKING:
    from ..obstore_store import ObstoreStore

_CANNOT_LIST_OR_ABORT_UPLOADS = (
    "does not list or abort multipart uploads: parts of unfinished objects stay stored, invisible and billed. Remove "
    "them by the store's own means, such as a lifecycle rule"
)
_NEEDED = {
    "create_multipart_upload": "UploadId",
    "put_object": "ETag",
    "upload_part": "ETag",
    "complete_multipart_upload": "ETag",
}


def request(store: ObstoreStore, name: str, path: str, **arguments: Any) -> dict[str, Any]:
    """Send one request by the client of s3fs, which adds the properties of the options.

    Raises:
        TransientStorageError: also for the page of a proxy, which answers 200 to what it never passed on.
    """
    slower: Any = store.slower
    url, bucket = store.url(path), store.url("").split("/")[2]
    with slower._calls(path) as filesystem, translate_errors(_from_s3fs, url):
        response: dict[str, Any] = filesystem.call_s3(name, Bucket=bucket, **arguments)
    needed = _NEEDED.get(name)
    if needed is not None and not response.get(needed):
        raise unusable_response(url, f"{name} was answered without {needed}: is it the page of a proxy?")
    return response


def _from_s3fs(error: Exception, url: str) -> Exception:
    """Convert an error of s3fs, which may have one of botocore as its cause."""
    for found in (error, error.__cause__):
        if isinstance(found, Exception) and type(found).__module__.startswith("botocore."):
            return from_botocore(found, url, writing=True)
    return from_os(error, url, transient=True)


class S3Writer(ObstoreWriter):
    """An object that is being written to S3.

    Args:
        store: sends the requests.
        path: of the object.
        properties: of objects, in botocore's words.
        overwrite: whether an existing object is replaced.
    """

    def __init__(self, store: ObstoreStore, path: str, properties: dict[str, Any], *, overwrite: bool) -> None:
        super().__init__(store, path, overwrite=overwrite)
        self._s3, self._has_properties = store, bool(properties)
        self._metadata = {**properties.get("Metadata", {}), WRITER_ID: self._id}

    def _request(self, name: str, **arguments: Any) -> dict[str, Any]:
        return request(self._s3, name, self._path, Key=self._path, **arguments)

    def _call(self, name: str, **arguments: Any) -> dict[str, Any]:
        expected_s = len(arguments.get("Body", b"")) / SLOW_BYTES_PER_S
        return call_with_retries(
            lambda: self._request(name, **arguments), self._retry, url=self._url, expected_s=expected_s
        )

    def _put(self, data: bytearray) -> None:
        if not self._has_properties:
            super()._put(data)
            return
        about: dict[str, Any] = {"Body": bytes(data), "Metadata": self._metadata}
        self._publish(lambda is_new: self._request("put_object", **about, **_condition(is_new)), len(data))

    def _start_upload(self) -> str:
        return str(self._call("create_multipart_upload", Metadata=self._metadata)["UploadId"])

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> dict[str, Any]:
        made = self._call("upload_part", UploadId=upload_id, PartNumber=number, Body=bytes(data))
        checksums = {name: one for name, one in made.items() if name.startswith("Checksum") and name != "ChecksumType"}
        return {"PartNumber": number, "ETag": made["ETag"], **checksums}

    def _complete(self, upload_id: str) -> None:
        if self._buffer:
            self._submit_part()
        about = {"UploadId": upload_id, "MultipartUpload": {"Parts": self._wait_for_parts()}}
        self._publish(lambda is_new: self._request("complete_multipart_upload", **about, **_condition(is_new)), 0)

    def _discard(self, upload_id: str) -> None:
        call_with_retries(lambda: _abort(self._s3, self._path, upload_id), self._retry, url=self._url)


def _condition(is_new: bool) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if is_new else {}


def _abort(store: ObstoreStore, path: str, upload_id: str) -> None:
    """Delete the parts of an upload. They are kept if the store, or these credentials, do not allow it."""
    try:
        with contextlib.suppress(ObjectNotFoundError):  # completed or aborted since
            request(store, "abort_multipart_upload", path, Key=path, UploadId=upload_id)
    except ExpiredCredentialsError:
        raise
    except (AccessDeniedError, UnsupportedRequestError) as error:
        store.warn_once(_CANNOT_LIST_OR_ABORT_UPLOADS, error)


def remove_unfinished(store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
    """Abort the unfinished uploads below a prefix that ``is_left`` selects by key and time (seconds since 1970)."""
    more: dict[str, Any] = {}
    while True:
        try:
            response = request(store, "list_multipart_uploads", prefix, Prefix=prefix, **more)
        except ObjectNotFoundError:
            return  # rclone's response if there are none
        except ExpiredCredentialsError:
            raise
        except (AccessDeniedError, UnsupportedRequestError) as error:
            store.warn_once(_CANNOT_LIST_OR_ABORT_UPLOADS, error)
            return
        for upload in response.get("Uploads", ()):
            began = upload.get("Initiated")
            if is_left(upload["Key"], None if began is None else began.timestamp()):
                _abort(store, upload["Key"], upload["UploadId"])
        if not response.get("IsTruncated"):
            return
        more = {"KeyMarker": response["NextKeyMarker"], "UploadIdMarker": response["NextUploadIdMarker"]}
