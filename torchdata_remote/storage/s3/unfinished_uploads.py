"""List and abort unfinished multipart uploads, on stores that support it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...errors import AccessDeniedError, ExpiredCredentialsError, ObjectNotFoundError, StorageError
from ..protocol import UnsupportedRequestError

CANNOT_LIST_OR_ABORT_UPLOADS = (
    "does not list or abort multipart uploads: parts of unfinished objects stay stored, invisible and billed. Remove "
    "them by the store's own means, such as a lifecycle rule"
)


class MultipartUploads:
    """Multipart uploads of one bucket that are neither completed nor aborted.

    Args:
        request: sends one request: operation, path, arguments.
        warn_unsupported: called with the missing feature and the store's error.
    """

    def __init__(self, request: Callable[..., Any], warn_unsupported: Callable[[str, StorageError], None]) -> None:
        self._request, self._warn_unsupported = request, warn_unsupported

    def abort(self, path: str, upload_id: str) -> None:
        """Delete the parts of an upload. They are kept if the store, or these credentials, do not allow it."""
        try:
            self._request("abort_multipart_upload", path, Key=path, UploadId=upload_id)
        except ObjectNotFoundError:
            pass  # completed or aborted since
        except ExpiredCredentialsError:
            raise
        except (AccessDeniedError, UnsupportedRequestError) as error:
            self._warn_unsupported(CANNOT_LIST_OR_ABORT_UPLOADS, error)

    def list_unfinished(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield unfinished uploads below a prefix; none if the store cannot list them."""
        more: dict[str, Any] = {}
        while True:
            try:
                response = self._request("list_multipart_uploads", prefix, Prefix=prefix, **more)
            except ObjectNotFoundError:
                return  # rclone's response if there are none
            except ExpiredCredentialsError:
                raise
            except (AccessDeniedError, UnsupportedRequestError) as error:
                self._warn_unsupported(CANNOT_LIST_OR_ABORT_UPLOADS, error)
                return
            yield from response.get("Uploads", ())
            if not response.get("IsTruncated"):
                return
            more = {"KeyMarker": response["NextKeyMarker"], "UploadIdMarker": response["NextUploadIdMarker"]}
