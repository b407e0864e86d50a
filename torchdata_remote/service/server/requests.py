"""What clients send beside a body: names, which are validated, and headers about versions, ranges and digests.

Headers are parsed in linear time: a regular expression keeps the interpreter's lock, and with it the whole service,
busy. So no two repetitions that can match the same characters follow each other.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from ...storage import PARTIAL_SUFFIX, is_internal_name
from ...storage.dataset_service.protocol import (
    DAMAGED,
    DATASET_NAME,
    FORBIDDEN,
    MAX_PATH_BYTES,
    MAX_SEGMENT_BYTES,
    path_problem,
)
from .problems import Problem

_RANGE = re.compile(r"bytes\s*=\s*(\d+\s*)?-\s*(\d+\s*)?", re.ASCII | re.IGNORECASE)
_SHA256 = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]*):\s*(?=$|,|;)", re.ASCII)
_MAX_DIGITS, _MAX_DISPOSITION = 19, 4096
# RFC 6266: filename=name, filename="name" or filename*=UTF-8''name, which has precedence
_FILENAME = re.compile(r';\s*filename\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^";]*))', re.IGNORECASE)
_FILENAME_UTF8 = re.compile(r";\s*filename\*\s*=\s*utf-8''([^;\s]*)", re.IGNORECASE)


def require_dataset_name(name: object) -> str:
    """Return a valid dataset name.

    Raises:
        Problem: 400, if it is not valid.
    """
    if not isinstance(name, str) or not is_dataset_name(name):
        raise Problem(
            400,
            f"{name!r:.200} is not a valid dataset name: 1 to 128 letters, digits, '.', '_' and '-', of which the "
            f"first is a letter or a digit, and not {PARTIAL_SUFFIX!r} at the end.",
        )
    return name


def is_dataset_name(name: str) -> bool:
    """Whether a dataset may have this name: not that of leftovers of a killed service, which the next one removes."""
    return re.fullmatch(DATASET_NAME, name, re.ASCII) is not None and not name.endswith(PARTIAL_SUFFIX)


def require_path(path: str) -> str:
    """Return a valid path of a file in a dataset, which cannot lead out of it.

    Raises:
        Problem: 400, if it is not valid.
    """
    wrong = path_problem(path)
    if wrong is None and any(map(is_internal_name, path.split("/"))):
        wrong = "has a name that is reserved for temporary files of the service"
    if wrong is not None:
        raise Problem(
            400,
            f"{path!r:.200} is not a path in a dataset, since it {wrong}: at most {MAX_PATH_BYTES} bytes, names of 1 "
            f"to {MAX_SEGMENT_BYTES} bytes between slashes, not '.' or '..', without backslashes and control "
            "characters.",
        )
    return path


def require_prefix(text: str) -> str:
    """Return a valid prefix of file paths, which may be empty.

    Raises:
        Problem: 400, if no path can start with it.
    """
    *folders, last = require_text(text).split("/")
    if len(last.encode("utf-8", "replace")) > MAX_SEGMENT_BYTES or FORBIDDEN.search(last):
        raise Problem(400, f"{text!r:.200} is not the prefix of a path in a dataset.")
    if folders:
        require_path("/".join(folders))
    return text


def require_text(text: str) -> str:
    """Return a text that paths can be compared with.

    Raises:
        Problem: 400, if it is too long or contains NUL.
    """
    if len(text.encode("utf-8", "replace")) > MAX_PATH_BYTES or "\0" in text:
        raise Problem(400, f"{text!r:.200} is longer than {MAX_PATH_BYTES} bytes, or contains NUL.")
    return text


def name_in_disposition(header: str | None) -> str:
    """Return the file name in a Content-Disposition header (RFC 6266).

    Raises:
        Problem: 400, if there is none, or it is not a valid path.

    >>> name_in_disposition('attachment; filename="my_file.csv"')
    'my_file.csv'
    """
    known = (header or "")[:_MAX_DISPOSITION]
    encoded, plain = _FILENAME_UTF8.search(known), _FILENAME.search(known)
    try:
        if encoded is not None:
            return require_path(unquote(encoded[1], errors="strict"))
    except UnicodeDecodeError:
        plain = None
    if plain is None:
        raise Problem(
            400,
            f'Content-Disposition {header!r:.200} names no file. Send attachment; filename="NAME", or '
            "filename*=UTF-8''NAME with the name percent-encoded; or PUT /datasets/DATASET/files/PATH.",
        )
    quoted, token = plain.groups()
    return require_path(token.strip() if quoted is None else re.sub(r"\\(.)", r"\1", quoted))


def disposition(path: str) -> str:
    """Return the Content-Disposition header of a file that is downloaded.

    >>> disposition("cat/my_file.csv")
    'attachment; filename="my_file.csv"'
    """
    name = path.rpartition("/")[2]
    if name.isascii() and '"' not in name:
        return f'attachment; filename="{name}"'
    return f"attachment; filename*=UTF-8''{percent_encoded(name)}"


def percent_encoded(path: str) -> str:
    """Percent-encode a path for a URL.

    >>> percent_encoded("a b/100%.txt")
    'a%20b/100%25.txt'
    """
    return quote(path, safe="/~")


# Headers of RFC 9110 and RFC 9530


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
    if not (first or last) or max(len(first), len(last)) > _MAX_DIGITS or (first and last and int(last) < int(first)):
        return None
    start = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if start >= end:
        raise Problem(
            416,
            f"There is no byte of {header!s:.100} in a file of {size:,} bytes.",
            {"Content-Range": f"bytes */{size}"},
        )
    return start, end


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
    require_match({name: value for name, value in headers.items() if name == "if-match"}, etag)
    unwanted = headers.get("if-none-match")
    return unwanted is not None and _lists(unwanted, etag, weak=True)


def _lists(header: str, etag: str | None, *, weak: bool) -> bool:
    """Whether a list of entity tags contains this one."""
    if etag is None or header.strip() == "*":
        return etag is not None
    tags = {tag.strip() for tag in header.split(",")}
    return etag in tags or (weak and f"W/{etag}" in tags)


def sha256_of(header: str | None) -> str | None:
    """Return the hexadecimal SHA-256 of a Repr-Digest or Content-Digest header; ``None`` if it has none.

    Raises:
        Problem: 400, if it cannot be parsed.
    """
    match = _SHA256.search(header or "")
    if match is None and "sha-256" not in (header or "").lower():
        return None
    digest = b""
    with contextlib.suppress(binascii.Error):
        digest = base64.b64decode("" if match is None else match[1], validate=True)
    if len(digest) != 32:
        raise Problem(400, f"The digest {header!r:.200} cannot be read. Expected sha-256=:BASE64:.")
    return digest.hex()


def require_digest(headers: Mapping[str, str], sha256: str) -> None:
    """Compare the digest of the received bytes with those in headers.

    Raises:
        Problem: 400, if one differs.
    """
    for name in ("Content-Digest", "Repr-Digest"):
        promised = sha256_of(headers.get(name))
        if promised not in (None, sha256):
            raise Problem(400, f"{name} is SHA-256 {promised}, the received bytes have {sha256}. {DAMAGED}.")
