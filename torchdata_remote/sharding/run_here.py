"""Run tasks in the calling process, without workers."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator

from .finished_shards import Written
from .task import ShardTask, start_shard


def run_here(tasks: Iterator[ShardTask]) -> Iterator[tuple[ShardTask, Written]]:
    """Run tasks in this process; a shard is finished in the background while the next one is packed."""
    pending: deque[tuple[ShardTask, Callable[[], Written]]] = deque()
    try:
        for task in tasks:
            try:
                pending.append((task, start_shard(task)))
            except BaseException:
                yield from _finished(pending)  # these shards are complete
                raise
            if len(pending) > 1:
                previous, finish = pending.popleft()
                yield previous, finish()
        yield from _finished(pending)
    finally:
        for _, finish in pending:
            with contextlib.suppress(Exception):  # the error that led here is the one to report
                finish()


def _finished(
    pending: deque[tuple[ShardTask, Callable[[], Written]]],
) -> Iterator[tuple[ShardTask, Written]]:
    while pending:
        task, finish = pending.popleft()
        yield task, finish()
