"""Tell one URL, several URLs and a pipe of URLs apart, before anything is listed.

A ``str`` is a sequence too: taken for a list of URLs, ``"/data/x/"`` would be the URLs ``/``, ``d``, ``a``, ...
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

from ...core.iter_datapipe import IterableWrapper
from ...core.urls import redact
from ...errors import UrlError

T = TypeVar("T")

_TEXT = (str, bytes, bytearray, os.PathLike)
# Pipes of torch whose items are their source's
_PASSES_ON = frozenset({"ShufflerIterDataPipe", "ShardingFilterIterDataPipe"})


def url_of(item: Any, *, of: str = "this") -> str:
    """One URL, or the path that an ``os.PathLike`` stands for.

    Args:
        item: what came.
        of: who wants it, for the error.

    Raises:
        UrlError: for anything else, such as ``bytes`` or a list.

    Example:
        >>> from pathlib import PurePosixPath
        >>> url_of(PurePosixPath("/data/photos"))
        '/data/photos'
    """
    if isinstance(item, str):
        return item
    found = os.fspath(item) if isinstance(item, os.PathLike) else item
    if isinstance(found, str):
        return found
    advice = ""
    if isinstance(found, (bytes, bytearray)):
        advice = f" Decode it: {bytes(found).decode('utf-8', 'backslashreplace')!r:.200}."
    elif isinstance(found, Iterable):
        advice = " Call it once for each of them."
    raise UrlError(
        f"{of}: expected one URL or path, as str or os.PathLike, got {type(found).__name__}: {found!r:.200}.{advice}"
    )


def urls_of(source: Any, *, of: str) -> list[str]:
    """Several URLs; one by itself is a list of one.

    Args:
        source: a URL or path, or several.
        of: who wants them, for the error.

    Raises:
        UrlError: for ``bytes``, for an item that is neither ``str`` nor ``os.PathLike``, or for an ``IterableWrapper``
            of a ``str``.

    Example:
        >>> urls_of("s3://photos/train/", of="stream_shards"), urls_of(("a", "b"), of="stream_shards")
        (['s3://photos/train/'], ['a', 'b'])
    """
    if isinstance(source, _TEXT) or not isinstance(source, Iterable):
        return [url_of(source, of=of)]
    wrapped = _wrapped(source)
    if isinstance(wrapped, _TEXT):
        shown = _shown(wrapped)
        raise UrlError(
            f"{of}: IterableWrapper takes the {type(wrapped).__name__} {shown!r:.200} for a list of URLs, one for each "
            f"of its characters. Write {of}({shown!r:.200})"
        )
    return [url_of(item, of=of) for item in source]


def pipe_of(source: T, *, of: str, holds: str = "URLs") -> T:
    """The source of a pipe, as it is, if it can be one.

    Args:
        source: a pipe, or another iterable.
        of: functional name of the pipe that reads it.
        holds: what its items are: ``"URLs"``, ``"samples"``. Only a source of URLs is looked into.

    Raises:
        UrlError: for a ``str``, ``bytes`` or path where a pipe belongs, or where the ``IterableWrapper`` of a pipe of
            URLs has one instead of a list: it would be taken apart into characters.
    """
    found: Any = source
    if not isinstance(source, _TEXT):
        found = _wrapped(source) if holds == "URLs" else None
        if not isinstance(found, _TEXT):
            if isinstance(source, Iterable):
                return source
            raise UrlError(f"{of}: expected a pipe of {holds}, got {type(source).__name__}: {source!r:.200}.")
    shown = _shown(found)
    spelling = f"IterableWrapper([{shown!r:.200}]).{of}(...)"
    what = f"the {type(found).__name__} {shown!r:.200}"
    if holds != "URLs":
        raise UrlError(f"{of}: expected a pipe of {holds}, got {what}.")
    if found is source:
        raise UrlError(f"{of}: expected a pipe of URLs, got {what}. Write {spelling}")
    raise UrlError(
        f"{of}: IterableWrapper takes {what} for a list of URLs, one for each of its characters. Write {spelling}"
    )


def _shown(text: Any) -> str:
    """A text or a path as errors may show it."""
    return redact(os.fsdecode(bytes(text) if isinstance(text, bytearray) else text))


def _wrapped(pipe: Any) -> Any:
    """What the ``IterableWrapper`` holds that the items of a pipe come from, unchanged; ``None`` if there is none."""
    fields = getattr(pipe, "__dict__", {})
    while type(pipe).__name__ in _PASSES_ON:
        pipe = fields.get("datapipe", fields.get("source_datapipe"))
        fields = getattr(pipe, "__dict__", {})
    # A pipe of a user's own may call anything so, such as the path of a file that lists URLs
    is_wrapper = isinstance(pipe, IterableWrapper) and type(pipe).__iter__ is IterableWrapper.__iter__
    return fields.get("iterable") if is_wrapper else None
