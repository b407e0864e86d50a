"""Base of the pipes that call a function with each item: in threads, a little ahead of the consumer, in order."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..core import arguments as check
from ..core.arguments import whole_or_none
from ..core.iter_datapipe import IterDataPipe
from ..core.stats import DECODE
from ..core.threads import next_item, shared_pools
from ..core.world import counted
from ..errors import RemoteDataError, SampleError
from ..formats.error_policy import OnBadSample, Skipped, raise_error
from ..formats.sample import require_key, sample_url
from .chain import all_pipes, functional_name
from .datapipe import SourcePipe, length_here
from .env import Ahead, Env
from .passes import Pass
from .slots import length_of

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_AHEAD_PER_THREAD = 2
# Until the consumer makes a call that no thread has begun: its work would compete with that of the threads
_PATIENCE_S = 0.1

_of_thread = threading.local()  # has an attribute in the threads of a pool for pipes


class _Call:
    """A call of a pipe's function that is made once: by a thread, or by the consumer if none is free for some time.

    So waiting for it never depends on a free thread, as where a function of the pool reads a chain with that pool: it
    then makes the calls itself, at once if it runs in that thread.

    Args:
        function: of the pass.
        item: for it.
    """

    def __init__(self, function: Callable[[Any], Any], item: Any) -> None:
        self._function = function
        # Taking the item out begins the call; it is one step, which one thread makes
        self._item = [item]
        self.answer: queue.SimpleQueue[tuple[Any] | BaseException] = queue.SimpleQueue()

    def run(self, closed: list[bool]) -> None:
        """Make the call in a thread of the pool, unless it was begun, or the pass was given up."""
        if not closed[0]:
            _of_thread.is_busy = True
            self.begin()

    def begin(self) -> bool:
        """Make the call in this thread, unless it was begun; return whether it was made."""
        try:
            item = self._item.pop()
        except IndexError:
            return False
        answer: tuple[Any] | BaseException
        try:
            answer = (self._function(item),)
        except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
            answer = error
        # The consumer finds out whether it is the only one that refers to the item
        del item
        self.answer.put(answer)
        del answer  # or error and frame would keep each other
        return True

    def fail(self, error: BaseException) -> None:
        """Raise an error in place of the call, unless it was begun."""
        with contextlib.suppress(IndexError):
            self._item.pop()
            self.answer.put(error)


def works_ahead() -> bool:
    """Whether a thread of a pool calls this, whose time no consumer spends."""
    return hasattr(_of_thread, "is_busy")


class OneForOne(SourcePipe[T_co]):
    """Base of a pipe that yields one item for each that it takes."""

    def length(self, env: Env) -> int:
        """Count the items, as its source does."""
        return length_of(self.source_datapipe, env)

    __len__ = length_here


class ThreadedMap(OneForOne[T_co]):
    """Base of a pipe that yields the result of a function for each item. A subclass implements ``function_of``.

    With threads, items are taken from the source in the consumer's thread and handled in a pool, which all streams of
    this process and all pipes with as many threads share. The consumer handles an item itself only if no thread is free
    for 0.1 s. Results keep the order of the items. An error is raised in the place of its item, after the
    results before it. The position is that of the source after the item that was handed out last, so it does not depend
    on the number of threads. Without threads nothing is taken ahead.

    Args:
        source_datapipe: items.
        num_threads: beside the consumer's. ``None`` for those that the loader gives, or none.
        max_ahead: number of items that are taken before they are asked for; all streams of a process share it, and each
            has one at least. ``None`` for twice the number of threads.
        on_bad_sample: called with the error of the function, in the order of the items; returns to skip the sample. The
            position after a skipped one is that of the source, so a resumed pass does not read it again, or skips it.
        holds: what the items are, for errors.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        num_threads: int | None,
        max_ahead: int | None = None,
        on_bad_sample: OnBadSample = raise_error,
        holds: str = "samples",
    ) -> None:
        super().__init__(source_datapipe, holds)
        self.num_threads = whole_or_none("num_threads", num_threads, at_least=0)
        self.max_ahead = whole_or_none("max_ahead", max_ahead)
        self._on_bad_sample = check.function("on_bad_sample", on_bad_sample, example="tdr.skip_with_warning")
        if any(getattr(found, "gives_equal_counts", False) for found in all_pipes(source_datapipe)):
            self.require_equal_counts()

    def function_of(self, env: Env) -> Callable[[Any], T_co]:
        """Return the function of a pass, which is called in several threads at once."""
        raise NotImplementedError

    def preparation_of(self, env: Env) -> Callable[[Any], Any] | None:
        """Return a function that is called with each item, in order, in the thread that iterates, or ``None``."""
        return None

    def open(self, env: Env) -> Pass[T_co]:
        return _ThreadedPass(self, env)

    @property
    def may_skip(self) -> bool:
        """Whether samples may be left out."""
        return self._on_bad_sample is not raise_error

    def skips(self, error: Exception, argument: Any, skipped: Skipped) -> bool:
        """Whether a sample is skipped for which the function has raised: it is recorded then. The policy may raise."""
        # Errors of a store and of the machine are none of the sample
        is_other = isinstance(error, RemoteDataError) and not isinstance(error, SampleError)
        if not self.may_skip or is_other or isinstance(error.__cause__ or error, ImportError | MemoryError):
            return False
        sample = getattr(argument, "sample", argument)
        place = sample_url(sample), str(require_key(sample, of=functional_name(type(self))))
        self._on_bad_sample(error)
        skipped.bad_samples[place] = f"{type(error).__name__}: {error!s:.300}"
        return True

    def warn_of_skipped(self, skipped: Skipped) -> None:
        if found := skipped.bad_samples:
            (url, key), error = next(iter(found.items()))
            warnings.warn(
                f"{functional_name(type(self))}(on_bad_sample=) skipped {counted(len(found), 'sample')} of this epoch "
                "in this process, whose pipe has their URLs, keys and errors in skipped.bad_samples. The first one is "
                f"{key!r:.200} of {url or 'an unknown shard'}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def require_equal_counts(self) -> None:
        """Refuse to skip samples where ranks are promised equal numbers of them.

        Raises:
            ValueError: says how to have both.
        """
        if self.may_skip:
            raise ValueError(
                f"{functional_name(type(self))}(on_bad_sample=) may skip samples, so that ranks have different numbers "
                "of them for all that equalize_ranks() does, and wait for each other. Leave it out, and chain "
                "repeat_epochs() before and take(n) after: all ranks then have equally many."
            )

    def length(self, env: Env) -> int:
        if self.may_skip:
            raise TypeError(f"{functional_name(type(self))}(on_bad_sample=) may skip samples")
        return super().length(env)


class _ThreadedPass(Pass[Any]):
    def __init__(self, pipe: ThreadedMap[Any], env: Env) -> None:
        super().__init__(env.open(pipe.source_datapipe))
        self._pipe, self._skipped, self._ahead = pipe, env.shared.skipped(pipe), Ahead(pipe, env)
        self._prepared, self._function = pipe.preparation_of(env), pipe.function_of(env)
        self._num_threads = env.shared.num_threads if pipe.num_threads is None else pipe.num_threads
        max_ahead = pipe.max_ahead or _AHEAD_PER_THREAD * self._num_threads
        self._num_taken = 1 + max(1, max_ahead // env.shared.num_streams)  # with the item that is handed out next
        self._at: Any = None  # of the source, after the item that was handed out last
        self._is_ahead = self._num_threads > 0
        self._is_alone = False  # whether the threads are busy with others: the consumer does not wait for them then

    def items(self) -> Iterator[Any]:
        return self._in_threads() if self._is_ahead else self._in_turn()

    @property
    def position(self) -> Any:
        return self._at if self._is_ahead else self.sources[0].position

    def seek(self, position: Any) -> None:
        self._at = position
        self.sources[0].seek(position)

    def _in_turn(self) -> Iterator[Any]:
        source, function = self.sources[0], self._function
        for item in source if self._prepared is None else map(self._prepared, source):
            try:
                result = function(item)
            except Exception as error:
                if not self._pipe.skips(error, item, self._skipped):
                    raise
                continue
            del item
            yield result

    def _in_threads(self) -> Iterator[Any]:
        source, error, closed, pid = self.sources[0], None, [False], os.getpid()
        items: Iterator[Any] | None = iter(source if self._prepared is None else map(self._prepared, source))
        # Position and marks after the item, the call of the function, and the item where it may be skipped
        ahead: deque[tuple[Any, Any, _Call, Any]] = deque()
        marks = self._ahead
        pools = shared_pools()
        pool = pools.join(self._num_threads)
        try:
            while True:
                while items is not None and len(ahead) < self._num_taken:
                    try:
                        item = next(items)
                    except StopIteration:  # noqa: PERF203  # a try costs nothing
                        items = None
                    except Exception as caught:  # noqa: BLE001  # raised in its place
                        items, error = None, caught
                    else:
                        task = _Call(self._function, item)
                        ahead.append((source.position, marks.taken(), task, item if self._pipe.may_skip else None))
                        del item
                        pool.submit(task.run, closed, on_dropped=task.fail)
                if not ahead:
                    break
                self._at, of_item, task, item = ahead.popleft()
                marks.handed_out(of_item)
                try:
                    result = self._result_of(task)
                except Exception as caught:
                    if not self._pipe.skips(caught, item, self._skipped):
                        raise
                    continue
                del task, item
                yield result
                del result
                if os.getpid() != pid:
                    raise RuntimeError("This pass was begun in another process, from which this one was forked.")
            self._at = source.position
            if error is not None:
                raise error
        finally:
            error = None  # or error and frame would keep each other
            closed[0] = True
            ahead.clear()
            pools.leave(pool)

    def _result_of(self, task: _Call) -> Any:
        """Return what the function returns, once a thread has called it; raise what it raised."""
        if task.answer.empty() and not ((works_ahead() or self._is_alone) and task.begin()):
            try:
                with DECODE.waiting():
                    answer = task.answer.get(timeout=_PATIENCE_S)
                self._is_alone = False
            except queue.Empty:
                self._is_alone = task.begin()
                with DECODE.waiting():
                    answer = next_item(task.answer)
        else:
            answer = task.answer.get()
        if isinstance(answer, BaseException):
            try:
                raise answer
            finally:
                del answer  # or error and frame would keep each other
        return answer[0]
