"""URLs: what flows first through every chain.

A URL here is ``scheme://bucket/path`` with the path as the store spells it: nothing is percent-encoded, and only
``http`` and ``https`` know a query. A bare local path becomes a ``file://`` URL.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ..errors import UrlError
from .checksums import Checksums
from .sample_range import part_url, split_part_url

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)
_USER_INFO = re.compile(r"(://)[^/]*@")
_HTTP_URL = re.compile(r"https?://", re.IGNORECASE)
_MEMORY = re.compile(r"(?:samples\+\d+-\d+\+)?memory://")
HTTP = frozenset({"http", "https"})
S3 = frozenset({"s3", "s3a"})
LOCAL = frozenset({"file", "local"})
WITHOUT_BUCKET = LOCAL | {"memory"}


class RemoteUrl(str):
    """A URL that knows what the listing told about its object, so that nobody has to ask again.

    Args:
        url: the full address, with scheme.
        size: bytes, or ``None`` where the listing did not tell.
        etag: the store's version tag as it sent it, or ``None``.
        checksums: of its blocks, from a manifest, or ``None``.
        num_samples: in the shard, from a manifest, or ``None``.
        md5: hexadecimal, of the object, from a manifest, or ``None``.
        index_crc32: of the index beside a shard, from a manifest, or ``None``.
    """

    __slots__ = ("checksums", "etag", "index_crc32", "md5", "num_samples", "size")

    size: int | None
    etag: str | None
    checksums: Checksums | None
    num_samples: int | None
    md5: str | None
    index_crc32: int | None

    def __new__(
        cls,
        url: str,
        size: int | None = None,
        etag: str | None = None,
        checksums: Checksums | None = None,
        num_samples: int | None = None,
        md5: str | None = None,
        index_crc32: int | None = None,
    ) -> RemoteUrl:
        self = super().__new__(cls, url)
        self.size = size
        self.etag = etag
        self.checksums = checksums
        self.num_samples = num_samples
        self.md5 = md5
        self.index_crc32 = index_crc32
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (str(self), *self._known())

    def _known(self) -> tuple[Any, ...]:
        return self.size, self.etag, self.checksums, self.num_samples, self.md5, self.index_crc32

    def _with(self, url: str) -> RemoteUrl:
        return RemoteUrl(url, *self._known())

    def part(self, first: int, last: int) -> RemoteUrl:
        """The same object, of which the samples from ``first`` to before ``last`` are wanted.

        The URL says so itself, so a ``map`` that changes its middle keeps the range: see ``part_url``.
        """
        return self if (first, last) == (0, self.num_samples) else self._with(part_url(self, first, last))


def split_sample_range(url: str) -> tuple[str, tuple[int, int] | None]:
    """The URL of a whole object, and which of its samples are wanted: from the first to before the last, or all.

    >>> whole_and_part("samples+3-9+s3://photos/0.tar+samples+3-9")
    ('s3://photos/0.tar', (3, 9))

    Raises:
        UrlError: for a part whose end was changed.
    """
    try:
        whole, samples = split_part_url(url)
    except ValueError as error:
        raise UrlError(f"{redact(url)} {error}", url=redact(url)) from None
    return (url._with(whole) if isinstance(url, RemoteUrl) and samples is not None else whole), samples


def split_url(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and path of a URL; the bucket of a local or ``memory`` URL is empty.

    >>> split_url("s3://photos/train/cat/1.jpg")
    ('s3', 'photos', 'train/cat/1.jpg')
    >>> split_url("file:///data/1.jpg")
    ('file', '', '/data/1.jpg')
    """
    if not isinstance(url, str):
        raise UrlError(f"Expected a URL as str, got {type(url).__name__}: {url!r:.200}")
    match = _SCHEME.match(url)
    if match is None:
        if not url or "::" in url or "\0" in url:
            raise UrlError(f"{redact(url)!r} is neither a URL (scheme://bucket/path) nor a local path.")
        trailing = "/" if url.endswith(("/", os.sep)) else ""
        return "file", "", os.path.abspath(os.path.expanduser(url)).rstrip("/") + trailing
    scheme, rest = match[1].lower(), match[2]
    if "\0" in rest:
        raise UrlError(f"{redact(url)!r}: a URL cannot hold a NUL character.", url=redact(url))
    if scheme in LOCAL:
        if not rest.startswith("/"):
            raise UrlError(f"{redact(url)}: a file URL needs an absolute path: file:///data/train", url=redact(url))
        return "file", "", rest
    if scheme in WITHOUT_BUCKET:
        return scheme, "", rest.lstrip("/")
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise UrlError(f"{redact(url)}: no bucket. Expected {scheme}://bucket/path.", url=redact(url))
    if ":" in bucket and not bucket.rpartition(":")[2].isdigit() and "@" in path:
        raise UrlError(f"{scheme}://...: credentials do not belong into a URL. Pass them by storage_options.")
    if "::" in bucket:
        raise UrlError(
            f"{redact(url)}: chained URLs are not read; open them by fsspec and pass the streams.", url=redact(url)
        )
    if "@" in bucket:
        raise UrlError(
            f"{redact(url)}: credentials do not belong into a URL, where logs and samples would show them. "
            "Pass them by storage_options or the environment.",
            url=redact(url),
        )
    return scheme, bucket, path


def join_url(scheme: str, bucket: str, path: str) -> str:
    """The URL that :func:`split_url` takes apart."""
    return f"{scheme}://{bucket}/{path}" if bucket else f"{scheme}://{path}"


def redact(url: str) -> str:
    """The URL without user-info and, for http, without its query (signed URLs carry credentials there).

    >>> redact("https://me:pw@host/a.tar?X-Amz-Signature=00")
    'https://host/a.tar'
    """
    shown = str(url)
    http = _HTTP_URL.search(shown)
    if http is not None:
        shown = shown[: http.end()] + re.split(r"[?#]", shown[http.end() :], maxsplit=1)[0]
    if _MEMORY.match(shown):
        return shown  # it has no host, so an @ is part of a name
    return _USER_INFO.sub(r"\1", shown)


def object_path(url: str) -> str:
    """The part of a URL that names a file: without scheme, bucket and query.

    >>> object_path("https://host/a/b.jpg?token=0")
    'a/b.jpg'
    """
    scheme, _, path = split_url(url)
    return (path.partition("?")[0] if scheme in HTTP else path).lstrip("/")
