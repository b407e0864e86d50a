"""Which bytes an HTTP response contains, by RFC 9110 and its common violations."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import unusable_response

# Sizes are below 2**63; Python refuses to convert thousands of digits
_CONTENT_RANGE = re.compile(
    r"\s*bytes\s+(?:(\d{1,19})\s*-\s*(-?\d{1,19})|\*)\s*/\s*(\d{1,19}|\*)\s*", re.IGNORECASE | re.ASCII
)
_LENGTH = re.compile(r"\d{1,19}", re.ASCII)


def range_header(start: int, end: int | None) -> str | None:
    """The Range header that requests bytes ``start`` to ``end`` (exclusive); ``None`` requests the whole object.

    >>> range_header(0, 10), range_header(5, None), range_header(0, None)
    ('bytes=0-9', 'bytes=5-', None)
    """
    if end is None:
        return f"bytes={start}-" if start else None
    return f"bytes={start}-{end - 1}"


class Span(NamedTuple):
    """First byte, last byte + 1, and the size of the object (``None`` if the response does not contain it)."""

    start: int
    end: int
    total_bytes: int | None


def parse_content_length(content_length: str | None) -> int | None:
    """Parse a Content-Length header, which may repeat the same number (RFC 9110, 8.6).

    >>> [parse_content_length(header) for header in ("10, 10", "10, 11", "-5", None)]
    [10, None, None, None]
    """
    numbers = {number.strip() for number in (content_length or "").split(",")}
    [number, *others] = numbers
    return int(number) if not others and _LENGTH.fullmatch(number) else None


def parse_content_range(status: int, content_range: str | None, num_bytes: int | None, url: str) -> Span:
    """Return the bytes that a response contains. The Content-Range of a 200 is accepted if its length fits.

    Args:
        status: 200, 203 or 206.
        content_range: the header, or ``None``.
        num_bytes: of the body, if Content-Length is known.
        url: for errors.

    Raises:
        TransientStorageError: if the headers are incomplete or contradict each other.
    """
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is not None:
        total = None if match[3] == "*" else int(match[3])
        if total == 0 and not num_bytes:
            return Span(0, 0, 0)  # an empty object, for which no valid range exists
        if match[1] is not None:
            start, end = int(match[1]), int(match[2]) + 1
            if start < end and num_bytes in (None, end - start) and (total is None or end <= total):
                return Span(start, end, total)
    if status != 206 and num_bytes is not None and (match is None or match[3] == str(num_bytes)):
        return Span(0, num_bytes, num_bytes)
    raise unusable_response(
        url, f"the server answered {status} with Content-Range {content_range!r} and a body of {num_bytes} bytes"
    )
