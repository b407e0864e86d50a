"""Refuse encoded bodies, whose bytes are not those of the file that the URL names.

Every request sends ``Accept-Encoding: identity``, so a body is encoded only if the object is stored encoded. Decoding
is not possible: sizes, ranges, etags and checksums are those of the stored bytes.
"""

from __future__ import annotations

from ...core.urls import redact
from ...errors import ContentEncodingError

IDENTITY = {"Accept-Encoding": "identity"}
# Uploads to S3 leave others behind, which have no meaning: of aws-chunked bodies, and names of charsets
_NO_CODING = {"", "identity", "aws-chunked", "utf-8", "utf8", "binary", "none"}
# Extensions of files that are stored encoded. Shard readers detect the compression of a tar by its content.
_NAMES = {
    "gzip": (".gz", ".tgz", ".tar"),
    "zstd": (".zst", ".tzst", ".tar"),
    "bzip2": (".bz2", ".tbz", ".tbz2", ".tar"),
    "xz": (".xz", ".txz", ".tar"),
    "br": (".br",),
    "compress": (".z",),
}


def require_unencoded(content_encoding: str | None, path: str, url: str) -> None:
    """Check that the body of a response is the object that the path names.

    Args:
        content_encoding: the header, or ``None``.
        path: of the object; its query is ignored.
        url: for errors.

    Raises:
        ContentEncodingError: if the body is encoded, and the path has no extension of that encoding.
    """
    if content_encoding is None:
        return
    codings = [coding.strip().lower().removeprefix("x-") for coding in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in _NO_CODING]
    if not codings:
        return
    name = path.partition("?")[0].lower()
    if len(codings) == 1 and name.endswith(_NAMES.get(codings[0], ())):
        return
    shown, wanted = redact(url), ", ".join(_NAMES.get(codings[0], ("an extension of it",)))
    raise ContentEncodingError(
        f"{shown} has Content-Encoding: {content_encoding}, so its bytes are not those of the file that the URL names. "
        f"Store it without that header, decompressed, or under a name with the encoding's extension ({wanted}).",
        url=shown,
    )
