"""Input of the reader pipes: bare URLs, which are opened here, or streams; numbered for a state."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

from ...core.iter_datapipe import IterDataPipe
from ...core.shard_view import is_view
from ...core.urls import redact
from ...errors import RemoteDataError, StateError
from ...fetch.listing.source_argument import url_of
from ...fetch.session import FetchSession
from ...fetch.streams import StreamsState, stream_objects
from .chain import load_state, state_owner

Opened = Callable[
    [Iterable[str], FetchSession, StreamsState | None], Generator[tuple[str, io.BufferedIOBase], None, None]
]


def streams_of(
    pipe: Iterable[Any], session: FetchSession, state: StreamsState | None = None, opened: Opened = stream_objects
) -> Generator[tuple[str, Any], None, None]:
    """Yield the ``(url, file_like)`` pairs of a pipe. Bare URLs are opened here, with prefetching.

    Args:
        pipe: of pairs or of URLs.
        session: for bare URLs.
        state: from which to resume.
        opened: opens bare URLs.

    Raises:
        RemoteDataError: if an item is neither.
    """
    if state is not None and isinstance(pipe, IterDataPipe) and hasattr(state_owner(pipe), "gives_streams"):
        load_state(pipe, state)
    source = iter(pipe)
    for first in source:
        if isinstance(first, (str, os.PathLike)):
            yield from opened(_only_urls(chain([first], source)), session, state)
        else:
            pairs = _only_pairs(chain([first], source))
            yield from pairs if state is None else _in_state(pairs, state)


def open_first(streams: Generator[tuple[str, Any], None, None]) -> Generator[tuple[str, Any], None, None]:
    """Open the first stream, which starts prefetching, without waiting for bytes; return all streams."""
    first = next(streams, None)

    def with_first() -> Generator[tuple[str, Any], None, None]:
        with closing(streams):
            if first is not None:
                yield first
            yield from streams

    return with_first()


def _only_urls(items: Iterable[Any]) -> Iterator[str]:
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise RemoteDataError(f"Expected a URL, as the items before it, got {type(item).__name__}: {item!r:.200}")
        yield url_of(item)


def _only_pairs(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for item in items:
        if not (isinstance(item, tuple) and len(item) == 2 and hasattr(item[1], "read")):
            raise RemoteDataError(
                f"Expected a URL or a (url, file_like) pair, got {type(item).__name__}: {item!r:.200}."
                + (" The samples are read already: use one reader in a chain." if isinstance(item, dict) else "")
            )
        yield item


def number_of(stream: Any) -> int | None:
    """Number of a stream among those of its pipe; ``None`` for streams that this package did not open."""
    number: int | None = getattr(stream, "number", None)
    return number


def require_number(number: int | None) -> int:
    """Return the number of a stream, for a state.

    Raises:
        StateError: if it has none, so that its position cannot be saved.
    """
    if number is None:
        raise StateError(
            "These streams cannot be opened again at their position. To resume, chain the reader after URLs, or after "
            "async_prefetch(in_order=True)."
        )
    return number


def refuse_part(url: str, samples: tuple[int, int] | None, reader: str) -> None:
    """Refuse what a reader of whole objects cannot read.

    Args:
        url: of an object, or of a view of shards.
        samples: the range of samples that is wanted of it; ``None`` for all.
        reader: name of its class.

    Raises:
        RemoteDataError: for a view, or a range of samples.
    """
    shown = redact(url)
    if is_view(url):
        raise RemoteDataError(
            f"{shown} stands for selected samples, and {reader} reads whole objects only. Read it by "
            "shard_tar_reader(), or leave out select() and join().",
            url=shown,
        )
    if samples is not None:
        raise RemoteDataError(
            f"{shown} was split by samples, because there are fewer objects than readers or equalize_ranks asks for "
            f"it, and {reader} reads whole objects only. Use fewer readers, or shard_tar_reader().",
            url=shown,
        )


def _in_state(pairs: Iterator[tuple[str, Any]], state: StreamsState) -> Iterator[tuple[str, Any]]:
    """Yield the pairs, and check that none of them was read completely before."""
    reopened = {number for number, _ in state.get("again", [])}
    for url, stream in pairs:
        number = number_of(stream)
        if number is not None and number < state["next"] and number not in reopened:
            raise StateError(
                f"{redact(str(url))} was read before the state was saved, and is yielded again: a pipe between "
                "async_prefetch() and the reader did not resume. Between them, use map() and filter() only."
            )
        yield url, stream
