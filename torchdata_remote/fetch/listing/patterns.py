"""Patterns in source URLs: globs, brace ranges, and escaped characters."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator

from ...core.arguments import explained
from ...core.urls import RemoteUrl, join_url, object_path, redact, split_url, version_start
from ...errors import UrlError
from .source_argument import url_of

# A literal character alone in brackets (as by glob.escape), or a character that may be a pattern
_TOKEN = re.compile(r"\[([*?\[{}])\]|[*?\[{}]")
# The same in a source URL, or braces without others in them
_GROUP = re.compile(r"\[[*?\[{}]\]|\{((?:\[[*?\[{}]\]|[^{}])*)\}")
_GLOB_TOKEN = re.compile(r"\*\*/?|[*?]|\[!?.[^\]]*\]|.", re.DOTALL)
_GLOB_PARTS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_RANGE = re.compile(r"(\d{1,4000})\.\.(\d{1,4000})(\.\.\d+)?")  # Python converts up to 4300 digits
_MAX_NAMES = 10_000_000  # of a range; more are a slip of the keyboard
_HTTP_URL = re.compile(r"https?://", re.IGNORECASE)


@explained
def escape_url(url: str | os.PathLike[str]) -> str:
    """Escape the characters of a URL that are patterns in source URLs: ``*``, ``?``, ``[``, ``{``, ``}``.

    Each becomes a class of one character, as with Python's ``glob.escape``: ``[*]``. The result names that object or
    folder only, wherever a source URL is accepted. Parts of a pattern can be escaped separately:
    ``escape_url(folder) + "/*.tar"``. URLs from a listing (:class:`RemoteUrl`) need no escaping.

    Args:
        url: of an object or a folder, or a local path. In ``http`` URLs, which have no globs, only brackets and braces
            are escaped.

    Example:
        >>> escape_url("s3://photos/what is this?/{raw}/")
        's3://photos/what is this[?]/[{]raw[}]/'
    """
    text = url_of(url, of="escape_url")
    return re.sub(r"[\[{}]" if _HTTP_URL.match(text) else r"[*?\[{}]", r"[\g<0>]", text)


def literal_url(source: str) -> str:
    """Return the URL or path that a source without a pattern names: each escaped character is replaced by itself.

    >>> literal_url("s3://photos/what is this[?]/")
    's3://photos/what is this?/'
    """
    return source if isinstance(source, RemoteUrl) else _TOKEN.sub(lambda token: token[1] or token[0], source)


def glob_start(source: str, characters: str = "*?[{") -> int | None:
    """Return the index of the first unescaped character that may be part of a pattern; ``None`` for a ``RemoteUrl``.

    The version of an object (``?versionId=...``) is no pattern.

    >>> glob_start("a[*]b/*.tar")
    6
    """
    tokens = () if isinstance(source, RemoteUrl) else _TOKEN.finditer(source, 0, version_start(source))
    return next((token.start() for token in tokens if token[1] is None and token[0] in characters), None)


def glob_regex(pattern: str) -> re.Pattern[str]:
    """Compile a glob to a regular expression for whole paths.

    ``*`` and ``?`` stay within a folder, ``**`` crosses folders, ``[abc]`` and ``[!abc]`` are one character. Those of
    the standard library and fsspec let ``[!abc]`` be a slash.

    >>> bool(glob_regex("t-*.tar").fullmatch("t-1.tar")), bool(glob_regex("*.tar").fullmatch("a/t.tar"))
    (True, False)
    """

    def as_regex(token: re.Match[str]) -> str:
        text = token[0]
        if text[0] == "[" and len(text) > 1:
            one = fnmatch.translate(text)  # "(?s:...)" and an end of string
            return "(?!/)" + one[4 : one.rindex(")")]
        return _GLOB_PARTS.get(text) or re.escape(text)

    return re.compile(_GLOB_TOKEN.sub(as_regex, pattern), re.DOTALL)


def path_below(source: str) -> Callable[[str], str]:
    """Return a function that maps the URL of an object to its path below the folder of a source URL.

    >>> path_below("s3://photos/train")("s3://photos/train/cat/1.jpg")
    'cat/1.jpg'
    >>> path_below("s3://photos/train/c*/")("s3://photos/train/cat/1.jpg")
    'cat/1.jpg'
    """
    folders = folders_of(source)

    def path_of(url: str) -> str:
        start = next(filter(url.startswith, folders), None)
        return object_path(url) if start is None else str(url)[len(start) :]

    return path_of


def folders_of(source: str) -> tuple[str, str]:
    """Return the URL of the folder that a source URL may name, and that of the one in which it certainly is.

    >>> folders_of("s3://photos/train"), folders_of("s3://photos/train/c*/")[1]
    (('s3://photos/train/', 's3://photos/'), 's3://photos/train/')
    """
    start = glob_start(source)
    whole = join_url(*split_url(literal_url(source)))
    fixed = whole if start is None else join_url(*split_url(literal_url(source[:start]) + "*"))[:-1]
    return whole if whole.endswith("/") else whole + "/", fixed[: fixed.rindex("/") + 1]


def expand_braces(url: str) -> Iterator[str]:
    """Expand brace ranges and choices, in order and without a listing. Other braces, and a ``RemoteUrl``, are kept.

    The numbers of a range are padded to the width of its first one.

    Raises:
        UrlError: for a range that runs backwards, has a step, or stands for more than ten million names; for choices
            within choices.

    >>> list(expand_braces("s3://b/{train,val}-{08..10}.tar"))[:4]
    ['s3://b/train-08.tar', 's3://b/train-09.tar', 's3://b/train-10.tar', 's3://b/val-08.tar']
    """
    groups = () if isinstance(url, RemoteUrl) else _GROUP.finditer(url, 0, version_start(url))
    for group in groups:
        before, body = url[: group.start()], group[1] or ""
        choices = body.split(",") if "," in body else _numbers(body, url)
        if choices is None:
            continue
        if "{" in _GROUP.sub("", before):
            raise UrlError(f"{redact(url)}: braces within braces are not supported. Name each choice.", url=redact(url))
        for choice in choices:
            yield from expand_braces(before + choice + url[group.end() :])
        return
    yield url


def _numbers(body: str, url: str) -> Iterable[str] | None:
    found = _RANGE.fullmatch(body)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    if found[3] or not first <= last < first + _MAX_NAMES:
        wrong = f"has a step, runs backwards, or has more than {_MAX_NAMES:,} names"
        raise UrlError(f"{redact(url)}: the range {{{body}}} {wrong}.", url=redact(url))
    width = len(found[1])  # {08..10}
    return (f"{number:0{width}d}" for number in range(first, last + 1))
