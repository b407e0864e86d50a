"""Parse, join and redact URLs.

A URL is ``scheme://bucket/path``, with the path as the store spells it: nothing is percent-encoded, and only ``http``
and ``https`` have a query. A bare local path becomes a ``file://`` URL. ``s3://bucket/key?versionId=...`` names one
version of an object. A key may contain the same text, so only the end of a URL is a version, and one more
``?versionId=`` with nothing after it says that what is before it is the whole key. Listings write such keys so.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..errors import UrlError
from .checksums import Checksums

if TYPE_CHECKING:
    from .shard_view import ShardView

HTTP = frozenset({"http", "https"})
S3 = frozenset({"s3", "s3a"})
AZURE = frozenset({"az", "abfs", "abfss"})
GS = frozenset({"gs", "gcs"})
LOCAL = frozenset({"file", "local"})
DATASETS = "datasets"
HUGGING_FACE = "hf"
WITHOUT_BUCKET = LOCAL | {"memory"}

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)
_PLAIN = re.compile(r"(s3|gs|https?)://([\w.-]+)/([^:\0]*)")  # nothing to refuse, as in most
_HTTP_URL = re.compile(r"https?://", re.IGNORECASE)
_USER_INFO = re.compile(r"(\w*)://([^/]*)@")
_USER_INFO_IN_TEXT = re.compile(r"(\w*)://([^/\s\"'<>()]*)@")
# What is before an @ without being a credential: a container before its account, a repository before its revision
_BEFORE_AT = re.compile(r"(?:az|abfss?|wasbs?)://[\w.$-]{1,63}@|hf://(?!hf_)[\w.-]{1,96}@", re.ASCII | re.IGNORECASE)
_SIGNATURE = re.compile(r"(?<![A-Za-z0-9])((?:sig|signature|security-token)=)[^&\s\"'<>()]+", re.IGNORECASE)
_HEADER_VALUE = re.compile(r"(Invalid header value )b?(['\"]).*?(?<!\\)\2", re.DOTALL)
_MISTYPED = re.compile(
    r"\s+\w+://|(s3a?|gcs|gs|az|abfss?|https?|file|memory|datasets|hf)(:/?|//+)[^/\\]", re.IGNORECASE
)
# File systems of fsspec that read another one
_CHAINING = "simplecache|filecache|blockcache|cached|zip|tar|libarchive|reference|dask|dir"
_CHAINED = re.compile(rf"({_CHAINING})(://.*)?::|[a-z][a-z0-9+.-]*(://[^/\[]*::|::.*://)", re.IGNORECASE | re.DOTALL)
_ACCESS_POINT = re.compile(
    r"(arn:aws[a-z-]*:(?:s3|s3-object-lambda):[a-z0-9-]*:\d{12}:accesspoint[/:][A-Za-z0-9.-]{1,63}"
    r"|arn:aws[a-z-]*:s3-outposts:[a-z0-9-]+:\d{12}:outpost[/:][A-Za-z0-9-]{1,63}[/:]accesspoint[/:][A-Za-z0-9-]{1,63})"
    r"(?:/(.*))?",
    re.DOTALL,
)
_VERSION_MARK = "?versionId="
_VERSION = re.compile(r"\?versionId=([A-Za-z0-9._~+=-]{0,1024})\Z")
# Of a VirtualUrl: its beginning, and its end, which is left where a URL was rebuilt from a path or a base name
_SAMPLES, _PUT_TOGETHER = r"(samples|bytes) \d+ to \d+", "(view|join) [0-9a-f]{16}"
_VIRTUAL = re.compile(rf"part of .*|.* \(({_SAMPLES}|({_SAMPLES} of )?{_PUT_TOGETHER})\)", re.DOTALL)

_Url = TypeVar("_Url", bound="RemoteUrl")


class RemoteUrl(str):
    """A URL with the metadata of its object that a listing or a manifest returned, which saves further requests.

    Args:
        url: the full address, with scheme.
        size: bytes, or ``None`` if it is unknown.
        etag: the store's version tag as it sent it, or ``None``.
        checksums: of its blocks, from a manifest, or ``None``.
        num_samples: in the shard, from a manifest, or ``None``. Of a part that was listed as such, in the part.
        md5: hexadecimal, of the object, from a manifest, or ``None``.
        index_crc32: of the index beside a shard, from a manifest, or ``None``.
        keys_crc32: of the file of keys beside a shard, from a manifest, or ``None``.
    """

    __slots__ = ("checksums", "etag", "index_crc32", "keys_crc32", "md5", "num_samples", "size")

    size: int | None
    etag: str | None
    checksums: Checksums | None
    num_samples: int | None
    md5: str | None
    index_crc32: int | None
    keys_crc32: int | None

    def __new__(
        cls: type[_Url],
        url: str,
        size: int | None = None,
        etag: str | None = None,
        checksums: Checksums | None = None,
        num_samples: int | None = None,
        md5: str | None = None,
        index_crc32: int | None = None,
        keys_crc32: int | None = None,
    ) -> _Url:
        if not isinstance(url, str | os.PathLike):
            raise UrlError(f"RemoteUrl: expected a URL as str, got {type(url).__name__}: {url!r:.200}.")
        self = super().__new__(cls, url)
        self.size = size
        self.etag = etag
        self.checksums = checksums
        self.num_samples = num_samples
        self.md5 = md5
        self.index_crc32 = index_crc32
        self.keys_crc32 = keys_crc32
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (str(self), *self._known())

    def _known(self) -> tuple[Any, ...]:
        return self.size, self.etag, self.checksums, self.num_samples, self.md5, self.index_crc32, self.keys_crc32

    def part(self, first: int, last: int) -> RemoteUrl:
        """Return what stands for samples ``first`` to ``last`` (exclusive) of this shard, with what is known of it."""
        if (first, last) == (0, self.num_samples):
            return self
        return VirtualUrl((self,), None, (first, last), *self._known())


class VirtualUrl(RemoteUrl):
    """What readers take for one shard, and no store has: samples of shards, or shards that are read side by side.

    Its text names the first shard and is no URL, so what opens objects refuses it, and a ``str`` that was made of it.

    Args:
        shards: that are read; errors and samples name the first one.
        view: the bytes of selected samples; ``None`` for all bytes of the shards.
        samples: range (exclusive) of those of the shards or of the view; ``None`` for all.
        known: fields of a :class:`RemoteUrl`, from ``size`` on. The etag of a view or of several shards is a digest.
    """

    __slots__ = ("samples", "shards", "view")
    unit = "samples"  # that a range counts

    shards: tuple[RemoteUrl, ...]
    view: ShardView | None
    samples: tuple[int, int] | None

    def __new__(
        cls, shards: tuple[RemoteUrl, ...], view: ShardView | None, samples: tuple[int, int] | None, *known: Any
    ) -> VirtualUrl:
        etag = known[1]
        what = [] if samples is None else [f"{cls.unit} {samples[0]} to {samples[1]}"]
        if view is not None or len(shards) > 1:
            what.append(f"{'join' if view is None else 'view'} {etag}")
        self = super().__new__(cls, f"part of {shards[0]} ({' of '.join(what)})", *known)
        self.shards, self.view, self.samples = shards, view, samples
        return self

    def __reduce__(self) -> Any:
        return type(self), (self.shards, self.view, self.samples, *self._known())

    def part(self, first: int, last: int) -> RemoteUrl:
        if (first, last) == (0, self.num_samples):
            return self
        begin = 0 if self.samples is None else self.samples[0]
        return VirtualUrl(self.shards, self.view, (begin + first, begin + last), *self._known())

    def whole(self) -> RemoteUrl:
        """Return the shard, the shards or the view that this is a part of."""
        if self.view is None and len(self.shards) == 1:
            return self.shards[0]
        return self if self.samples is None else VirtualUrl(self.shards, self.view, None, *self._known())


class LineRange(VirtualUrl):
    """Complete lines of a text file: those in a range of its bytes, which ``samples`` has. ``line_reader`` reads them.

    >>> LineRange.of(RemoteUrl("s3://texts/a.jsonl", size=1_000), 200, 500)
    'part of s3://texts/a.jsonl (bytes 200 to 500)'
    """

    __slots__ = ()
    unit = "bytes"

    @classmethod
    def of(cls, file: RemoteUrl, start: int, stop: int) -> LineRange:
        """Return the URL of bytes ``start`` to ``stop`` (exclusive) of a file."""
        made: Any = cls((file,), None, (start, stop), file.size, file.etag)
        return cast("LineRange", made)

    def whole(self) -> RemoteUrl:
        """Return this URL: nothing else may read all of the file in its place."""
        return self


def remote_urls(
    start: str, paths: Iterable[str], sizes: Iterable[int | None], etags: Iterable[str | None]
) -> list[RemoteUrl]:
    """Make the URLs of listed objects, in a third of the time that as many calls of ``RemoteUrl`` take.

    >>> [(url, url.size) for url in remote_urls("s3://b/", ["x/1", "x/2"], [7, 8], [None, None])]
    [('s3://b/x/1', 7), ('s3://b/x/2', 8)]
    """
    make, urls = str.__new__, []
    for path, size, etag in zip(paths, sizes, etags, strict=True):
        url = make(RemoteUrl, start + path)
        url.size, url.etag = size, etag
        url.checksums = url.num_samples = url.md5 = url.index_crc32 = url.keys_crc32 = None
        urls.append(url)
    return urls


def split_sample_range(url: str) -> tuple[str, tuple[int, int] | None]:
    """Split a URL into that of the whole shard or view and the range of samples (exclusive), which is ``None`` for all.

    >>> split_sample_range(RemoteUrl("s3://photos/0.tar").part(3, 9))
    ('s3://photos/0.tar', (3, 9))

    Raises:
        UrlError: for a ``str`` that was made of a :class:`VirtualUrl`.
    """
    if isinstance(url, VirtualUrl):
        return url.whole(), url.samples
    if not isinstance(url, RemoteUrl) and (url.startswith("part of ") or url.endswith(")")) and _VIRTUAL.fullmatch(url):
        raise _no_object(url)
    return url, None


def _no_object(url: str) -> UrlError:
    return UrlError(
        f"{redact(url)} is the text of samples of a shard, and no URL. Only async_prefetch() and shard_tar_reader() "
        "read these: pass whole shards to anything else, and put the pipe that made a str of it, such as map(), before "
        "select(), join() and sharding_filter_rank().",
        url=redact(url),
    )


def split_url(url: str) -> tuple[str, str, str]:
    """Split a URL into scheme, bucket and path; the bucket of a local or ``memory`` URL is empty.

    The bucket of S3 may be the ARN of an access point, which contains slashes; that of Azure may name its account.

    >>> split_url("s3://photos/train/cat/1.jpg")
    ('s3', 'photos', 'train/cat/1.jpg')
    >>> split_url("file:///data/1.jpg")
    ('file', '', '/data/1.jpg')
    >>> split_url("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/cat/1.jpg")
    ('s3', 'arn:aws:s3:eu-west-1:123456789012:accesspoint/mine', 'cat/1.jpg')
    >>> split_url("abfss://photos@account.dfs.core.windows.net/cat/1.jpg")
    ('abfss', 'photos@account.dfs.core.windows.net', 'cat/1.jpg')

    Raises:
        UrlError: for what is no URL, or cannot be read, or holds credentials.
    """
    if not isinstance(url, str):
        raise UrlError(f"Expected a URL as str, got {type(url).__name__}: {url!r:.200}")
    if (plain := _PLAIN.fullmatch(url)) is not None:
        scheme, bucket, path = plain.groups()
        return scheme, bucket, path
    if url.startswith("file:///") and "\0" not in url:
        return "file", "", url[7:]
    match = _SCHEME.match(url)
    if match is None and url.startswith("part of "):
        raise _no_object(url)
    if "\0" in url or not url:
        raise UrlError(
            f"{redact(url)!r} is neither a URL (scheme://bucket/path) nor a local path: empty, or with a NUL."
        )
    scheme, rest = ("", "") if match is None else (match[1].lower(), match[2])
    if scheme in LOCAL:
        if not rest.startswith("/"):
            raise UrlError(f"{redact(url)}: a file URL needs an absolute path: file:///data/train", url=redact(url))
        return "file", "", rest
    if scheme in WITHOUT_BUCKET:
        return scheme, "", rest.lstrip("/")
    if "::" in url and _CHAINED.match(url) and not os.path.lexists(url):
        raise UrlError(
            f"{redact(url)!r}: chains of fsspec are not read. Pass the URL behind the last ::, with a reader of its "
            "archive, such as shard_zip_reader(), or cache_dir= for a local cache. Or open it by fsspec and pass the "
            "streams: IterableWrapper([(url, fsspec.open(url, 'rb').open())], deepcopy=False).file_reader()"
        )
    if match is None:
        return "file", "", _local_path(url)
    return scheme, *_bucket_and_path(scheme, rest, redact(url))


def _local_path(path: str) -> str:
    """Make a local path absolute; refuse one that was meant as a URL, unless it exists."""
    if (found := _MISTYPED.match(path)) is not None and not os.path.lexists(path):
        raise UrlError(
            f"A path that begins with {found[0]!r} is no URL. Write scheme://bucket/path, as s3://photos/train."
        )
    trailing = "/" if path.endswith(("/", os.sep)) else ""
    return os.path.abspath(os.path.expanduser(path)).rstrip("/") + trailing


def _bucket_and_path(scheme: str, rest: str, shown: str) -> tuple[str, str]:
    """Split what follows ``scheme://``; refuse credentials."""
    if scheme in S3 and rest.startswith("arn:"):
        if (found := split_access_point(rest)) is None:
            expected = "arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME, with an account of 12 digits"
            raise UrlError(f"{shown}: no ARN of an access point, which is {expected}.", url=shown)
        return found
    bucket, _, path = rest.partition("/")
    if not bucket:
        shown = f"{scheme}:///..." if "@" in path else shown
        what = "host" if scheme in HTTP or scheme == DATASETS else "bucket"
        raise UrlError(f"{shown}: no {what}. Expected {scheme}://{what}/path.", url=shown)
    is_key = ":" in bucket and not bucket.rpartition(":")[2].isdigit() and "@" in path
    if is_key or ("@" in bucket and not _BEFORE_AT.match(f"{scheme}://{bucket.rpartition('@')[0]}@")):
        raise UrlError(
            f"{scheme}://...: credentials do not belong into a URL, where logs and samples would show them. Pass them "
            "by storage_options or the environment."
        )
    if scheme in AZURE and "?" in rest and _SIGNATURE.search(rest):
        raise UrlError(
            f"{shown}: a SAS does not belong into a URL, where logs and samples would show it. Pass "
            "storage_options={'sas_token': ...}, or set AZURE_STORAGE_SAS_TOKEN.",
            url=shown,
        )
    return bucket, path


