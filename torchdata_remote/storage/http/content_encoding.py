"""Refuse encoded bodies, whose bytes are not those of the file that the URL names.

Every request sends ``Accept-Encoding: identity``, so a body is encoded only if the object is stored encoded. Decoding
is not possible: sizes, ranges, etags and checksums are those of the stored bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from ...core.urls import HTTP, S3, redact
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


def with_encoding_check(scheme: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Add options by which an fsspec filesystem of s3 or http refuses encoded bodies.

    Args:
        scheme: protocol as in the URL.
        keywords: of the filesystem; not changed.
    """
    if scheme in S3:
        from aiobotocore.session import AioSession
        from botocore.handlers import add_expect_header

        keywords = dict(keywords)
        profile = keywords.pop("profile", None)
        session = keywords.get("session") or AioSession(profile=profile)
        session.unregister("before-call.s3", add_expect_header)  # aiohttp waits for 100 Continue without a time limit
        session.register("after-call.s3.GetObject", _after_get_object, unique_id="torchdata_remote-encoding")
        return {**keywords, "session": session}
    if scheme in HTTP:
        import aiohttp

        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(_after_request)
        client = dict(keywords.get("client_kwargs") or {})
        client["trace_configs"] = [*(client.get("trace_configs") or ()), trace]
        client.setdefault("auto_decompress", False)
        headers = {**IDENTITY, **(keywords.get("headers") or {})}
        return {**keywords, "client_kwargs": client, "headers": headers}
    return keywords


def _after_get_object(http_response: Any, parsed: Mapping[str, Any], **_: Any) -> None:
    _require_unencoded_response(parsed.get("ContentEncoding"), str(http_response.url))


async def _after_request(session: object, context: object, params: Any) -> None:
    if params.response.status in (200, 206):
        _require_unencoded_response(params.response.headers.get("Content-Encoding"), str(params.url))


def _require_unencoded_response(content_encoding: str | None, url: str) -> None:
    plain = url.partition("?")[0]
    require_unencoded(content_encoding, unquote(urlsplit(plain).path), plain)
