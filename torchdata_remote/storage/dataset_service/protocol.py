"""What a dataset service and its clients agree on: names, paths, and how a digest is written."""

from __future__ import annotations

import base64
import re

DATASET_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"  # datasets://host:port/NAME/...
MAX_PATH_BYTES, MAX_SEGMENT_BYTES = 1024, 255  # of UTF-8: of a path, and of a name between slashes
FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")  # in a path


def path_problem(path: str) -> str | None:
    r"""Why a path cannot be one of a file in a data set, or ``None``.

    >>> path_problem("cat/1.jpg")
    >>> path_problem("../1.jpg")
    "has a part '..'"
    """
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not 1 <= len(encoded) <= MAX_PATH_BYTES:
        return f"has {len(encoded):,} bytes, where 1 to {MAX_PATH_BYTES:,} are allowed"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"has a part {part!r}"
        if len(part.encode()) > MAX_SEGMENT_BYTES:
            return f"has a part of more than {MAX_SEGMENT_BYTES} bytes"
    forbidden = FORBIDDEN.search(path)
    return None if forbidden is None else f"has the character {forbidden[0]!r}"


def digest_field(sha256: str) -> str:
    """A hexadecimal SHA-256 as Repr-Digest and Content-Digest have it (RFC 9530).

    >>> digest_field("00" * 32)
    'sha-256=:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:'
    """
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"
