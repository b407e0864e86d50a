"""URLs to streams, the next ones under way; and the bytes of any stream."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

from .counters import FETCH
from .engine import Engine
from .errors import RemoteDataError, StateError
from .fetch import Fetcher
from .fetched_object import FetchedObject
from .iter_datapipe import IterDataPipe
from .object_stream import ObjectStream
from .sample_index import wanted_bytes
from .sources import url_of
from .state import bearer, load_state
from .urls import redact, whole_and_part

_OBJECTS_AHEAD = 16  # times max_in_flight: enough for a consumer that takes a batch at a time

StreamsState = dict[str, Any]  # "next": number of the next object; "again": [number, first byte] of earlier ones


def stream_objects(
    urls: Iterable[str], engine: Engine, state: StreamsState | None = None
) -> Generator[tuple[str, ObjectStream], None, None]:
    """Each URL with a stream over its object, the next ones under way; in order, or as they are complete.

    Args:
        urls: pulled only from the thread that iterates.
        engine: limits.
        state: where to go on: first with the objects that are wanted again, in the order given.

    Raises:
        StateError: if there are fewer URLs than the state tells of.
    """
    options, fetcher = engine.options, Fetcher(engine)
    ahead: dict[FetchedObject, tuple[str, ObjectStream]] = {}  # in order
    try:
        source = _numbered(urls, state)
        ended: Exception | None = None
        num_ahead, most_ahead = 2 * options.max_in_flight, _OBJECTS_AHEAD * options.max_in_flight
        while True:
            while ended is None and (not ahead or (len(ahead) < num_ahead and fetcher.has_room())):
                try:
                    number, url, start = next(source)
                    stream = _opened(fetcher, engine, url, number if options.in_order else None, start)
                    ahead[stream.target] = url, stream
                except Exception as error:  # noqa: BLE001, PERF203  # what came before it is handed on first
                    ended = error
            num_ahead = min(num_ahead + 1, most_ahead)  # by and by, so that the first object need not wait for it
            if ahead:
                FETCH.add(items=1)
                yield ahead.pop(next(iter(ahead)) if options.in_order else fetcher.next_ready())
            elif isinstance(ended, StopIteration):
                return
            elif ended is not None:
                raise ended
    finally:
        for _, stream in reversed(ahead.values()):  # the last first: none makes room for one that is closed next
            stream.close()
        fetcher.release()


def _opened(fetcher: Fetcher, engine: Engine, url: str, number: int | None, start: int) -> ObjectStream:
    """A stream over the object, or over the samples of it that the URL asks for, from ``start`` on."""
    whole, samples = whole_and_part(url)
    if samples is None:
        return ObjectStream(fetcher, whole, number, start)
    first, stop = wanted_bytes(whole, samples, engine.storage_options, engine.options.retry)
    return ObjectStream(fetcher, whole, number, max(first, start), stop)


def _numbered(urls: Iterable[str], state: StreamsState | None) -> Iterator[tuple[int, str, int]]:
    """Number, URL and first byte of each object that is to be opened."""
    first, again = (state["next"], state.get("again", [])) if state is not None else (0, [])
    source = (url_of(url, of="async_prefetch") for url in urls)
    wanted = {number for number, _ in again}
    before, count = {}, 0
    for count, url in zip(range(1, first + 1), source):  # noqa: B905  # whichever ends first
        if count - 1 in wanted:
            before[count - 1] = url
    if count < first or len(before) < len(wanted):
        told = max([first, *(number + 1 for number in wanted)])
        raise StateError(
            f"The state tells of {told:,} URLs, and there are {count:,}. It belongs to another listing, or another "
            "world: resume with the chain that it came from."
        )
    for number, start in again:
        yield number, before[number], start
    yield from ((number, url, 0) for number, url in enumerate(source, first))


def streams_of(
    pipe: Iterable[Any], engine: Engine, state: StreamsState | None = None
) -> Generator[tuple[str, Any], None, None]:
    """A pipe's ``(url, file_like)`` pairs as they come; bare URLs are opened here, ahead of time.

    Args:
        pipe: of pairs or of URLs.
        engine: for bare URLs.
        state: where to go on.

    Raises:
        RemoteDataError: if an item is neither.
    """
    if state is not None and isinstance(pipe, IterDataPipe) and hasattr(bearer(pipe), "gives_streams"):
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


def parts_of(url: str, stream: Any, piece_bytes: int = 1 << 20) -> Iterator[bytes | memoryview]:
    """The bytes of a file-like object in consecutive pieces; of an :class:`ObjectStream` without copying.

    Raises:
        RemoteDataError: if it was opened as text.
    """
    parts = getattr(stream, "parts", None)
    if parts is not None:
        yield from parts()
        return
    while piece := _read(url, stream, piece_bytes):
        yield piece


def _read(url: str, stream: Any, piece_bytes: int) -> bytes:
    try:
        piece = stream.read(piece_bytes)
    except UnicodeDecodeError as error:
        raise _opened_as_text(url) from error
    if isinstance(piece, str):
        raise _opened_as_text(url)
    data: bytes = piece
    return data


def _opened_as_text(url: str) -> RemoteDataError:
    return RemoteDataError(f"{redact(url)} was opened as text; open it with mode='rb'.", url=redact(url))
