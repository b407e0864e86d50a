"""Open URLs as byte streams, prefetching the next ones."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from ..core.stats import FETCH
from ..core.urls import redact
from ..errors import RemoteDataError, StateError
from .engine import Download, Lane
from .listing.source_argument import url_of
from .local_files import LocalFiles, Numbered, stream_files
from .object_stream import ObjectStream
from .session import FetchSession

_MORE_AHEAD = 4  # for each object that was handed out
_OBJECTS_AHEAD = 16  # times max_in_flight: enough for a consumer that takes a batch at a time

StreamsState = dict[str, Any]  # "next": number of the next object; "again": [number, first byte] of earlier ones


def stream_objects(
    urls: Iterable[str], session: FetchSession, state: StreamsState | None = None
) -> Generator[tuple[str, ObjectStream], None, None]:
    """Open each URL as a stream while the next ones are prefetched, in order or as objects are complete.

    Args:
        urls: read only in the thread that iterates.
        session: limits and threads.
        state: where to resume: first the objects of ``"again"``, in that order, then those from ``"next"`` on.

    Raises:
        StateError: if there are fewer URLs than the state expects.
    """
    source, files = numbered_urls(urls, state), LocalFiles(session)
    while True:
        fetched, source = yield from stream_files(files, source, in_order=session.options.in_order)
        for first in fetched:
            yield from open_ahead(chain([first], fetched), session, ObjectStream)
            break
        else:
            return


class Fetched(Protocol):
    """A stream that a lane downloads."""

    @property
    def download(self) -> Download:
        """Its parts."""

    def close(self) -> None:
        """Download no more."""


FetchedT = TypeVar("FetchedT", bound=Fetched)


def open_ahead(
    source: Iterator[Numbered], session: FetchSession, opened: Callable[[Lane, str, int | None, int], FetchedT]
) -> Generator[tuple[str, FetchedT], None, None]:
    """Open streams that the session's threads fetch, some ahead of the one that is handed out.

    Args:
        source: of the objects. Read only in the thread that iterates.
        session: limits and threads.
        opened: opens one in a lane: URL, number, first byte.
    """
    options = session.options
    lane = Lane(session)
    ahead: dict[Download, tuple[str, FetchedT]] = {}  # opened and not handed out, in order
    try:
        ended: Exception | None = None
        num_ahead, most_ahead = 2 * options.max_in_flight, _OBJECTS_AHEAD * options.max_in_flight
        while True:
            while ended is None and (not ahead or (len(ahead) < num_ahead and lane.has_room())):
                try:
                    number, url, start = next(source)
                    stream = opened(lane, url, number if options.in_order else None, start)
                    ahead[stream.download] = url, stream
                except Exception as error:  # noqa: BLE001, PERF203  # earlier objects are handed out first
                    ended = error
            num_ahead = min(num_ahead + _MORE_AHEAD, most_ahead)
            if ahead:
                FETCH.add(items=1)
                yield ahead.pop(lane.next_object(ahead))
            elif isinstance(ended, StopIteration):
                return
            elif ended is not None:
                raise ended
    finally:
        ended = None  # it refers to this frame, which would keep all of this until a collection
        for _, stream in reversed(ahead.values()):  # the last first, so that closing one plans nothing for the next
            stream.close()
        lane.release()


def numbered_urls(urls: Iterable[str], state: StreamsState | None) -> Iterator[Numbered]:
    """Yield number, URL and first byte of each object to open."""
    first, again = (state["next"], state.get("again", [])) if state is not None else (0, [])
    source = enumerate(url_of(url, of="async_prefetch") for url in urls)
    reopened, earlier, num_passed = {number for number, _ in again}, dict[int, str](), 0
    for number, url in islice(source, first):
        num_passed += 1
        if number in reopened:
            earlier[number] = url
    if num_passed < first or len(earlier) < len(reopened):
        raise StateError(
            f"The state expects {max([first, *reopened]):,} URLs, and there are {num_passed:,}. It belongs to another "
            "listing or another world: resume with the chain that saved it."
        )
    yield from ((number, earlier[number], start) for number, start in again)
    yield from ((number, url, 0) for number, url in source)


def parts_of(url: str, stream: Any, piece_bytes: int = 1 << 20) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file-like object in consecutive pieces; those of an :class:`ObjectStream` are not copied.

    Raises:
        RemoteDataError: if the file was opened as text.
    """
    parts = getattr(stream, "parts", None)
    if parts is not None:
        yield from parts()
        return
    while piece := _read(url, stream, piece_bytes):
        yield piece


def whole_of(url: str, stream: Any) -> bytes:
    """Return the bytes of a file-like object."""
    whole = getattr(stream, "whole", None)
    data: bytes = b"".join(parts_of(url, stream)) if whole is None else whole()
    return data


def _read(url: str, stream: Any, piece_bytes: int) -> bytes:
    try:
        piece = stream.read(piece_bytes)
    except UnicodeDecodeError:
        piece = ""
    if isinstance(piece, str):
        raise RemoteDataError(f"{redact(url)} was opened as text; open it with mode='rb'.", url=redact(url))
    data: bytes = piece
    return data
