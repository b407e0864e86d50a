"""Run functions that wait for a store concurrently, and return their results in order."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import TypeVar

from .pool import Pool, next_item

T = TypeVar("T")
# Called with a function that sleeps for a number of seconds
Task = Callable[[Callable[[float], None]], T]


def ordered_map(tasks: Iterable[Task[T]], *, max_threads: int) -> Generator[T, None, None]:
    """Yield the results of functions, in their order.

    Args:
        tasks: each is called in a thread, with a function to sleep by, which raises once the results are closed.
        max_threads: tasks that run at once. As many further results may be buffered.

    Raises:
        Exception: the error of a task, in the order of the tasks. Tasks that were not started are dropped.

    Example:
        >>> list(ordered_map([lambda wait, n=n: n * n for n in range(4)], max_threads=2))
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


def _run(task: Task[T], sleep: Callable[[float], None], answer: queue.SimpleQueue[tuple[T] | BaseException]) -> None:
    try:
        answer.put((task(sleep),))
    except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
        answer.put(error)
