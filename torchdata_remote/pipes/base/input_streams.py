"""What a reader pipe receives: URLs, which it opens itself, or streams; with their numbers for a state."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

from ...core.iter_datapipe import IterDataPipe
from ...core.urls import redact
from ...errors import RemoteDataError, StateError
from ...fetch.listing.source_argument import url_of
from ...fetch.session import FetchSession
from ...fetch.streams import StreamsState, stream_objects
from .chain import load_state, state_owner


def streams_of(
    pipe: Iterable[Any], engine: FetchSession, state: StreamsState | None = None
) -> Generator[tuple[str, Any], None, None]:
    """A pipe's ``(url, file_like)`` pairs as they come; bare URLs are opened here, ahead of time.

    Args:
        pipe: of pairs or of URLs.
        engine: for bare URLs.
        state: where to go on.

    Raises:
        RemoteDataError: if an item is neither.
    """
    if state is not None and isinstance(pipe, IterDataPipe) and hasattr(state_owner(pipe), "gives_streams"):
        load_state(pipe, state)
    source = iter(pipe)
    for first in source:
        if isinstance(first, (str, os.PathLike)):
            yield from stream_objects(_only_urls(chain([first], source)), engine, state)
        else:
            yield from _in_state(_only_pairs(chain([first], source)), state)


def under_way(streams: Generator[tuple[str, Any], None, None]) -> Generator[tuple[str, Any], None, None]:
    """The same streams, of which the first is opened now, and the next ones with it, without waiting for bytes."""
    first = next(streams, None)

    def all_of_them() -> Generator[tuple[str, Any], None, None]:
        with closing(streams):
            if first is not None:
                yield first
            yield from streams

    return all_of_them()


def _only_urls(items: Iterable[Any]) -> Iterator[str]:
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise RemoteDataError(f"Expected a URL, as before, got {type(item).__name__}: {item!r:.200}")
        yield url_of(item)


def _only_pairs(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for item in items:
        if not (isinstance(item, tuple) and len(item) == 2 and hasattr(item[1], "read")):
            raise RemoteDataError(
                f"Expected a URL or a (url, file_like) pair, got {type(item).__name__}: {item!r:.200}"
            )
        yield item


def number_of(stream: Any) -> int | None:
    """A stream's number among those of its pipe; ``None`` for streams of others."""
    number: int | None = getattr(stream, "number", None)
    return number


def known(number: int | None) -> int:
    """A stream's number, for a state.

    Raises:
        StateError: if it has none, so that nobody could tell where to go on.
    """
    if number is None:
        raise StateError(
            "These streams cannot be opened again where they were. To resume, chain the reader after URLs, or after "
            "async_prefetch(in_order=True)."
        )
    return number


def part_refused(url: str, reader: str) -> RemoteDataError:
    """The error of a reader that cannot read some samples of an object only."""
    return RemoteDataError(
        f"{redact(url)} was split by samples, because there are fewer objects than readers or equalize_ranks asks for "
        f"it, and {reader} reads whole objects only. Use fewer readers, or shard_tar_reader().",
        url=redact(url),
    )


def _in_state(pairs: Iterator[tuple[str, Any]], state: StreamsState | None) -> Iterator[tuple[str, Any]]:
    """The pairs; with a state, none of those that were used up."""
    if state is None:
        yield from pairs
        return
    again = {number for number, _ in state.get("again", [])}
    for url, stream in pairs:
        number = number_of(stream)
        if number is not None and number < state["next"] and number not in again:
            raise StateError(
                f"{redact(str(url))} was read before the state was saved, and comes again: a pipe between "
                "async_prefetch() and the reader did not go on where it was. Between them, map() and filter() do."
            )
        yield url, stream