def split_access_point(rest: str) -> tuple[str, str] | None:
    """Split what follows ``s3://`` into the ARN of an access point and the key; ``None`` if it begins with none."""
    found = _ACCESS_POINT.fullmatch(rest)
    return None if found is None else (found[1], found[2] or "")


def join_url(scheme: str, bucket: str, path: str) -> str:
    """Return the URL that :func:`split_url` splits into these."""
    return f"{scheme}://{bucket}/{path}" if bucket else f"{scheme}://{path}"


def redact(url: str) -> str:
    """Remove user-info and, for http, the query from a URL: signed URLs carry credentials there.

    Of a :class:`VirtualUrl` it is the URL of the first shard.

    >>> redact("https://me:pw@host/a.tar?X-Amz-Signature=00")
    'https://host/a.tar'
    """
    shown = str(url.shards[0] if isinstance(url, VirtualUrl) else url)
    if "@" not in shown and "?" not in shown and "#" not in shown:
        return shown
    http = _HTTP_URL.search(shown)
    if http is not None:
        shown = shown[: http.end()] + re.split(r"[?#]", shown[http.end() :], maxsplit=1)[0]
    if shown.startswith(("memory://", "part of memory://")):
        # It has no host, so an @ is part of a name
        return shown
    if http is None and "://" in shown:
        shown = _hide_signatures(shown)
    return _USER_INFO.sub(_without_user_info, shown)


