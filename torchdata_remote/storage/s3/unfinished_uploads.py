"""Multipart uploads that were begun: list and abort them, on stores that know how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...errors import AccessDeniedError, ExpiredCredentialsError, ObjectNotFoundError, StorageError
from ..protocol import UnsupportedRequestError

CANNOT_LIST_OR_ABORT_UPLOADS = (
    "does not list or abort multipart uploads: parts of objects that were given up half written stay there, unseen and "
    "paid for. Remove them by the store's own means, such as a lifecycle rule"
)


class MultipartUploads:
    """Uploads of one bucket that are neither completed nor aborted.

    Args:
        request: sends one request: operation, path, arguments.
        warn_unsupported: called with what the store does not do, and its answer.
    """

    def __init__(self, request: Callable[..., Any], warn_unsupported: Callable[[str, StorageError], None]) -> None:
        self._request, self._warn_unsupported = request, warn_unsupported

    def abort(self, path: str, upload_id: str) -> None:
        """Remove the parts of an upload. A store that cannot, or does not let these credentials, keeps them."""
        try:
            self._request("abort_multipart_upload", path, Key=path, UploadId=upload_id)
        except ObjectNotFoundError:
            pass  # it has ended meanwhile
        except ExpiredCredentialsError:
            raise
        except (AccessDeniedError, UnsupportedRequestError) as error:
            self._warn_unsupported(CANNOT_LIST_OR_ABORT_UPLOADS, error)

    def list_unfinished(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Uploads below a prefix; none where the store cannot list them."""
        more: dict[str, Any] = {}
        while True:
            try:
                answer = self._request("list_multipart_uploads", prefix, Prefix=prefix, **more)
            except ExpiredCredentialsError:
                raise
            except (AccessDeniedError, UnsupportedRequestError) as error:
                self._warn_unsupported(CANNOT_LIST_OR_ABORT_UPLOADS, error)
                return
            yield from answer.get("Uploads", ())
            if not answer.get("IsTruncated"):
                return
            more = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}
