"""Multipart uploads to S3 that were neither completed nor aborted, where the store shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from ..errors import AccessDeniedError, ExpiredCredentialsError, ObjectNotFoundError, StorageError
from ._protocol import Entry, UnsupportedRequestError
from ._s3_pages import seconds

_KEEPS_UPLOADS = (
    "does not list or abort multipart uploads: parts of objects that were given up half written stay there, unseen and "
    "paid for. Remove them by the store's own means, such as a lifecycle rule"
)


class Bucket(Protocol):
    """What uploads need of their store."""

    knows_conditions: bool  # on what is written: If-None-Match

    def url(self, path: str) -> str:
        """For errors."""

    def find(self, path: str) -> Entry | None:
        """The object, if it is there."""

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """One request."""

    def lacks(self, what: str, error: StorageError) -> None:
        """Warn, once, of what this store does not do."""


class Upload(NamedTuple):
    """One that goes on, or was left."""

    key: str
    upload_id: str
    began_s: float | None


def remove_uploads(store: Bucket, prefix: str, is_to_go: Callable[[Upload], bool]) -> None:
    """Abort uploads of objects that begin with a prefix; a store that cannot do so is warned of once."""
    try:
        for upload in _uploads(store, prefix):
            if is_to_go(upload):
                _abort(store, upload.key, upload.upload_id)
    except ExpiredCredentialsError:
        raise
    except (AccessDeniedError, UnsupportedRequestError) as error:
        store.lacks(_KEEPS_UPLOADS, error)


def abort_upload(store: Bucket, key: str, upload_id: str) -> None:
    """Abort an upload; a store that cannot do so is warned of once."""
    try:
        _abort(store, key, upload_id)
    except ExpiredCredentialsError:
        raise
    except (AccessDeniedError, UnsupportedRequestError) as error:
        store.lacks(_KEEPS_UPLOADS, error)


def _abort(store: Bucket, key: str, upload_id: str) -> None:
    with contextlib.suppress(ObjectNotFoundError):  # it has ended meanwhile
        store.request("abort_multipart_upload", key, Key=key, UploadId=upload_id)


def _uploads(store: Bucket, prefix: str) -> Iterator[Upload]:
    more: dict[str, Any] = {}
    while True:
        answer = store.request("list_multipart_uploads", prefix, Prefix=prefix, **more)
        for found in answer.get("Uploads", ()):
            yield Upload(found["Key"], found["UploadId"], seconds(found.get("Initiated")))
        if not answer.get("IsTruncated"):
            return
        more = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}