def redact_text(text: str) -> str:
    """Remove user-info, and the signatures of Azure, from the URLs in a text, such as the message of a library.

    So are values of headers that cannot be sent.

    >>> redact_text("cannot connect to 'http://me:pw@host:80/a@b' via http://p:q@proxy")
    "cannot connect to 'http://host:80/a@b' via http://proxy"
    >>> redact_text("GET /box/a?se=2026-01-01&sig=SECRET%3D&sp=r failed")
    'GET /box/a?se=2026-01-01&sig=...&sp=r failed'
    """
    return _USER_INFO_IN_TEXT.sub(_without_user_info, _hide_signatures(text))


def _without_user_info(found: re.Match[str]) -> str:
    """Return what replaces ``scheme://USER@``: names stay, credentials do not."""
    return found[0] if _BEFORE_AT.fullmatch(found[0]) else f"{found[1]}://"


def _hide_signatures(text: str) -> str:
    return _SIGNATURE.sub(r"\1...", _HEADER_VALUE.sub(r"\1...", text))


class _WithoutSignatures(logging.Filter):
    """Hides the signatures in the URLs that a library logs at level DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_hide_signatures(one) if isinstance(one, str) else one for one in record.args)
        return True


_FILTER = _WithoutSignatures()


def hide_signatures_in_log(name: str) -> None:
    """Hide signatures in what a logger logs. Later calls have no effect."""
    logging.getLogger(name).addFilter(_FILTER)


def object_path(url: str) -> str:
    """Return the path of a URL, without scheme, bucket, query, and the version of an object of S3.

    >>> [object_path(url) for url in ("https://host/a/b.jpg?token=0", "s3://photos/b.jpg?versionId=3sL4")]
    ['a/b.jpg', 'b.jpg']
    """
    scheme, _, path = split_url(url)
    if scheme in S3 and "?" in path:
        path, _ = split_version(path)
    return (path.partition("?")[0] if scheme in HTTP else path).lstrip("/")


def url_beside(url: str, ending: str) -> str:
    """Return the URL of the object that has the name of another one and an ending.

    A query of http stays behind the name: it may be a token of the whole folder. A version of an object of S3 is left
    out, because the other object has versions of its own.

    >>> url_beside("https://host/0.tar?download=true", ".keys"), url_beside("s3://photos/0.tar?versionId=3sL4", ".keys")
    ('https://host/0.tar.keys?download=true', 's3://photos/0.tar.keys')
    """
    scheme = url.partition("://")[0].lower()
    if scheme in HTTP:
        path, mark, query = url.partition("?")
        return f"{path}{ending}{mark}{query}"
    return key_as_path(split_version(url)[0] + ending) if scheme in S3 else f"{url}{ending}"


def bare_etag(etag: str) -> str:
    """Return an etag without quotes and the mark of a weak one, in which listings and responses may differ.

    >>> [bare_etag(etag) for etag in ("1f", '"1f"', 'W/"1f"')]
    ['1f', '1f', '1f']
    """
    return etag.strip().removeprefix("W/").strip('"')


def same_etag(one: str | None, other: str | None) -> bool:
    """Whether two etags name one version of an object, as far as both are known."""
    return one is None or other is None or one == other or bare_etag(one) == bare_etag(other)


def version_start(path: str) -> int:
    """Return where the version of a path or URL begins; its length if it has none.

    >>> [version_start(path) for path in ("a.tar", "a.tar?versionId=x1", "a?versionId=x/b")]
    [5, 5, 15]
    """
    found = _VERSION.search(path) if _VERSION_MARK in path else None
    return len(path) if found is None else found.start()


def split_version(path: str) -> tuple[str, str | None]:
    """Split the path of a URL of S3 into the key and the version, which is ``None`` for the current one.

    >>> split_version("train/0.tar?versionId=3sL4kqtJ")
    ('train/0.tar', '3sL4kqtJ')
    >>> split_version("notes?versionId=3?versionId=")
    ('notes?versionId=3', None)
    """
    start = version_start(path)
    return path[:start], path[start + len(_VERSION_MARK) :] or None


def key_as_path(key: str) -> str:
    """Return the path by which a URL names the current version of a key.

    >>> [key_as_path(key) for key in ("train/0.tar", "notes?versionId=3")]
    ['train/0.tar', 'notes?versionId=3?versionId=']
    """
    return key if version_start(key) == len(key) else key + _VERSION_MARK


def keys_as_paths(keys: list[str]) -> list[str]:
    """Apply :func:`key_as_path` to the keys of a listing."""
    return list(map(key_as_path, keys)) if any(_VERSION_MARK in key for key in keys) else keys
