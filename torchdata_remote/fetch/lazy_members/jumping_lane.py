"""A lane of a session whose streams are read by jumps."""

from __future__ import annotations

from ...core.threads.finalizer_lock import FinalizerLock
from ..read_ahead import ReadAhead
from ..session import FetchSession
from .segments import Segment

HEAD_BYTES = 64 << 10  # of a shard that is prefetched


class Lane:
    """One iteration: a lane of its session, until it opens no more streams and the last one is closed.

    Args:
        session: limits and threads.
    """

    def __init__(self, session: FetchSession) -> None:
        self.session, self._running = session, session.start()
        self.pool, self.connection = self._running.pool, self._running.connection
        self._users, self._lock = 1, FinalizerLock(self._leave)

    @property
    def num_ahead(self) -> int:
        """Number of streams whose beginnings are prefetched."""
        room = self._running.lane_bytes(self.session.num_lanes) // HEAD_BYTES
        return max(1, min(self.session.options.max_in_flight, room))

    def opened(self, segment: Segment) -> ReadAhead:
        """Open a segment, without a request."""
        options = self.session.options
        return ReadAhead(
            segment.url,
            self.session.storage_options,
            retry=options.retry,
            start=segment.start,
            stop=segment.stop,
            first_bytes=HEAD_BYTES,
            in_flight=self._running.in_flight,
            connection=self.connection,
            sleep=self.pool.sleep,
        )

    def enter(self) -> None:
        """Count a stream."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Count a stream that was closed. Safe in a finalizer."""
        self._lock.settle(None)

    def release(self) -> None:
        """Open no more streams. Safe in a finalizer."""
        self._running.open_no_more()
        self._lock.settle(None)

    def _leave(self, _: None) -> None:  # with the lock held
        self._users -= 1
        if self._users == 0:
            self._running.leave()
            self._lock.end()
