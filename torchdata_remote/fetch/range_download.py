"""Download one byte range over several attempts.

Every response is validated, so that two versions of an object are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from ..core.checksums import BlockCheck, Checksums
from ..core.object_version import same_etag
from ..core.options import PROGRESS_BYTES
from ..core.urls import redact
from ..errors import ObjectChangedError, ShardCorruptError, TransientStorageError
from ..storage import Answer, RangeNotSatisfiableError

CHANGED_ANSWERS = 4  # responses with the same other version until the object counts as changed


class RangeSource(Protocol):
    """A store, or one object of it."""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Send one request, as :class:`Store` does."""


class RangeRequest(NamedTuple):
    """A byte range of an object.

    Args:
        url: for errors.
        path: in the source.
        start: first byte.
        end: byte after the last one; may exceed the object's end. ``None`` for the rest.
        size: of the object, if known.
        etag: of the version to read, if known.
        checksums: to verify the bytes before they are used; then ``start`` and ``end`` are block borders, or the end of
            the object.
    """

    url: str
    path: str
    start: int
    end: int | None
    size: int | None
    etag: str | None
    checksums: Checksums | None = None


class ObjectVersion(NamedTuple):
    """Headers of the first response: the object's size and etag, and the byte after the last one of the range."""

    size: int
    etag: str | None
    end: int


