"""Stop a loader, and continue with a new one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any


def assert_loader_continues(
    make_loader: Callable[[], Any], num_batches: int, shown: Callable[[Any], Any] = lambda batch: batch
) -> list[Any]:
    """Stop after some batches, resume another loader, and compare with one that was not stopped; return its batches.

    Args:
        make_loader: makes the same loader each time.
        num_batches: before the stop.
        shown: what is compared of a batch.
    """
    whole = [shown(batch) for batch in make_loader()]
    begun = make_loader()
    head = [shown(batch) for batch in islice(iter(begun), num_batches)]
    assert len(head) == num_batches
    resumed = make_loader()
    resumed.load_state_dict(begun.state_dict())
    assert head + [shown(batch) for batch in resumed] == whole
    return whole
