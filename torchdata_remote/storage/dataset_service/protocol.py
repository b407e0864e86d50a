"""The conventions of a dataset service and its clients: names, paths and digests."""

from __future__ import annotations

import base64
import re

DATASET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"  # datasets://host:port/NAME/...
MAX_PATH_BYTES, MAX_SEGMENT_BYTES = 1024, 255  # of UTF-8: of a path, and of a name between slashes
MAX_BATCH_FILES, MAX_BATCH_FILE_BYTES = 1_000, 1 << 20  # that are sent in one request; bytes of each at most
SHA256_RECORD = "TORCHDATA_REMOTE.sha256"  # pax keyword: hexadecimal SHA-256 of a file in a tar
DAMAGED = "Send them again"  # ends the message about received bytes that have another digest
FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")  # in a path


def path_problem(path: str) -> str | None:
    r"""Return why a path is invalid for a file of a dataset, ``None`` if it is valid.

    >>> path_problem("cat/1.jpg")
    >>> path_problem("../1.jpg")
    "has a segment '..'"
    """
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not 1 <= len(encoded) <= MAX_PATH_BYTES:
        return f"has {len(encoded):,} bytes, where 1 to {MAX_PATH_BYTES:,} are allowed"
    for segment in path.split("/"):
        if segment in ("", ".", ".."):
            return f"has a segment {segment!r}"
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"has a segment of more than {MAX_SEGMENT_BYTES} bytes"
    forbidden = FORBIDDEN.search(path)
    return None if forbidden is None else f"has the character {forbidden[0]!r}"


def digest_field(sha256: str) -> str:
    """Format a hexadecimal SHA-256 for Repr-Digest and Content-Digest (RFC 9530).

    >>> digest_field("00" * 32)
    'sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:'
    """
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"
