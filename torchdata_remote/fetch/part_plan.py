"""Divide an object, or a range of it, into the parts that are requested."""

from __future__ import annotations

from collections.abc import Iterator


class PartPlan:
    """The parts of one object, in order; those that are planned, and how long the next one is.

    Args:
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the object's end.
        size: of the object; ``None`` until the first response reports it.
        block_bytes: length of the blocks that are verified as a whole: parts begin and end at their borders.
    """

    def __init__(self, start: int, stop: int | None, size: int | None, block_bytes: int) -> None:
        self.start, self.stop, self.size, self._block_bytes = start, stop, size, block_bytes
        self.planned_bytes = self.first_byte = start - start % block_bytes
        self._last_byte = stop if stop is None else stop + -stop % block_bytes
        self.started = start > 0 and size is not None and start >= size  # there is nothing to read
        self.closed = False  # whether the rest is not wanted

    def completely_planned(self) -> bool:
        """Whether no further part will be planned."""
        return self.closed or (self.started and self.size is not None and self.planned_bytes >= self._end(self.size))

    def _end(self, size: int) -> int:
        return size if self._last_byte is None else min(size, self._last_byte)

    def can_plan(self) -> bool:
        """Whether a part can be planned now; not while the first response has to report the size."""
        return not self.completely_planned() and not (self.started and self.size is None)

    def next_part_bytes(self, part_bytes: int) -> int:
        """Largest length of the next part."""
        if self._block_bytes > 1:  # of whole blocks
            part_bytes = max(1, part_bytes // self._block_bytes) * self._block_bytes
        size = self.planned_bytes + part_bytes if self.size is None else self.size
        return min(part_bytes, self._end(size) - self.planned_bytes)

    def next_range(self, part_bytes: int) -> tuple[int, int | None]:
        """Plan the next part, of at most ``part_bytes``.

        Returns:
            Its first byte, and the byte after its last one; ``None`` for the end of an object that is empty.
        """
        num_bytes, start = self.next_part_bytes(part_bytes), self.planned_bytes
        self.started = True
        self.planned_bytes += num_bytes
        return start, start + num_bytes if num_bytes else None

    def found(self, size: int, end: int) -> None:
        """Record the size from the first response.

        Args:
            size: of the object.
            end: the byte after the last one of the response.
        """
        if self.size is None:
            self.planned_bytes = end
        self.size = size


def planned_ranges(plan: PartPlan, part_bytes: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the range of each request that reads an object without a fault: first byte, and the one after the last.

    Args:
        plan: of the object; its size may be unknown.
        part_bytes: length of a part.
        size: of the object, as its first response will report it.
    """
    while plan.can_plan():
        is_asked = plan.size is None
        start, end = plan.next_range(part_bytes)
        end = size if end is None else min(end, size)
        if is_asked and start == size == 0:
            yield 0, 0  # an empty object has no ranges: it is requested again as a whole
        yield start, end
        plan.found(size, end)
