"""Several functions that wait for a store, at the same time."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import TypeVar

from .pool import Pool, next_item

T = TypeVar("T")
Task = Callable[[Callable[[float], None]], T]  # takes what waits for so many seconds


def ordered_map(tasks: Iterable[Task[T]], *, max_threads: int) -> Generator[T, None, None]:
    """What functions return, in their order.

    Args:
        tasks: each is called in a thread, with a function that it is to wait by, which raises when nobody wants the
            result any longer.
        max_threads: tasks that run at once. As many results again may wait for their turn.

    Raises:
        Exception: what a task raised, when its turn comes; those behind it are not begun.

    Example:
        >>> list(in_parallel([lambda wait, n=n: n * n for n in range(4)], max_threads=2))
        [0, 1, 4, 9]
    """
    source = iter(tasks)
    running: deque[queue.SimpleQueue[tuple[T] | BaseException]] = deque()
    with closing(Pool(max_threads)) as pool:
        while True:
            while len(running) < 2 * max_threads and (task := next(source, None)) is not None:
                running.append(queue.SimpleQueue())
                pool.submit(_run, task, pool.sleep, running[-1], on_dropped=running[-1].put)
            if not running:
                return
            result = next_item(running.popleft())
            if isinstance(result, BaseException):
                raise result
            yield result[0]


def _run(task: Task[T], wait: Callable[[float], None], answer: queue.SimpleQueue[tuple[T] | BaseException]) -> None:
    try:
        answer.put((task(wait),))
    except BaseException as error:  # noqa: BLE001  # it belongs to whoever wants the result
        answer.put(error)
