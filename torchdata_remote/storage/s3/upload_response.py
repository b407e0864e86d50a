"""Whether the response to an upload is one of a store with S3's API."""

from __future__ import annotations

from typing import Any

from ..errors import unusable_response

_NEEDED = {
    "create_multipart_upload": "UploadId",
    "put_object": "ETag",
    "upload_part": "ETag",
    "complete_multipart_upload": "ETag",
}


def require_response(name: str, response: dict[str, Any], url: str) -> dict[str, Any]:
    """Return the response of botocore's operation ``name``, after a check that it says what was stored.

    Raises:
        TransientStorageError: for the page of a proxy, which answers 200 to what it never passed on.
    """
    needed = _NEEDED.get(name)
    if needed is not None and not response.get(needed):
        raise unusable_response(url, f"{name} was answered without {needed}: is it the page of a proxy?")
    return response
