"""URLs to streams, the next ones under way; and the bytes of any stream."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any

from ..core.stats.counters import FETCH
from ..core.urls import redact, split_sample_range
from ..errors import RemoteDataError, StateError
from .listing.source_argument import url_of
from .object_download import ObjectDownload
from .object_stream import ObjectStream
from .sample_ranges import wanted_bytes
from .scheduler import PartScheduler
from .session import FetchSession

_OBJECTS_AHEAD = 16  # times max_in_flight: enough for a consumer that takes a batch at a time

StreamsState = dict[str, Any]  # "next": number of the next object; "again": [number, first byte] of earlier ones


def stream_objects(
    urls: Iterable[str], engine: FetchSession, state: StreamsState | None = None
) -> Generator[tuple[str, ObjectStream], None, None]:
    """Each URL with a stream over its object, the next ones under way; in order, or as they are complete.

    Args:
        urls: pulled only from the thread that iterates.
        engine: limits.
        state: where to go on: first with the objects that are wanted again, in the order given.

    Raises:
        StateError: if there are fewer URLs than the state tells of.
    """
    options, fetcher = engine.options, PartScheduler(engine)
    ahead: dict[ObjectDownload, tuple[str, ObjectStream]] = {}  # in order
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


def _opened(fetcher: PartScheduler, engine: FetchSession, url: str, number: int | None, start: int) -> ObjectStream:
    """A stream over the object, or over the samples of it that the URL asks for, from ``start`` on."""
    whole, samples = split_sample_range(url)
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
