"""What the scheduler downloads: something that is planned in parts, each of which is requested and handed out."""

from __future__ import annotations

import queue
from abc import abstractmethod
from collections.abc import Callable

from ..core.checksums import Checksums
from ..core.threads.pool import Pool
from ..core.urls import RemoteUrl
from .part_plan import PartPlan


class Part:
    """A byte range of an object or a view: queued, being downloaded, or downloaded."""

    __slots__ = ("end", "error", "pieces", "reserved_bytes", "start")

    def __init__(self, start: int, end: int | None, reserved_bytes: int) -> None:
        self.start, self.end, self.reserved_bytes = start, end, reserved_bytes
        self.pieces: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()  # consecutive; then None
        self.error: BaseException | None = None  # why the pieces end early


class Download(PartPlan):
    """An object or a view with its planned parts in order.

    Attributes:
        url: of it.
        mapped: whether its bytes are mapped files.
        etag: of the version that is read, if it is known.
        checksums: of its blocks, if they are verified.
        parts: those that are planned; the first one is being consumed.
        error: raised in the consumer; final.
    """

    url: str
    mapped: bool
    etag: str | None
    checksums: Checksums | None
    parts: list[Part]
    error: BaseException | None

    @abstractmethod
    def unplanned_bytes(self, expected_bytes: int) -> int:
        """Bytes for which no part is planned.

        Args:
            expected_bytes: size of an object whose size is unknown.
        """

    @abstractmethod
    def plan(self, part_bytes: int) -> Part:
        """Add the next part, of at most ``part_bytes``."""

    @abstractmethod
    def submit(self, part: Part, pool: Pool, fetch: Callable[..., None], on_ended: Callable[[Download], None]) -> None:
        """Queue the requests for a part that was planned.

        Args:
            part: to request.
            pool: of threads.
            fetch: downloads a part of an object by one request.
            on_ended: called before the consumer sees the end of a part; ``fetch`` calls it itself.

        Raises:
            PoolClosedError: if the pool is closed.
        """

    @abstractmethod
    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        """Return the object that has a byte, and where the byte is there."""

    @abstractmethod
    def close(self) -> None:
        """Download no more. Safe in a finalizer."""
