"""What requests of each kind of store look like: S3, Google Cloud Storage, Azure, the Hugging Face Hub, our service."""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from ._wire import Head

_LISTINGS = re.compile(
    r"/api/(?:datasets|models|spaces)/.+/(?:tree|paths-info)/.*"  # the Hub
    r"|.*/datasets/[^/]+/files"  # the dataset service
    r"|/storage/v1/b/[^/]+/o/?"  # the JSON API of Google Cloud Storage
)
_STATUS = {
    "slow_down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "internal_error": ("500 Internal Server Error", "InternalError", "We encountered an internal error."),
    "changed": ("412 Precondition Failed", "PreconditionFailed", "A precondition that you specified did not hold."),
    "bad_gateway": ("502 Bad Gateway", "BadGateway", "The upstream server does not respond."),
    "too_many_requests": ("429 Too Many Requests", "TooManyRequests", "Please reduce your request rate."),
}
_OF_AZURE = {"slow_down": "ServerBusy", "changed": "ConditionNotMet", "too_many_requests": "ServerBusy"}
STATUS_FAULTS = frozenset(_STATUS)  # for these the upstream server gets no request


def is_listing(path: str, query: str) -> bool:
    """Whether a request lists objects, by its path and query as they were sent.

    >>> is_listing("/bucket", "list-type=2&prefix=a"), is_listing("/account/box", "restype=container&comp=list")
    (True, True)
    >>> is_listing("/api/datasets/org/name/tree/main/a", "recursive=1"), is_listing("/datasets/name/files", "limit=9")
    (True, True)
    >>> is_listing("/bucket/list-type=2", ""), is_listing("/datasets/name/files/a.jpg", "")
    (False, False)
    """
    fields = parse_qs(query, keep_blank_values=True)
    if fields.get("list-type") == ["2"] or fields.get("comp") == ["list"]:
        return True
    return _LISTINGS.fullmatch(path) is not None


def range_of(request: Head) -> str | None:
    """Return the range that a request asks for; Azure's clients may send it by a header of Azure."""
    return request.fields.get("range", request.fields.get("x-ms-range"))


def without_range(request: Head) -> Head:
    """Return the request of the whole object."""
    return Head(request.edited({"Range": None, "x-ms-range": None}))


def error_response(fault: str, request: Head, retry_after_s: int) -> bytes:
    """Make an error response with S3's XML, which is Azure's with other codes."""
    status, code, message = _STATUS[fault]
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/xml", "x-amz-request-id: FAULTYSTORE"]
    if "x-ms-version" in request.fields:
        code = _OF_AZURE.get(fault, code)
        lines.append(f"x-ms-error-code: {code}")
    if fault == "too_many_requests":
        lines.append(f"Retry-After: {retry_after_s}")
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>'
        "<RequestId>FAULTYSTORE</RequestId></Error>"
    )
    has_body = request.first[0] != "HEAD"
    return ("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]) + body * has_body).encode()
