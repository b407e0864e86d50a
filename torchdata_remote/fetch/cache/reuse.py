"""How long an object may be unused until it is taken for dead: measured from what is read."""

from __future__ import annotations

from collections.abc import Iterable

_MIN_READS = 16  # fewer may be twice the same objects by chance, where one epoch ends and the next one begins


def reuse_window(reads: Iterable[tuple[int, int]], now: int) -> int | None:
    """Return the number of bytes back from ``now`` in which objects were read twice on average.

    An epoch reads each object once. So these are two epochs, of all datasets that are read in turn, and an object that
    was not read in them was left out of a whole epoch.

    Args:
        reads: of some objects, the last one first: the sum of bytes that were read before, and the object.
        now: the sum of bytes that were read.

    Returns:
        ``None`` if objects were not read twice.
    """
    seen: set[int] = set()
    for num_reads, (clock, name) in enumerate(reads, 1):
        seen.add(name)
        if num_reads >= max(_MIN_READS, 2 * len(seen)):
            return now - clock
    return None
