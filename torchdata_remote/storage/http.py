"""HTTP by urllib3: requests, redirects, and which bytes of an object a response contains.

No exception but those of this package leaves here, and none has a cause: urllib3 shows the URLs of requests, which may
be signed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any
from urllib.parse import urljoin

import urllib3

from ..core.urls import hide_signatures_in_log, redact
from ..errors import ContentEncodingError, RemoteDataError, StorageError
from .errors import mark_host_known, to_package_error, unusable_response
from .network import ServerPools
from .protocol import CONNECT_TIMEOUT_S, Answer, Entry, RangeNotSatisfiableError, normalized_etag, single_chunk

IDENTITY = {"Accept-Encoding": "identity"}
_MAX_REDIRECTS = 5
_SHORT_BYTES = 8192  # of a body that is read so that the connection can be used again
_CHUNK_BYTES = 1 << 18
_PORTS = {"http": 80, "https": 443}
# Sizes are below 2**63; Python refuses to convert thousands of digits
_CONTENT_RANGE = re.compile(r"\s*bytes\s+(?:(\d{1,19})-(-?\d{1,19})|\*)/(\d{1,19})\s*", re.IGNORECASE | re.ASCII)
_LENGTH = re.compile(r"\s*(\d{1,19})(?:\s*,\s*\1)*\s*", re.ASCII)
# Uploads to S3 leave others behind, which have no meaning: of aws-chunked bodies, and names of charsets
_NO_CODING = {"", "identity", "aws-chunked", "utf-8", "utf8", "binary", "none"}
# Extensions of files that are stored encoded. Shard readers detect the compression of a tar by its content.
_ENCODED_NAMES = {"gzip": (".gz", ".tgz", ".tar"), "zstd": (".zst", ".tzst", ".tar")}


class HttpClient:
    """Sends requests to a server, and to those that it redirects to, each once. Not to be shared by processes.

    Args:
        root: URL of the server.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    def __init__(self, root: str, read_timeout_s: float) -> None:
        hide_signatures_in_log("urllib3.connectionpool")
        self._pools = ServerPools(timeout=urllib3.Timeout(CONNECT_TIMEOUT_S, read_timeout_s), retries=False)
        self._origin = origin_of(root)

    def is_at_server(self, url: str) -> bool:
        """Whether a URL has the scheme, the host and the port of this server."""
        return origin_of(url) == self._origin

    def follow(
        self, url: str, shown: str, headers: Mapping[str, str], own: Mapping[str, str], *, method: str = "GET"
    ) -> Iterator[tuple[str, Any, str | None]]:
        """Send a request that only reads, and follow redirects.

        Args:
            url: of the first request, which may be signed, and is not shown.
            shown: URL for errors.
            headers: of each request.
            own: headers that no other server may get, such as a token.
            method: GET or HEAD.

        Yields:
            A URL, its response without the body, and the URL to which that redirects.
        """
        for _ in range(_MAX_REDIRECTS + 1):
            with _errors(shown):
                sent = {**IDENTITY, **headers, **(own if self.is_at_server(url) else {})}
                pools = self._pools.manager(url)
                response = pools.urlopen(method, url, headers=sent, redirect=False, preload_content=False)
                location = response.get_redirect_location()
                following = urljoin(url, location) if location else None
            mark_host_known(shown)
            yield url, response, following
            if following is None:
                return
            body_of(response, shown, _SHORT_BYTES)
            url = following
        raise StorageError(f"{shown}: more than {_MAX_REDIRECTS} redirects.", url=shown)


def origin_of(url: str) -> str:
    """Return scheme, host and port of an http URL, without user and password.

    >>> origin_of("http://me@Host/a"), origin_of("https://[::1]:80")
    ('http://host:80', 'https://[::1]:80')
    """
    at = urllib3.util.parse_url(url)
    return f"{at.scheme}://{at.host}:{at.port or _PORTS.get(at.scheme or '')}"


@contextlib.contextmanager
def _errors(shown: str, response: Any = None) -> Iterator[None]:
    """Convert errors. A response is closed with its connection, which has unread bytes."""
    try:
        yield
    except BaseException as error:
        if response is not None:
            response.close()
        if isinstance(error, RemoteDataError | MemoryError) or not isinstance(error, Exception):
            raise
        raise to_package_error(error, shown) from None


def answer_of(response: Any, path: str, shown: str, *, etag: str | None = None) -> Answer:
    """Return the bytes that a successful response to a GET contains. On an error it is closed.

    Args:
        response: of urllib3, without its body.
        path: of the object; its query is ignored.
        shown: URL for errors.
        etag: of the object, if another response has told it.

    Raises:
        ContentEncodingError: if the body is not the object.
        StorageError: if a body that is cut would not be noticed.
        TransientStorageError: if the headers are incomplete or contradict each other.
    """
    with _errors(shown, response):
        etag = etag or normalized_etag(response.headers.get("ETag"))
        if response.chunked and response.status != 206:
            require_unencoded(response.headers.get("Content-Encoding"), path, shown)
            whole = body_of(response, shown)  # its last chunk marks the end
            return Answer(0, len(whole), len(whole), etag, single_chunk(whole))
        start, end, total = span_of(response.status, response.headers, path, shown)
        return Answer(start, end, total, etag, _chunks_of(response, shown))


