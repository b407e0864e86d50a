"""Open URLs as streams that are read by jumps: what is passed over is not fetched; the next beginnings are prefetched.

The streams of ``streams`` fetch whole objects in parts, many ahead of the reader. These are for readers that want a few
bytes of each large object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable

from ...core.stats.counters import FETCH
from ..session import FetchSession
from ..streams import StreamsState, numbered_urls
from .jumping_lane import Lane
from .jumping_stream import JumpingStream


def stream_by_jumps(
    urls: Iterable[str], session: FetchSession, state: StreamsState | None = None
) -> Generator[tuple[str, JumpingStream], None, None]:
    """Like ``stream_objects``, with streams that fetch what is read, and in order.

    Args:
        urls: read only in the thread that iterates.
        session: limits and threads. Its cache is not used.
        state: where to resume.

    Raises:
        StateError: if there are fewer URLs than the state expects.
    """
    source, lane = numbered_urls(urls, state), Lane(session)
    ahead: deque[tuple[str, JumpingStream]] = deque()
    ended: Exception | None = None
    try:
        while True:
            while ended is None and len(ahead) <= lane.num_ahead:
                try:
                    number, url, start = next(source)
                    stream = JumpingStream(lane, url, number if session.options.in_order else None, start)
                    ahead.append((url, stream))
                    stream.request_head()
                except Exception as error:  # noqa: BLE001, PERF203  # earlier objects are handed out first
                    ended = error
            if ahead:
                FETCH.add(items=1)
                yield ahead.popleft()
            elif isinstance(ended, StopIteration):
                return
            elif ended is not None:
                raise ended
    finally:
        ended = None  # it refers to this frame, which would keep all of this until a collection
        for _, stream in ahead:
            stream.close()
        lane.release()
