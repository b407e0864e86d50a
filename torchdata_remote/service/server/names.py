"""Names: those that clients choose are validated, files without one get one, and none shows where the root is."""

from __future__ import annotations

import codecs
import re
from urllib.parse import quote, unquote

from ...storage import PARTIAL_SUFFIX, is_internal_name
from ...storage.dataset_service.protocol import (
    DATASET_NAME,
    FORBIDDEN,
    MAX_PATH_BYTES,
    MAX_SEGMENT_BYTES,
    path_problem,
)
from .problems import Problem

_SEGMENT = r"(?!\.{1,2}(?:/|$))[^/\\\x00-\x1f\x7f]{1,255}"
PATH = f"^{_SEGMENT}(?:/{_SEGMENT})*$"  # for the OpenAPI document; require_path checks more
PREFIX = f"^(?:{_SEGMENT}/)*" + r"[^/\\\x00-\x1f\x7f]{0,255}$"  # of a path
UPLOAD_ID = r"[A-Za-z0-9_-]{8,64}"
_MAGIC = (  # first bytes of common formats
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpg"),
    (b"GIF8", "gif"),
    (b"PK\3\4", "zip"),
    (b"\x1f\x8b\x08", "gz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bz2"),
    (b"\x93NUMPY", "npy"),
    (b"\x89HDF\r\n\x1a\n", "h5"),
    (b"PAR1", "parquet"),
    (b"%PDF-", "pdf"),
)
HEAD_BYTES = 512  # of a body, from which its format is guessed


def require_dataset_name(name: object) -> str:
    """Return a valid dataset name.

    Raises:
        Problem: 400, if it is not valid.
    """
    if (
        not isinstance(name, str)
        or re.fullmatch(DATASET_NAME, name, re.ASCII) is None
        or name.endswith(PARTIAL_SUFFIX)  # leftovers of a killed service, which the next one removes
    ):
        raise Problem(
            400,
            f"{name!r:.200} is not a valid dataset name: 1 to 128 letters, digits, '.', '_' and '-', of which the "
            f"first is a letter or a digit, and not {PARTIAL_SUFFIX!r} at the end.",
        )
    return name


def is_dataset_name(name: str) -> bool:
    """Whether a dataset may have this name."""
    try:
        return bool(require_dataset_name(name))
    except Problem:
        return False


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


def require_upload_id(text: str) -> str:
    """Return a valid identifier of an upload, which clients choose.

    Raises:
        Problem: 400, if it is not valid.
    """
    if re.fullmatch(UPLOAD_ID, text, re.ASCII) is None:
        raise Problem(400, f"upload={text!r:.100} is not a valid upload ID: 8 to 64 letters, digits, '_' and '-'.")
    return text


def name_in_disposition(header: str | None) -> str | None:
    """Parse the file name in a Content-Disposition header (RFC 6266); ``None`` without header or name.

    Raises:
        Problem: 400, if the header cannot be parsed, or the name is not a valid path.

    >>> name_in_disposition('attachment; filename="my_file.csv"')
    'my_file.csv'
    """
    if header is None:
        return None
    try:
        name = header_parameters(header).get("filename")
    except ValueError as error:
        raise Problem(
            400,
            f'Content-Disposition {header!r:.200} cannot be parsed: {error}. Expected attachment; filename="NAME", or '
            "filename*=UTF-8''NAME with the name percent-encoded.",
        ) from None
    return None if name is None else require_path(name)


def disposition(path: str) -> str:
    """Return the Content-Disposition header of a file that is downloaded.

    >>> disposition("cat/my_file.csv")
    'attachment; filename="my_file.csv"'
    """
    name = path.rpartition("/")[2]
    if name.isascii() and '"' not in name:
        return f'attachment; filename="{name}"'
    plain = "".join(character if character.isascii() and character not in '"%' else "_" for character in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{percent_encoded(name)}"


def percent_encoded(path: str) -> str:
    """Percent-encode a path for a URL.

    >>> percent_encoded("a b/100%.txt")
    'a%20b/100%25.txt'
    """
    return quote(path, safe="/~")


def name_from_content(head: bytes, sha256: str) -> str:
    """Choose a name for a file from its content: equal content gets equal names.

    Args:
        head: its first ``HEAD_BYTES``, or all of it if it is shorter.
        sha256: of the whole file, hexadecimal.
    """
    return f"{sha256[:16]}.{_extension(head)}"


def _extension(head: bytes) -> str:
    for magic, extension in _MAGIC:
        if head.startswith(magic):
            return extension
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[257:262] == b"ustar":
        return "tar"
    try:
        decoder = codecs.getincrementaldecoder("utf-8")()
        text = decoder.decode(head, final=len(head) < HEAD_BYTES)  # a longer text may be cut within a character
    except UnicodeDecodeError:
        return "bin"
    if "\0" in text or not text:
        return "bin"
    return "json" if text.lstrip()[:1] in ("{", "[") else "txt"


# Headers

_TYPE = re.compile(r"[^;\"]*")
# Each attempt starts where the last match ended, and what an alternative matches ends before the next one's beginning
_PARAMETER = re.compile(
    r"""
    ;[ \t]*
    (?: ([^\x00-\x20\x7f()<>@,;:\\"/[\]?={}]+) [ \t]* = [ \t]*  # the name, a token
        (?: "([^"\\]*(?:\\.[^"\\]*)*)" [ \t]* | ([^";]*) )
    )? (?= ; | \Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CHARSETS = {"utf-8": "utf-8", "iso-8859-1": "latin-1"}


def header_parameters(header: str) -> dict[str, str]:
    r"""Return the parameters after a header's first word: name in lower case -> value.

    Where a parameter has an extended form (``name*``) too, that one has precedence.

    Raises:
        ValueError: if the header cannot be parsed, repeats a parameter, or has a character set other than UTF-8 and
            ISO-8859-1.

    >>> header_parameters(r'attachment; filename="a \"b\".csv"; size=3')
    {'filename': 'a "b".csv', 'size': '3'}
    >>> header_parameters("attachment; filename*=UTF-8''%c3%a9.csv; filename=e.csv")
    {'filename': 'é.csv'}
    """
    plain: dict[str, str] = {}
    extended: dict[str, str] = {}
    first = _TYPE.match(header)
    position = first.end() if first else 0
    while position < len(header):
        match = _PARAMETER.match(header, position)
        if match is None:
            raise ValueError(f"the text at character {position + 1} is no parameter")
        position = match.end()
        name, quoted, token = match.groups()
        if name is None:  # a semicolon at the end
            continue
        value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else token.strip(" \t")
        name = name.lower()
        found = extended if name.endswith("*") else plain
        if name in found:
            raise ValueError(f"the parameter {name!r:.100} is there twice")
        found[name] = _decoded(value) if name.endswith("*") else value
    return plain | {name[:-1]: value for name, value in extended.items()}


def _decoded(value: str) -> str:
    """Decode ``charset'language'value`` (RFC 8187)."""
    charset, first, rest = value.partition("'")
    _, second, encoded = rest.partition("'")
    codec = _CHARSETS.get(charset.strip().lower())
    if not first or not second or codec is None:
        raise ValueError(f"{value!r:.100} is not of the form UTF-8''value")
    return unquote(encoded, codec, errors="strict")
