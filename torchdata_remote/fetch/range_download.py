"""What has arrived of a range of an object, and an attempt at the rest: checked, never a mixture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from ..core.checksums import BlockCheck, Checksums
from ..core.options import PROGRESS_BYTES
from ..core.urls import redact
from ..errors import ObjectChangedError, ShardCorruptError, TransientStorageError
from ..storage.registry import Answer, RangeNotSatisfiableError

CHANGED_ANSWERS = 4  # of the same other version, until it is believed


class RangeSource(Protocol):
    """A store, or one object of it."""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """As :class:`Store` does."""


class RangeRequest(NamedTuple):
    """What is asked for.

    Args:
        url: for errors.
        path: in the source.
        start: first byte.
        end: byte after the last one; may lie behind the object's end. ``None`` for the rest.
        size: of the object, where it is known.
        etag: of the version to read, where it is known.
        checksums: by which the bytes are checked before they are handed on; ``start`` and ``end`` are at the ends of
            blocks, or of the object.
    """

    url: str
    path: str
    start: int
    end: int | None
    size: int | None
    etag: str | None
    checksums: Checksums | None = None


class ObjectVersion(NamedTuple):
    """What the first answer tells: the object's size and etag, and behind which byte its bytes end."""

    size: int
    etag: str | None
    end: int