def _chunks_of(response: Any, shown: str) -> Generator[memoryview, None, None]:
    with _errors(shown, response):
        yield from stream_body(response)
        response.release_conn()


def stream_body(response: Any) -> Iterator[memoryview]:
    """Yield the body of a urllib3 response as it arrives, so that the caller notices slow progress."""
    while chunk := response.read1(_CHUNK_BYTES, decode_content=False):
        yield memoryview(chunk)


def body_of(response: Any, shown: str, max_bytes: int | None = None) -> bytes:
    """Return the body of a response, or its first bytes. The connection is used again if it has no more."""
    with _errors(shown, response):
        body: bytes = response.read(max_bytes, decode_content=False)
        if len(body) == max_bytes:
            response.close()
        response.release_conn()
        return body


def first_byte(read: Callable[[str, int, int | None, str | None], Answer], path: str) -> Entry:
    """Look an object up by a request for its first byte: a URL may be signed for GET only."""
    try:
        with read(path, 0, 1, None) as answer:
            return Entry(path, answer.total_bytes, answer.etag)
    except RangeNotSatisfiableError:
        return Entry(path, 0, None)


def range_header(start: int, end: int | None) -> str | None:
    """The Range header that requests bytes ``start`` to ``end`` (exclusive); ``None`` requests the whole object.

    >>> range_header(0, 10), range_header(5, None), range_header(0, None)
    ('bytes=0-9', 'bytes=5-', None)
    """
    if end is None:
        return f"bytes={start}-" if start else None
    return f"bytes={start}-{end - 1}"


def parse_content_length(content_length: str | None) -> int | None:
    """Parse a Content-Length header, which may repeat the same number (RFC 9110, 8.6).

    >>> [parse_content_length(header) for header in ("10, 10", "10, 11", "-5", None)]
    [10, None, None, None]
    """
    found = _LENGTH.fullmatch(content_length or "")
    return None if found is None else int(found[1])


def span_of(status: int, headers: Mapping[str, str], path: str, url: str) -> tuple[int, int, int]:
    """Return first byte, last byte + 1 and size of the object of a response, by RFC 9110 and its common violations.

    The Content-Range of a 200 is accepted if its length fits.

    Args:
        status: 200, 203 or 206.
        headers: of the response, by names in any or in small letters.
        path: of the object; its query is ignored.
        url: for errors.

    Raises:
        ContentEncodingError: if the body is not the object.
        TransientStorageError: if the headers are incomplete or contradict each other, or a body that is cut would not
            be noticed.
    """
    require_unencoded(headers.get("content-encoding"), path, url)
    content_range, num_bytes = headers.get("content-range"), parse_content_length(headers.get("content-length"))
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is not None:
        total = int(match[3])
        if total == 0 and not num_bytes:
            return 0, 0, 0  # an empty object, for which no valid range exists
        if match[1] is not None:
            start, end = int(match[1]), int(match[2]) + 1
            if start < end <= total and num_bytes in (None, end - start):
                return start, end, total
    if status != 206 and num_bytes is not None and (match is None or match[3] == str(num_bytes)):
        return 0, num_bytes, num_bytes
    raise unusable_response(
        url, f"the server answered {status} with Content-Range {content_range!r} and Content-Length {num_bytes}"
    )


def require_unencoded(content_encoding: str | None, path: str, url: str) -> None:
    """Check that the body of a response is the object that the path names.

    Every request sends ``Accept-Encoding: identity``, so a body is encoded only if the object is stored encoded.
    Decoding is not possible: sizes, ranges, etags and checksums are those of the stored bytes.

    Args:
        content_encoding: the header, or ``None``.
        path: of the object; its query is ignored.
        url: for errors.

    Raises:
        ContentEncodingError: if the body is encoded, and the path has no extension of that encoding.
    """
    codings = [coding.strip().lower().removeprefix("x-") for coding in (content_encoding or "").split(",")]
    codings = [coding for coding in codings if coding not in _NO_CODING]
    if not codings:
        return
    extensions = _ENCODED_NAMES.get(codings[0], ())
    if len(codings) == 1 and path.partition("?")[0].lower().endswith(extensions):
        return
    shown, wanted = redact(url), ", ".join(extensions) or "none is known"
    raise ContentEncodingError(
        f"{shown} has Content-Encoding: {content_encoding}, so its bytes are not those of the file that the URL names. "
        f"Store it without that header, decompressed, or under a name with the encoding's extension ({wanted}).",
        url=shown,
    )
