"""Patterns in source URLs: globs, brace ranges, and escaped characters."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from ...core.arguments.calls import explained
from ...core.object_version import version_start
from ...core.urls import HTTP, RemoteUrl, join_url, object_path, redact, split_url
from ...errors import UrlError

# A literal character alone in brackets (as by glob.escape), or a character that may be a pattern
_TOKEN = re.compile(r"\[([*?\[{}])\]|[*?\[{}]")
_RANGE = re.compile(r"(\d{1,4000})\.\.(\d{1,4000})")  # Python converts up to 4300 digits
_STEPS = re.compile(r"\d+\.\.\d+\.\.\d+")
_MAX_NAMES = 10_000_000  # more are a slip of the keyboard, and would be listed for minutes without a request
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
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str):
        raise UrlError(f"escape_url: expected one URL or path, as str or os.PathLike, got {type(url).__name__}")
    return re.sub(r"[\[{}]" if _HTTP_URL.match(text) else r"[*?\[{}]", r"[\g<0>]", text)


def literal_url(url: str) -> str:
    """Return the URL that a source URL without a pattern names, with escapes removed.

    >>> literal_url("s3://photos/what is this[?]/")
    's3://photos/what is this?/'
    """
    return url if isinstance(url, RemoteUrl) else unescape(url)


def unescape(path: str) -> str:
    """Replace each escaped character by itself.

    >>> unescape("[*]a[[]1]")
    '*a[1]'
    """
    return _TOKEN.sub(lambda token: token[1] or token[0], path)


def _marks(path: str) -> Iterator[tuple[int, str]]:
    """Yield index and character of each unescaped character that may be part of a glob or a brace group.

    The version of an object (``?versionId=...``) is none.
    """
    for token in _TOKEN.finditer(path, 0, version_start(path)):
        if token[1] is None:
            yield token.start(), token[0]


def glob_start(path: str, characters: str = "*?[") -> int | None:
    """Return the index of the first unescaped character of a glob, or ``None``.

    >>> glob_start("a[*]b/*.tar")
    6
    """
    return next((index for index, character in _marks(path) if character in characters), None)


def has_glob(url: str) -> bool:
    """Whether a source URL has a glob; those of http servers and of a listing have none."""
    if isinstance(url, RemoteUrl):
        return False
    scheme, _, path = split_url(url)
    return scheme not in HTTP and glob_start(path) is not None


def choice_start(url: str) -> int | None:
    """Return the index of the first character of a source URL that may be part of a pattern, or ``None``."""
    return None if isinstance(url, RemoteUrl) else glob_start(url, "*?[{")


def glob_regex(pattern: str) -> re.Pattern[str]:
    """Compile a glob to a regular expression for whole paths.

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
        elif pattern[i] in "*?":
            out, i = out + ("[^/]*" if pattern[i] == "*" else "[^/]"), i + 1
        elif pattern[i] == "[" and (close := pattern.find("]", i + (3 if pattern[i + 1 : i + 2] == "!" else 2))) > 0:
            one = fnmatch.translate(pattern[i : close + 1])  # "(?s:...)" and an end of string
            out, i = out + "(?!/)" + one[4 : one.rindex(")")], close + 1
        else:
            out, i = out + re.escape(pattern[i]), i + 1
    return re.compile(out, re.DOTALL)


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
    start = choice_start(source)
    whole = join_url(*split_url(literal_url(source)))
    fixed = whole if start is None else join_url(*split_url(literal_url(source[:start]) + "*"))[:-1]
    return whole if whole.endswith("/") else whole + "/", fixed[: fixed.rindex("/") + 1]


def expand_braces(url: str) -> Iterator[str]:
    """Expand brace ranges and choices, in order and without a listing. Other braces are kept.

    Raises:
        UrlError: for a range that runs backwards or has a step, and for more than ten million names.

    >>> list(expand_braces("s3://b/{train,val}-{08..10}.tar"))[:4]
    ['s3://b/train-08.tar', 's3://b/train-09.tar', 's3://b/train-10.tar', 's3://b/val-08.tar']
    """
    if _num_names(url) > _MAX_NAMES:
        raise UrlError(
            f"{redact(url)}: the braces stand for more than {_MAX_NAMES:,} names, and each would be one object. Check "
            "the ends of its ranges; a folder of so many objects is named by its URL, or by a glob.",
            url=redact(url),
        )
    return _expanded(url)


def has_braces(url: str) -> bool:
    """Whether :func:`expand_braces` expands anything."""
    return _first_group(url) is not None


def _expanded(url: str) -> Iterator[str]:
    group = _first_group(url)
    if group is None:
        yield url
        return
    before, choices, _, after = group
    for choice in choices:
        yield from _expanded(before + choice + after)


def _num_names(url: str) -> int:
    """Count what :func:`expand_braces` yields, without expanding it."""
    group = _first_group(url)
    if group is None:
        return 1
    _, choices, num_numbers, after = group
    return (num_numbers or sum(map(_num_names, choices))) * _num_names(after)


_Group = tuple[
    str, Iterable[str], int, str
]  # what is before it, its choices, how many they are if they are numbers, ...


def _first_group(url: str) -> _Group | None:
    """Return the first group of braces that has choices, an outer one before those in it."""
    marks, opened, groups = dict(_marks(url)), list[list[int]](), list[list[int]]()
    for index, character in enumerate(url):
        if character == "," and opened:
            opened[-1].append(index)
        elif marks.get(index) == "{":
            opened.append([index])
        elif marks.get(index) == "}" and opened:
            groups.append([*opened.pop(), index])
    return next(filter(None, (_group(url, borders) for borders in sorted(groups))), None)


def _group(url: str, borders: list[int]) -> _Group | None:
    """Return the group whose choices are between these characters; ``None`` if it has no choices."""
    start, stop = borders[0], borders[-1]
    before, body, after = url[:start], url[start + 1 : stop], url[stop + 1 :]
    if len(borders) > 2:
        return before, [url[first + 1 : last] for first, last in pairwise(borders)], 0, after
    shown = f"{redact(url)}: the range {{{body}}}"
    if _STEPS.fullmatch(body):
        raise UrlError(f"{shown} has a step, which is not supported.", url=redact(url))
    found = _RANGE.fullmatch(body)
    if found is None:
        return None
    first, last = map(int, found.groups())
    if last < first:
        raise UrlError(f"{shown} runs backwards.", url=redact(url))
    is_padded = any(len(number) > 1 and number.startswith("0") for number in found.groups())
    width = max(map(len, found.groups())) if is_padded else 0
    return before, (f"{number:0{width}d}" for number in range(first, last + 1)), last - first + 1, after
