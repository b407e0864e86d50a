"""Distinguish one URL, several URLs and a pipe of URLs, before anything is listed.

A ``str`` is a sequence too: read as a list of URLs, ``"/data/x/"`` would be the URLs ``/``, ``d``, ``a``, ...
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar

from ...core import arguments as check
from ...core.urls import redact, split_url
from ...errors import EmptyListingError, UrlError

T = TypeVar("T")

_TEXT = (str, bytes, bytearray, os.PathLike)
_AFTER_URLS = (
    " Put this pipe before those that open URLs (async_prefetch) and read samples (shard_tar_reader, file_reader)."
)


def url_of(item: Any, *, of: str = "this") -> str:
    """Return one URL, or the path of an ``os.PathLike``.

    Args:
        item: the argument.
        of: name of the function that takes it, for the error.

    Raises:
        UrlError: for anything else, such as ``bytes`` or a list.

    Example:
        >>> from pathlib import PurePosixPath
        >>> url_of(PurePosixPath("/data/photos"))
        '/data/photos'
    """
    found = os.fspath(item) if not isinstance(item, str) and isinstance(item, os.PathLike) else item
    if isinstance(found, str):
        return found
    advice = _AFTER_URLS if isinstance(found, Mapping | tuple) else ""
    got = f"got {check.shown(found)}.{advice}"
    raise UrlError(f"{of}: expected one URL or path, as str or os.PathLike, {got}")


def urls_of(source: Any, *, of: str) -> list[str]:
    """Return several URLs as a list; a single one is a list of one.

    Args:
        source: a URL or path, or several.
        of: name of the function that takes them, for the error.

    Raises:
        UrlError: for ``bytes``, for an item that is neither ``str`` nor ``os.PathLike``, or for an ``IterableWrapper``
            of a ``str``; for a set, whose order differs between processes, and a dict.
        EmptyListingError: if there are none.

    Example:
        >>> urls_of("s3://photos/train/", of="stream_shards"), urls_of(("a", "b"), of="stream_shards")
        (['s3://photos/train/'], ['a', 'b'])
    """
    if isinstance(source, _TEXT) or not isinstance(source, Iterable):
        source = [source]
    _refuse_characters(source, of, f"{of}({{}})")
    if isinstance(source, Mapping | Set):
        raise UrlError(f"{of}: expected one URL or several, got {check.shown(source)}. Pass a list of them.")
    urls = [url_of(item, of=of) for item in source]
    for url in urls:
        split_url(url)
    if not urls:
        raise EmptyListingError(f"{of}: expected one URL or several, got an empty {type(source).__name__}.")
    return urls


def pipe_of(source: T, *, of: str, holds: str = "URLs") -> T:
    """Validate the source of a pipe, and return it.

    Args:
        source: a pipe, or another iterable.
        of: functional name of the pipe that reads it.
        holds: what its items are: ``"URLs"``, ``"samples"``. Only a source of URLs is inspected.

    Raises:
        UrlError: for a ``str``, ``bytes`` or path instead of a pipe, or instead of the list in the ``IterableWrapper``
            of a pipe of URLs: it would be iterated by characters.
    """
    right = f"IterableWrapper([{{}}]).{of}(...)"
    if isinstance(source, _TEXT):
        advice = f" Write {right.format(_shown(source))}" if holds == "URLs" else ""
        raise UrlError(f"{of}: expected a pipe of {holds}, got the {type(source).__name__} {_shown(source)}.{advice}")
    if not isinstance(source, Iterable):
        raise UrlError(f"{of}: expected a pipe of {holds}, got {check.shown(source)}.")
    if holds == "URLs":
        _refuse_characters(source, of, right)
    return source


def _shown(text: Any) -> str:
    """Redact and quote a text or a path for errors."""
    return f"{redact(os.fsdecode(bytes(text) if isinstance(text, bytearray) else text))!r:.200}"


def _refuse_characters(pipe: Any, of: str, right: str) -> None:
    """Refuse the ``IterableWrapper`` of a text."""
    text = getattr(pipe, "__dict__", {}).get("iterable")
    if not isinstance(text, _TEXT):
        return
    from ...core.iter_datapipe import IterableWrapper  # imports torch, which commands and lists of URLs do not need

    # A user's pipe may have an attribute of this name with another meaning, such as the path of a list of URLs
    if isinstance(pipe, IterableWrapper) and type(pipe).__iter__ is IterableWrapper.__iter__:
        what = f"the {type(text).__name__} {_shown(text)} as a list of URLs, one for each of its characters"
        raise UrlError(f"{of}: IterableWrapper reads {what}. Write {right.format(_shown(text))}")
