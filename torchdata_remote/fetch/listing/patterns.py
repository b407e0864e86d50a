"""Patterns in source URLs: globs, brace ranges, and escaped characters."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator

from ...core.arguments.calls import explained
from ...core.urls import HTTP, RemoteUrl, join_url, object_path, redact, split_url
from ...errors import UrlError
from .globs import glob_start, marks, unescape

_RANGE = re.compile(r"(\d{1,4000})\.\.(\d{1,4000})")  # Python converts up to 4300 digits
_MAX_NAMES = 10_000_000  # more are a slip of the keyboard, and would be listed for minutes without a request
_STEPS = re.compile(r"\d+\.\.\d+\.\.\d+")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SPECIAL, _SPECIAL_IN_HTTP = re.compile(r"[*?\[{}]"), re.compile(r"[\[{}]")


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
    scheme = _ADDRESS.match(text)
    special = _SPECIAL_IN_HTTP if scheme is not None and scheme[1].lower() in HTTP else _SPECIAL
    return special.sub(r"[\g<0>]", text)


def literal_url(url: str) -> str:
    """Return the URL that a source URL without a pattern names, with escapes removed.

    >>> literal_url("s3://photos/what is this[?]/")
    's3://photos/what is this?/'
    """
    return url if isinstance(url, RemoteUrl) else unescape(url)


def choice_start(url: str) -> int | None:
    """Return the index of the first character of a source URL that may be part of a pattern, or ``None``."""
    return None if isinstance(url, RemoteUrl) else glob_start(url, others="{")


def folder_before_choice(source: str) -> str | None:
    """Return the path of the last folder before the first character of a pattern; ``None`` without a pattern.

    >>> folder_before_choice("s3://photos/train[?]/c*/")
    'train?/'
    """
    scheme, _, path = split_url(source)
    start = None if isinstance(source, RemoteUrl) else choice_start(path.partition("?")[0] if scheme in HTTP else path)
    return None if start is None else literal_url(path[: path.rfind("/", 0, start) + 1])


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


def _expanded(url: str) -> Iterator[str]:
    for group in _brace_groups(url):
        choices = _choices(url, group)
        if choices is not None:
            for choice in choices:
                yield from _expanded(url[: group.start] + choice + url[group.stop :])
            return
    yield url


def _num_names(url: str) -> int:
    """Count what :func:`expand_braces` yields, without expanding it."""
    for group in _brace_groups(url):
        choices = _choices(url, group)
        if choices is not None:
            numbers = _RANGE.fullmatch(url[group][1:-1])
            num = sum(map(_num_names, choices)) if numbers is None else int(numbers[2]) - int(numbers[1]) + 1
            return num * _num_names(url[group.stop :])
    return 1


def has_braces(url: str) -> bool:
    """Whether :func:`expand_braces` expands anything."""
    return any(_choices(url, group) is not None for group in _brace_groups(url))


def _braces(url: str) -> dict[int, int]:
    """Map the index of each unescaped brace to 1 (opening) or -1 (closing)."""
    return {index: 1 if character == "{" else -1 for index, character in marks(url) if character in "{}"}


def _brace_groups(url: str) -> Iterator[slice]:
    """Yield balanced ``{...}`` by their start, outer groups before inner ones."""
    braces = _braces(url)
    for start in (index for index, step in braces.items() if step > 0):
        depth = 0
        for stop in range(start, len(url)):
            depth += braces.get(stop, 0)
            if depth == 0:
                yield slice(start, stop + 1)
                break


def _choices(url: str, group: slice) -> Iterable[str] | None:
    """Return the choices of a group: the numbers of a range, or the texts between commas; else ``None``."""
    body = url[group][1:-1]
    if _STEPS.fullmatch(body):
        raise UrlError(f"{redact(url)}: the range {url[group]} has a step, which is not supported.", url=redact(url))
    numbers = _RANGE.fullmatch(body)
    if numbers is not None:
        first, last = int(numbers[1]), int(numbers[2])
        if last < first:
            raise UrlError(f"{redact(url)}: the range {url[group]} runs backwards.", url=redact(url))
        padded = any(len(number) > 1 and number.startswith("0") for number in numbers.groups())
        width = max(map(len, numbers.groups())) if padded else 0
        return (f"{i:0{width}d}" for i in range(first, last + 1))
    parts, depth, braces = [""], 0, _braces(body)
    for index, character in enumerate(body):
        depth += braces.get(index, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts if len(parts) > 1 else None
