"""URLs: what flows first through every chain.

A URL here is ``scheme://bucket/path`` with the path as the store spells it: nothing is percent-encoded, and only
``http`` and ``https`` know a query. A bare local path becomes a ``file://`` URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from .errors import UrlError

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")
_GLOB = re.compile(r"[*?\[]")
HTTP = frozenset({"http", "https"})
LOCAL = frozenset({"file", "local"})
WITHOUT_BUCKET = LOCAL | {"memory"}


class RemoteUrl(str):
    """A URL that knows what the listing told about its object, so that nobody has to ask again.

    Args:
        url: the full address, with scheme.
        size: bytes, or ``None`` where the listing did not tell.
        etag: the store's version tag as it sent it, or ``None``.
    """

    __slots__ = ("etag", "size")

    size: int | None
    etag: str | None

    def __new__(cls, url: str, size: int | None = None, etag: str | None = None) -> RemoteUrl:
        self = super().__new__(cls, url)
        self.size = size
        self.etag = etag
        return self

    def __getnewargs__(self) -> tuple[str, int | None, str | None]:  # type: ignore[override]  # str's gives one
        return str(self), self.size, self.etag


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
            raise UrlError(f"{url!r} is neither a URL (scheme://bucket/path) nor a local path.")
        trailing = "/" if url.endswith(("/", os.sep)) else ""
        return "file", "", os.path.abspath(os.path.expanduser(url)).rstrip("/") + trailing
    scheme, rest = match[1].lower(), match[2]
    if "\0" in rest:
        raise UrlError(f"{redact(url)!r}: a URL cannot hold a NUL character.", url=redact(url))
    if scheme in LOCAL:
        if not rest.startswith("/"):
            raise UrlError(f"{url}: a file URL needs an absolute path: file:///data/train", url=url)
        return "file", "", rest
    if scheme in WITHOUT_BUCKET:
        return scheme, "", rest.lstrip("/")
    bucket, _, path = rest.partition("/")
    if not bucket:
        raise UrlError(f"{url}: no bucket. Expected {scheme}://bucket/path.", url=url)
    if "::" in bucket:
        raise UrlError(f"{url}: chained URLs are not read; open them by fsspec and pass the streams.", url=url)
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
    match = _SCHEME.match(str(url))
    if match is None:
        return str(url)
    scheme, rest = match[1], match[2]
    host, slash, path = rest.partition("/")
    if scheme.lower() in HTTP:
        host, path = host.partition("?")[0], path.partition("?")[0]
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def object_path(url: str) -> str:
    """The part of a URL that names a file: without scheme, bucket and query.

    >>> object_path("https://host/a/b.jpg?token=0")
    'a/b.jpg'
    """
    scheme, _, path = split_url(url)
    return (path.partition("?")[0] if scheme in HTTP else path).lstrip("/")


def expand_braces(url: str) -> Iterator[str]:
    """All URLs that a brace range stands for, in order; asks no store.

    >>> list(expand_braces("s3://b/{train,val}-{08..10}.tar"))[:4]
    ['s3://b/train-08.tar', 's3://b/train-09.tar', 's3://b/train-10.tar', 's3://b/val-08.tar']
    """
    match = _BRACES.search(url)
    if match is None:
        yield url
        return
    if match[3] is None:
        first, last = int(match[1]), int(match[2])
        if last < first:
            raise UrlError(f"{redact(url)}: the range {match[0]} runs backwards.", url=redact(url))
        width = len(match[1]) if match[1].startswith("0") or len(match[1]) == len(match[2]) else 0
        choices: Iterator[str] = (f"{i:0{width}d}" for i in range(first, last + 1))
    else:
        choices = iter(match[3].split(","))
    for choice in choices:
        yield from expand_braces(url[: match.start()] + choice + url[match.end() :])


def has_braces(url: str) -> bool:
    """Whether :func:`expand_braces` would expand anything."""
    return _BRACES.search(url) is not None


def glob_start(path: str) -> int | None:
    """Index of the first glob character (``*``, ``?``, ``[``) in a path, or ``None``."""
    match = _GLOB.search(path)
    return match.start() if match else None


def glob_regex(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression over a whole path.

    ``*`` and ``?`` stay within a folder, ``**`` crosses folders, ``[abc]`` and ``[!abc]`` are one character.

    >>> bool(glob_regex("t-*.tar").fullmatch("t-1.tar")), bool(glob_regex("*.tar").fullmatch("a/t.tar"))
    (True, False)
    """
    out, i = "", 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
        elif pattern.startswith("**", i):
            out, i = out + ".*", i + 2
        elif pattern[i] == "*":
            out, i = out + "[^/]*", i + 1
        elif pattern[i] == "?":
            out, i = out + "[^/]", i + 1
        elif pattern[i] == "[" and (close := pattern.find("]", i + 2)) > 0:
            body = pattern[i + 1 : close].replace("\\", "\\\\").replace("[", "\\[")
            out, i = out + "[" + ("^" + body[1:] if body[0] == "!" else body) + "]", close + 1
        else:
            out, i = out + re.escape(pattern[i]), i + 1
    return re.compile(out, re.DOTALL)
