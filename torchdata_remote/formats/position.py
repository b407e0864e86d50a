"""Read positions: where in an archive the next sample begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any


@dataclass(frozen=True)
class Position:
    """A point of an archive at which reading can start.

    Args:
        byte: offset at which the stream is opened.
        num_skipped: samples to read and drop first, because a compressed archive can be read from its beginning only.
        nested: the nested archive around ``byte``: its name, first byte and size; ``None`` outside of nested archives.
    """

    byte: int = 0
    num_skipped: int = 0
    nested: tuple[str, int, int] | None = None

    def to_json(self) -> list[Any]:
        """Encode for a saved state: as many fields as are not their defaults."""
        fields = [self.byte, self.num_skipped, self.nested and list(self.nested)]
        return fields if self.nested else fields[: 2 if self.num_skipped else 1]

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> Position:
        """Decode what ``to_json`` returned.

        >>> Position.from_json([512, 3, ["a.tar", 512, 10240]])
        Position(byte=512, num_skipped=3, nested=('a.tar', 512, 10240))
        """
        return cls(*fields[:2], *map(tuple, fields[2:]))


class ReadPosition:
    """Tracks where the next sample begins. Updated once per batch of members, so it costs nothing per sample.

    Example: a batch of three members at bytes 1000, 1030 and 1070 sets ``batch_offset`` to 1000 and ``batch_starts`` to
    ``(0, 30, 70)``. While the second is looked at, one name is left in ``batch_rest``: ``next_byte()`` is 1030.

    Args:
        start: where reading starts.
    """

    def __init__(self, start: Position | None = None) -> None:
        self.start = start or Position()
        # Whether the last sample was handed out
        self.ended = False
        # Where the end-of-archive blocks begin, once they were found
        self.archive_end = 0
        # Of the current batch: the byte that its starts count from; where each member's headers begin, or those of the
        # first member after each sample; and an iterator over the names that have not been looked at, or the samples
        # that were not handed out
        self.batch_offset = self.start.byte
        self.batch_starts: Sequence[int] = (0,)
        self.batch_rest: Iterator[Any] = iter(())
        # Samples of a compressed archive in the runs so far, of which ``batch_rest`` is the last; ``None`` if this one
        # is not compressed
        self.num_read: int | None = None
        self._nested: tuple[tuple[str, int, int], int, ReadPosition] | None = None

    def next_byte(self) -> int:
        """Return where the current member begins: when a sample was handed out, the first member of the next one."""
        return self.batch_offset + self.batch_starts[len(self.batch_starts) - length_hint(self.batch_rest) - 1]

    def enter(self, archive: tuple[str, int, int], following: int) -> ReadPosition:
        """Continue in a nested archive; return the position within it.

        Args:
            archive: its name, first byte and size.
            following: the byte at which the next member of this archive begins.
        """
        start = Position(self.start.byte - archive[1], self.start.num_skipped) if self.start.nested == archive else None
        within = ReadPosition(start)
        self._nested = archive, following, within
        return within

    def current(self) -> Position | None:
        """Return where the next sample begins; ``None`` if the last one was handed out."""
        if self.ended:
            return None
        if self.num_read is not None:
            return Position(0, self.num_read - length_hint(self.batch_rest))
        if self._nested is None:
            byte = self.next_byte()
            # Until something was read, also samples to skip and a nested archive
            return self.start if byte == self.start.byte else Position(byte)
        archive, following, within = self._nested
        inner = within.current()
        return Position(following) if inner is None else Position(archive[1] + inner.byte, inner.num_skipped, archive)