class RangeDownload:
    """What has arrived of a range.

    Args:
        source: sends one request a call, and repeats nothing.
        wanted: the range.
        progress_timeout_s: an attempt that brings fewer than ``PROGRESS_BYTES`` in so many seconds has failed.
        on_found: called once, with the headers of the first answer.
        clock: seconds that only grow.
        on_damage: called when a block does not fit its checksum for the first time; returns whether the bytes came from
            a cache, which has dropped them. Then they are asked for again at once, and the store is not blamed.
    """

    def __init__(
        self,
        source: RangeSource,
        wanted: RangeRequest,
        progress_timeout_s: float,
        on_found: Callable[[ObjectVersion], None],
        clock: Callable[[], float],
        on_damage: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source, self.wanted, self._on_found = source, wanted, on_found
        self._progress_timeout_s, self._clock = progress_timeout_s, clock
        self._at = self._progress_from = wanted.start
        self._found: ObjectVersion | None = None
        self._other_versions: list[str] = []  # that came instead, one after the other and alike
        self._damaged_blocks: set[int] = set()
        self._check: BlockCheck | None = None
        self._on_damage, self._dropped = on_damage, False  # whether a cache has dropped what it had

    def complete(self) -> bool:
        """Whether all is there."""
        return self._found is not None and self._at == self._found.end

    @property
    def position(self) -> int:
        """The next byte that is missing."""
        return self._at

    def take_progress(self) -> bool:
        """Whether enough has arrived since this was last asked."""
        enough = self._at - self._progress_from >= PROGRESS_BYTES
        self._progress_from = self._at
        return enough

    def attempt(self) -> Iterator[memoryview]:
        """Ask once for what is missing; hand it on as it comes."""
        answer = self._ask()
        with contextlib.closing(answer.chunks):
            self._require_same_version(answer)
            end = self._end(answer)
            if self._found is None:
                self._found = ObjectVersion(answer.total_bytes, self.etag or answer.etag, end)
                if self.wanted.checksums is not None:
                    self._check = BlockCheck(self.wanted.checksums, answer.total_bytes, self.wanted.start)
                self._on_found(self._found)
            elif self._found.etag is None:
                self._found = self._found._replace(etag=answer.etag)
            yield from self._take(answer, end)

    def _size(self) -> int | None:
        return self.wanted.size if self._found is None else self._found.size

    @property
    def etag(self) -> str | None:
        """Of the version that is read, where it is known."""
        return self.wanted.etag if self._found is None else self._found.etag

    def _ask(self) -> Answer:
        path, end = self.wanted.path, self.wanted.end if self._found is None else self._found.end
        try:
            return self._source.read(path, self._at, end, self.etag)
        except RangeNotSatisfiableError as error:
            if self._at == 0 and self._size() is None:
                return self._source.read(path, 0, None, self.etag)  # an empty object has no ranges
            raise self._changed(f"is shorter than the {self._size() or self._at:,} bytes it had") from error

    def _require_same_version(self, answer: Answer) -> None:
        """The same other version in several answers running means that the object was replaced.

        One or two may be answers to another question, from a proxy that mixes them up. Stores that know If-Match say
        412 at once.
        """
        size, etag = self._size(), self.etag
        same_size = size is None or answer.total_bytes == size
        same_etag = etag is None or answer.etag is None or answer.etag == etag
        if same_size and same_etag:
            self._other_versions = []
            return
        came = _shown(answer.total_bytes, answer.etag)
        self._other_versions = [*(other for other in self._other_versions if other == came), came]
        if len(self._other_versions) == CHANGED_ANSWERS:
            raise self._changed(f"has {came}, where it had {_shown(size, etag)}")
        raise self._broken(f"asked for a version of {_shown(size, etag)}, got one of {came}")

    def _changed(self, how: str) -> ObjectChangedError:
        url = redact(self.wanted.url)
        return ObjectChangedError(f"{url} {how}. It was replaced; list it again.", url=url)

    def _end(self, answer: Answer) -> int:
        """Behind which byte this reading ends, once it is sure that the answer is one to the question."""
        wanted, total = self.wanted, answer.total_bytes
        end = total if wanted.end is None else min(wanted.end, total)
        if self._at > total:
            raise self._changed(f"ends at byte {total:,}, before byte {self._at:,} that was asked for")
        everything = answer.start == 0 and answer.end == total  # from a server that ignores ranges
        if self._found is not None:
            end = self._found.end
        elif everything and wanted.size is None:
            end = total
        if not everything and (answer.start, answer.end) != (self._at, end):
            error = self._broken(f"asked for bytes {self._at:,} to {end:,}, got {answer.start:,} to {answer.end:,}")
            error.likely_permanent = True
            raise error
        return end

    def _take(self, answer: Answer, end: int) -> Iterator[memoryview]:
        skip, dropped = self._at - answer.start, self._dropped
        for chunk in self._in_time(answer.chunks):
            piece = chunk[skip : skip + end - self._at]
            skip = max(0, skip - len(chunk))
            if piece:
                yield from self._checked(piece)
            if self._at == end or self._dropped != dropped:
                return
        if self._at < end:
            raise self._broken(f"the body ended at byte {self._at:,} of {end:,}")

    def _checked(self, piece: memoryview) -> Iterator[memoryview]:
        """Move on by a piece, and hand on what is known to be right."""
        check = self._check
        if check is None:
            self._at += len(piece)
            yield piece
            return
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
                self._complain_of_damage()

    def _complain_of_damage(self) -> None:
        if self._at not in self._damaged_blocks:
            self._damaged_blocks.add(self._at)
            raise self._broken(f"the block at byte {self._at:,} does not fit its checksum")
        url = redact(self.wanted.url)
        raise ShardCorruptError(
            f"{url}: the block at byte {self._at:,} does not fit its checksum in the manifest, also when it was "
            f"fetched again (etag {self.etag}). The object is damaged: write the shard again, or restore it.",
            url=url,
        )

    def _in_time(self, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
        """Fail when fewer than ``PROGRESS_BYTES`` come in ``progress_timeout_s``."""
        began, num_bytes = self._clock(), 0
        for chunk in chunks:
            yield chunk
            num_bytes += len(chunk)
            elapsed_s = self._clock() - began
            if num_bytes >= PROGRESS_BYTES:
                began, num_bytes = self._clock(), 0
            elif elapsed_s > self._progress_timeout_s:
                raise self._broken(f"{num_bytes:,} bytes in {elapsed_s:.1f} s")

    def _broken(self, how: str) -> TransientStorageError:
        url = redact(self.wanted.url)
        return TransientStorageError(f"{url}: {how}.", url=url)


def _shown(size: int | None, etag: str | None) -> str:
    return ("an unknown size" if size is None else f"{size:,} bytes") + ("" if etag is None else f", etag {etag}")
