"""Base of the pipes that call a function with each item: in threads, a little ahead of the consumer, in order."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...core.arguments.amounts import whole_or_none
from ...core.frameworks.collating import check_item
from ...core.iter_datapipe import IterDataPipe
from ...core.threads.shared_pool import shared_pools
from ...formats.error_policy import OnBadSample, raise_error
from ...formats.sample import describe_item
from .bad_samples import BadSample, SamplePolicy
from .calls import Call, Patience, called
from .chain import Snapshot, functional_name, load_state, snapshots_of, state_of, upstream
from .datapipe import OneForOne

T_co = TypeVar("T_co", covariant=True)

_AHEAD_PER_THREAD = 2


class _Position:
    """Returns the state after the item that was handed out last; ``None`` where it is that of the source now.

    It is reset where the pipe is pickled or copied.
    """

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None

    def __reduce__(self) -> tuple[type[_Position], tuple[()]]:
        return _Position, ()


class ThreadedMap(OneForOne[T_co]):
    """Base of a pipe that yields the result of a function for each item. A subclass implements ``function_of_pass``.

    With threads, items are taken from the source in the consumer's thread and handled in a pool, which all streams of
    this process and all pipes with as many threads share. The consumer handles an item itself only if no thread is free
    for 0.1 s. Results keep the order of the items. An error is raised in the place of its item, after the
    results before it. The state is that of the source after the item that was handed out last, so it does not depend on
    the number of threads. Without threads nothing is taken ahead.

    Args:
        num_threads: beside the consumer's. ``None`` for those that the loader gives, or none.
        max_ahead: number of items that are taken before they are asked for; all streams of a process share it, and each
            has one at least. ``None`` for twice the number of threads.
        on_bad_sample: called with the error of the function, in the order of the items; returns to skip the sample. The
            state after a skipped one is that of the source, so a resumed pass does not read it again, or skips it.
    """

    def __init__(
        self, num_threads: int | None, max_ahead: int | None = None, on_bad_sample: OnBadSample = raise_error
    ) -> None:
        self.policy = SamplePolicy(functional_name(self), on_bad_sample)
        self._skipped = self.policy.skipped
        if any(getattr(found, "gives_equal_counts", False) for found in upstream(self)):
            self.policy.require_equal_counts()
        self.num_threads = whole_or_none("num_threads", num_threads, at_least=0)
        self.max_ahead = whole_or_none("max_ahead", max_ahead)
        self._given_threads = 0  # by the loader
        self._num_streams = 1  # that share the look-ahead
        self._position = _Position()

    @abstractmethod
    def function_of_pass(self) -> Callable[[Any], T_co]:
        """Return the function of a pass that starts. It is called in several threads at once.

        It is called with what :meth:`prepared` returned. A pass that was given up may still call it.
        """

    def prepared(self, item: Any) -> Any:
        """Hook: called with each item, in order, in the thread that iterates. Its result goes to the function."""
        return item

    def warn_of_skipped(self) -> None:
        if not self._is_stream:
            self.policy.warn()

    def equal_counts(self, num_streams: int) -> bool | None:
        return False if self.policy.may_skip else super().equal_counts(num_streams)

    def __len__(self) -> int:
        if self.policy.may_skip:
            raise TypeError(f"{functional_name(self)}(on_bad_sample=) may skip samples")
        return super().__len__()

    def use_threads(self, num_threads: int) -> None:
        """Hook of loaders: use so many threads from the next pass on, if the constructor was given no number."""
        self._given_threads = num_threads

    def prepare_copy(self, num_streams: int) -> None:
        super().prepare_copy(num_streams)
        self._num_streams = num_streams

    def __iter__(self) -> Iterator[T_co]:
        num_threads = self._given_threads if self.num_threads is None else self.num_threads
        self._position = position = _Position()
        self.forget_skipped()
        yield from self._in_threads(num_threads, position) if num_threads else self._in_turn()
        self.warn_of_skipped()

    def _in_turn(self) -> Iterator[T_co]:
        function, is_first = self.policy.guarded(self.function_of_pass()), True
        for item in self.source_datapipe:
            result = called(function, self.prepared(item))
            if type(result) is BadSample:
                self.policy.skip(result)
                continue
            if is_first:
                is_first = False
                check_item(self, result, where=describe_item(item))
            del item
            yield result

    def _in_threads(self, num_threads: int, position: _Position) -> Iterator[T_co]:
        max_ahead = self.max_ahead or _AHEAD_PER_THREAD * num_threads
        num_taken = 1 + max(1, max_ahead // self._num_streams)  # with the item that is handed out next
        is_first, ahead, pid, patience = True, _Ahead(self, num_threads), os.getpid(), Patience()
        try:
            while ahead.fill(num_taken):
                position.snapshot, task, item = ahead.waiting.popleft()
                result = task.result(patience)
                if type(result) is BadSample:
                    self.policy.skip(result)
                    continue
                if is_first:
                    is_first = False
                    check_item(self, result, where=describe_item(item))
                del item, task
                yield result
                del result
                if os.getpid() != pid:
                    raise RuntimeError("This pass was begun in another process, from which this one was forked.")
            position.snapshot = None
            ahead.raise_error()
        finally:
            ahead.close()

    def state_dict(self) -> Any:
        """Return the position after the last item that was yielded, as plain JSON."""
        snapshot = self._position.snapshot
        return state_of(self.source_datapipe) if snapshot is None else snapshot()

    def snapshots(self) -> Callable[[], Snapshot]:
        of_source = snapshots_of(self.source_datapipe)
        return lambda: self._position.snapshot or of_source()

    def load_state_dict(self, state: Any) -> None:
        """Resume the next pass from a state."""
        self._position = _Position()
        load_state(self.source_datapipe, state)


class _Ahead:
    """The items of a pass that were taken from the source and not yet handed out.

    Args:
        pipe: that is iterated.
        num_threads: that call its function.
    """

    def __init__(self, pipe: ThreadedMap[Any], num_threads: int) -> None:
        self._pipe, self._function = pipe, pipe.policy.guarded(pipe.function_of_pass())
        self._snapshot = snapshots_of(pipe.source_datapipe)
        # State after the item, the call of the function, and the item, if it is the first one
        self.waiting: deque[tuple[Snapshot, Call, Any]] = deque()
        self._source: Iterator[Any] | None = iter(pipe.source_datapipe)
        self._error: Exception | None = None
        self._is_first, self._closed = True, [False]
        self._pools = shared_pools()
        self._pool = self._pools.join(num_threads)

    def fill(self, num_taken: int) -> bool:
        """Take items until so many wait, or the source ends; return whether one waits."""
        source = self._source
        while source is not None and len(self.waiting) < num_taken:
            try:
                item = next(source)
            except StopIteration:  # noqa: PERF203  # a try costs nothing
                self._source = source = None
            except Exception as error:  # noqa: BLE001  # raised in its place
                self._source, self._error = None, error
                break
            else:
                snapshot, first = self._snapshot(), item if self._is_first else None
                self._is_first = False
                self.waiting.append((snapshot, self._submitted(item), first))
                del item, first
        return bool(self.waiting)

    def _submitted(self, item: Any) -> Call:
        try:
            task = Call(self._function, self._pipe.prepared(item))
        except Exception as error:  # noqa: BLE001  # raised in its place
            task = Call(self._function, None)
            task.fail(error)
        else:
            self._pool.submit(task.run, self._closed, on_dropped=task.fail)
        return task

    def raise_error(self) -> None:
        """Raise what the source has raised.

        Raises:
            Exception: if it has.
        """
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or error and frame would keep each other

    def close(self) -> None:
        """Drop the items whose function was not called. Does not wait for the others. Safe in a finalizer."""
        self._closed[0] = True
        self.waiting.clear()
        self._source = None
        self._pools.leave(self._pool)


def use_threads(pipe: IterDataPipe[Any], num_threads: int) -> None:
    """Give the pipes of a chain threads, where their constructors were given no number.

    Args:
        pipe: the last one of the chain.
        num_threads: of all these pipes together, because pipes with equal numbers share their threads.
    """
    for found in upstream(pipe):
        if isinstance(found, ThreadedMap):
            found.use_threads(num_threads)
