"""Headers of a request about versions, ranges and digests (RFC 9110, RFC 9530).

Each is parsed in linear time: a regular expression keeps the interpreter's lock, and with it the whole service, busy.
So no two repetitions that can match the same characters follow each other.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from .problems import Problem

_RANGE = re.compile(r"bytes\s*=\s*(\d+\s*)?-\s*(\d+\s*)?", re.ASCII | re.IGNORECASE)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)
_SHA256 = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]*):\s*(?=$|,|;)", re.ASCII)
_MAX_DIGITS = 19


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Parse a Range header: first byte and byte after the last one, or ``None`` for the whole file.

    A header with another unit or several ranges is ignored, as RFC 9110 allows.

    Raises:
        Problem: 416, if the file has no such bytes.

    >>> byte_range("bytes=2-", 10), byte_range("bytes=-3", 10), byte_range("lines=1-2", 10)
    ((2, 10), (7, 10), None)
    """
    match = _RANGE.fullmatch(header or "")
    if match is None:
        return None
    first, last = ((digits or "").rstrip() for digits in match.groups())
    if not (first or last) or max(len(first), len(last)) > _MAX_DIGITS:
        return None
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), size
        if last:
            if int(last) < start:
                return None
            end = min(size, int(last) + 1)
    if start >= size or start >= end:
        raise Problem(
            416,
            f"There is no byte of {header!s:.100} in a file of {size:,} bytes.",
            {"Content-Range": f"bytes */{size}"},
        )
    return start, end


def content_range(header: str | None) -> tuple[int, int, int | None]:
    """Parse the Content-Range of a part: first byte, byte after the last one, and size of the file if it is known.

    Raises:
        Problem: 400, if the header is missing or invalid.
    """
    match = _CONTENT_RANGE.fullmatch((header or "").strip())
    first, end, total = (
        (0, 0, None)
        if match is None
        else (
            int(match[1]),
            int(match[2]) + 1,
            None if match[3] == "*" else int(match[3]),
        )
    )
    if end <= first or (total is not None and end > total):
        raise Problem(
            400,
            "A part of an upload needs Content-Range: bytes first-last/total, or bytes first-last/* while the total is "
            f"not known; got {header!r:.100}.",
        )
    return first, end, total


def require_match(headers: Mapping[str, str], etag: str | None) -> None:
    """Check If-Match and If-None-Match of a writing request against the current version; ``None``: no such file.

    Raises:
        Problem: 412, if a condition does not hold.
    """
    wanted, unwanted = headers.get("if-match"), headers.get("if-none-match")
    if wanted is not None and not _lists(wanted, etag, weak=False):
        raise Problem(412, f"If-Match is {wanted:.200}; the file {f'is {etag}' if etag else 'does not exist'}.")
    if unwanted is not None and _lists(unwanted, etag, weak=True):
        raise Problem(412, f"If-None-Match is {unwanted:.200}; the file exists, as {etag}.")


def is_not_modified(headers: Mapping[str, str], etag: str) -> bool:
    """Whether a reading request names this version as the one that the client has.

    Raises:
        Problem: 412, if it requires another version.
    """
    wanted, unwanted = headers.get("if-match"), headers.get("if-none-match")
    if wanted is not None and not _lists(wanted, etag, weak=False):
        raise Problem(412, f"If-Match is {wanted:.200}; the file is {etag}: it was replaced.", {"ETag": etag})
    return unwanted is not None and _lists(unwanted, etag, weak=True)


def range_applies(headers: Mapping[str, str], etag: str) -> bool:
    """Whether a Range header applies to this version: If-Range names it, or is absent."""
    return headers.get("if-range", etag) == etag


def _lists(header: str, etag: str | None, *, weak: bool) -> bool:
    """Whether a list of entity tags contains this one."""
    if etag is None:
        return False
    if header.strip() == "*":
        return True
    tags = {tag.strip() for tag in header.split(",")}
    return etag in tags or (weak and f"W/{etag}" in tags)


def sha256_of(header: str | None) -> str | None:
    """Return the hexadecimal SHA-256 of a Repr-Digest or Content-Digest header; ``None`` if it has none.

    Raises:
        Problem: 400, if it cannot be parsed.
    """
    match = _SHA256.search(header or "")
    if match is None:
        if "sha-256" in (header or "").lower():
            raise Problem(400, f"The digest {header!r:.200} cannot be read. Expected sha-256=:BASE64:.")
        return None
    try:
        digest = base64.b64decode(match[1], validate=True)
    except binascii.Error:
        digest = b""
    if len(digest) != 32:
        raise Problem(400, f"The digest {header!r:.200} is not a SHA-256 in base64.")
    return digest.hex()


def wants_digest(header: str | None) -> bool:
    """Whether a Want-Repr-Digest header asks for SHA-256."""
    return any(
        part.strip().lower().startswith("sha-256=") and part.strip()[8:].strip() not in ("", "0")
        for part in (header or "").split(",")
    )


def require_digest(header: str, text: str | None, sha256: str) -> None:
    """Compare the digest of the received bytes with the one in a header.

    Raises:
        Problem: 400, if they differ.
    """
    promised = sha256_of(text)
    if promised is not None and promised != sha256:
        raise Problem(400, f"{header} is SHA-256 {promised}, the received bytes have {sha256}. Send them again.")