class RangeDownload:
    """Downloads one range; each attempt requests the bytes that are still missing.

    Args:
        source: sends one request per call, without retries.
        request: the range.
        progress_timeout_s: an attempt fails when it receives fewer than ``PROGRESS_BYTES`` in so many seconds.
        on_found: called once, with the headers of the first response.
        clock: monotonic seconds.
        on_damage: called when a block fails its checksum for the first time; returns whether the bytes came from a
            cache, which has dropped them. Then they are requested again at once, without an error.
    """

    def __init__(
        self,
        source: RangeSource,
        request: RangeRequest,
        progress_timeout_s: float,
        on_found: Callable[[ObjectVersion], None],
        clock: Callable[[], float],
        on_damage: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source, self.request, self._on_found = source, request, on_found
        self._progress_timeout_s, self._clock = progress_timeout_s, clock
        self._at = self._progress_from = request.start
        self._version: ObjectVersion | None = None
        self._other_versions: tuple[str, ...] = ()  # equal ones, in consecutive responses
        self._damaged_blocks: frozenset[int] = frozenset()
        self._check: BlockCheck | None = None
        self._on_damage, self._dropped = on_damage, False  # whether a cache has dropped its bytes

    def complete(self) -> bool:
        """Whether all bytes have been received."""
        return self._version is not None and self._at == self._version.end

    def at(self) -> int:
        """Return the next missing byte."""
        return self._at

    def take_progress(self) -> bool:
        """Whether enough bytes were received since the last call."""
        enough = self._at - self._progress_from >= PROGRESS_BYTES
        self._progress_from = self._at
        return enough

    def attempt(self) -> Iterator[memoryview]:
        """Request the missing bytes once, and yield them as they are received."""
        answer = self._send()
        chunks = answer.chunks
        try:
            self._require_same_version(answer)
            end = self._end(answer)
            if self._version is None:
                self._version = ObjectVersion(answer.total_bytes, self.etag or answer.etag, end)
                if self.request.checksums is not None:
                    self._check = BlockCheck(self.request.checksums, answer.total_bytes, self.request.start)
                self._on_found(self._version)
            elif self._version.etag is None:
                self._version = self._version._replace(etag=answer.etag)
            yield from self._receive(answer, end)
        finally:
            chunks.close()

    def _size(self) -> int | None:
        return self.request.size if self._version is None else self._version.size

    @property
    def etag(self) -> str | None:
        """Etag of the version that is read, if known."""
        return self.request.etag if self._version is None else self._version.etag

    def _send(self) -> Answer:
        path, end = self.request.path, self.request.end if self._version is None else self._version.end
        try:
            return self._source.read(path, self._at, end, self.etag)
        except RangeNotSatisfiableError as error:
            if self._at == 0 and self._size() is None:
                return self._source.read(path, 0, None, self.etag)  # an empty object has no ranges
            raise self._changed(f"is shorter than the {self._size() or self._at:,} bytes it had") from error

    def _require_same_version(self, answer: Answer) -> None:
        """Accept an object as replaced only after several consecutive responses with the same other version.

        One or two may belong to other requests, through a proxy that mixes up responses. Stores that support If-Match
        return 412 at once.
        """
        size, etag = self._size(), self.etag
        same_size = size is None or answer.total_bytes == size
        if same_size and same_etag(etag, answer.etag):
            self._other_versions = ()
            return
        received = _shown(answer.total_bytes, answer.etag)
        self._other_versions = (*(other for other in self._other_versions if other == received), received)
        if len(self._other_versions) == CHANGED_ANSWERS:
            raise self._changed(f"has {received}, where it had {_shown(size, etag)}")
        raise self._broken(f"asked for a version of {_shown(size, etag)}, got one of {received}")

    def _changed(self, how: str) -> ObjectChangedError:
        url = redact(self.request.url)
        return ObjectChangedError(f"{url} {how}. It was replaced: list it again.", url=url)

    def _end(self, answer: Answer) -> int:
        """Return the byte after the last one, and require that the response matches the request."""
        request, total = self.request, answer.total_bytes
        end = total if request.end is None else min(request.end, total)
        if self._at > total:
            raise self._changed(f"ends at byte {total:,}, before the requested byte {self._at:,}")
        everything = answer.start == 0 and answer.end == total  # from a server that ignores ranges
        if self._version is not None:
            end = self._version.end
        elif everything and request.size is None:
            end = total
        if not everything and (answer.start, answer.end) != (self._at, end):
            error = self._broken(f"asked for bytes {self._at:,} to {end:,}, got {answer.start:,} to {answer.end:,}")
            error.likely_permanent = True
            raise error
        return end

    def _receive(self, answer: Answer, end: int) -> Iterator[memoryview]:
        """Yield the missing bytes; fail when fewer than ``PROGRESS_BYTES`` are received in ``progress_timeout_s``."""
        skip, dropped = self._at - answer.start, self._dropped
        began, num_bytes = self._clock(), 0
        for chunk in answer.chunks:
            length = len(chunk)
            if skip or length > end - self._at:
                piece = chunk[skip : skip + end - self._at]
                skip = max(0, skip - length)
            else:
                piece = chunk
            if not piece:
                pass
            elif self._check is None:
                self._at += len(piece)
                yield piece
            else:
                yield from self._verified(piece, self._check)
            if self._at == end or self._dropped != dropped:
                return
            num_bytes += length
            elapsed_s = self._clock() - began
            if num_bytes >= PROGRESS_BYTES:
                began, num_bytes = self._clock(), 0
            elif elapsed_s > self._progress_timeout_s:
                raise self._broken(f"{num_bytes:,} bytes in {elapsed_s:.1f} s")
        if self._at < end:
            raise self._broken(f"the body ended at byte {self._at:,} of {end:,}")

    def _verified(self, piece: memoryview, check: BlockCheck) -> Iterator[memoryview]:
        """Advance by a piece, and yield the bytes that are verified."""
        while piece:
            inside = piece[: check.block_end(self._at) - self._at]
            piece = piece[len(inside) :]
            self._at += len(inside)
            yield from check.take(inside)
            if check.damaged_at is not None:
                self._at, check.damaged_at = check.damaged_at, None
                if not self._dropped and self._on_damage():
                    self._dropped = True
                    return
                self._raise_damage()

    def _raise_damage(self) -> None:
        if self._at not in self._damaged_blocks:
            self._damaged_blocks |= {self._at}
            raise self._broken(f"the block at byte {self._at:,} does not match its checksum")
        url = redact(self.request.url)
        raise ShardCorruptError(
            f"{url}: the block at byte {self._at:,} does not match its checksum in the manifest, also when it was "
            f"fetched again (etag {self.etag}). The object is damaged: write the shard again, or restore it.",
            url=url,
        )

    def _broken(self, how: str) -> TransientStorageError:
        url = redact(self.request.url)
        return TransientStorageError(f"{url}: {how}.", url=url)


def _shown(size: int | None, etag: str | None) -> str:
    return ("an unknown size" if size is None else f"{size:,} bytes") + ("" if etag is None else f", etag {etag}")
