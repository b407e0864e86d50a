"""Distinguish one URL, several URLs and a pipe of URLs, before anything is listed.

A ``str`` is a sequence too: read as a list of URLs, ``"/data/x/"`` would be the URLs ``/``, ``d``, ``a``, ...
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Set
from typing import Any, TypeVar

from ...core.arguments import check
from ...core.urls import redact, split_url
from ...errors import EmptyListingError, UrlError

T = TypeVar("T")

_TEXT = (str, bytes, bytearray, os.PathLike)
_AFTER_URLS = (
    "Put this pipe before those that open URLs (async_prefetch) and read samples (shard_tar_reader, file_reader)."
)
# Pipes of torch that pass on the items of their source
_PASS_THROUGH = frozenset({"ShufflerIterDataPipe", "ShardingFilterIterDataPipe"})


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
    if isinstance(item, str):
        return item
    found = os.fspath(item) if isinstance(item, os.PathLike) else item
    if isinstance(found, str):
        return found
    what = f"as str or os.PathLike, got {type(found).__name__}: {found!r:.200}."
    if isinstance(found, Mapping) and "__key__" in found:
        what = f"got a sample: {found['__key__']!r:.200}. {_AFTER_URLS}"
    elif isinstance(found, tuple) and len(found) == 2 and hasattr(found[1], "read"):
        what = f"got the stream of {redact(str(found[0]))!r:.200}. {_AFTER_URLS}"
    elif isinstance(found, (bytes, bytearray)):
        what += f" Decode it: {bytes(found).decode('utf-8', 'backslashreplace')!r:.200}."
    elif isinstance(found, Iterable):
        what += " Call it once for each of them."
    raise UrlError(f"{of}: expected one URL or path, {what}")


def urls_of(source: Any, *, of: str) -> list[str]:
    """Return several URLs as a list; a single one is a list of one.

    Args:
        source: a URL or path, or several.
        of: name of the function that takes them, for the error.

    Raises:
        UrlError: for ``bytes``, for an item that is neither ``str`` nor ``os.PathLike``, or for an ``IterableWrapper``
            of a ``str``; for a set, whose order differs between processes.
        EmptyListingError: if there are none.

    Example:
        >>> urls_of("s3://photos/train/", of="stream_shards"), urls_of(("a", "b"), of="stream_shards")
        (['s3://photos/train/'], ['a', 'b'])
    """
    if isinstance(source, _TEXT) or not isinstance(source, Iterable):
        source = [source]
    if isinstance(wrapped := _wrapped(source), _TEXT):
        raise _characters(of, wrapped, f"{of}({_shown(wrapped)!r:.200})")
    if isinstance(source, Mapping | Set):
        advice = "its values: list(urls.values())." if isinstance(source, Mapping) else "them in order: sorted(urls)."
        raise UrlError(f"{of}: expected one URL or several, got a {type(source).__name__}. Pass {advice}")
    urls = [url_of(item, of=of) for item in source]
    for url in urls:
        split_url(url)
    if not urls:
        raise EmptyListingError(f"{of}: expected one URL or several, got an empty {type(source).__name__}.")
    return urls


def require_folder(url: str, *, of: str, what: str = "a folder") -> None:
    """Refuse the URL of shards where that of their folder is expected.

    Raises:
        UrlError: with the URL to pass, or for an invalid URL.
    """
    split_url(url)
    if url.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
        shown = redact(url)
        folder = shown.rpartition("/")[0] + "/"
        raise UrlError(f"{of}: expected the URL of {what}, got that of shards: {shown}. Pass {folder}", url=shown)


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
    if isinstance(source, _TEXT) or not isinstance(source, Iterable):
        got = (
            f"the {type(source).__name__} {_shown(source)!r:.200}" if isinstance(source, _TEXT) else check.shown(source)
        )
        advice = f" Write {_spelling(source, of)}" if isinstance(source, _TEXT) and holds == "URLs" else ""
        raise UrlError(f"{of}: expected a pipe of {holds}, got {got}.{advice}")
    if holds == "URLs" and isinstance(wrapped := _wrapped(source), _TEXT):
        raise _characters(of, wrapped, _spelling(wrapped, of))
    return source


def _spelling(text: Any, of: str) -> str:
    return f"IterableWrapper([{_shown(text)!r:.200}]).{of}(...)"


def _characters(of: str, text: Any, spelling: str) -> UrlError:
    what = f"{_named(text)} as a list of URLs, one for each of its characters"
    return UrlError(f"{of}: IterableWrapper reads {what}. Write {spelling}")


def _named(text: Any) -> str:
    return f"the {type(text).__name__} {_shown(text)!r:.200}"


def _shown(text: Any) -> str:
    """Redact a text or a path for errors."""
    return redact(os.fsdecode(bytes(text) if isinstance(text, bytearray) else text))


def _wrapped(pipe: Any) -> Any:
    """Return the iterable of the ``IterableWrapper`` at the source of a pipe; ``None`` if there is none."""
    fields = getattr(pipe, "__dict__", {})
    while type(pipe).__name__ in _PASS_THROUGH:
        pipe = fields.get("datapipe", fields.get("source_datapipe"))
        fields = getattr(pipe, "__dict__", {})
    if "iterable" not in fields:
        return None
    from ...core.iter_datapipe import IterableWrapper  # imports torch, which commands and lists of URLs do not need

    # A user's pipe may have an attribute of this name with another meaning, such as the path of a list of URLs
    is_wrapper = isinstance(pipe, IterableWrapper) and type(pipe).__iter__ is IterableWrapper.__iter__
    return fields["iterable"] if is_wrapper else None
