"""Tasks: all of them, or the first error; in this process, in others, or by the executor of a user."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import LabelError, WorkerLostError
from torchdata_remote.sharding.workers.pool import Workers, run_tasks

_set_up: list[str] = []


def double(task: int) -> int:
    return 2 * task


def lose_label(task: int) -> int:
    if task == 3:
        raise LabelError("no label for 3")
    return task


def set_up(word: str) -> None:
    _set_up.append(word)


def words_and_process(task: int) -> tuple[list[str], int]:
    return _set_up, os.getpid()


class ByHand(Executor):
    """Ends futures when it is asked for: the last one first.

    Args:
        outcomes: what becomes of the next tasks: an error that the executor has, ``"cancel"``, or ``"run"``, which
            also becomes of all later ones.
    """

    def __init__(self, *outcomes: BaseException | str) -> None:
        self._outcomes = list(outcomes)
        self.submitted = self.most = 0
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*args, **kwargs)))
        self.submitted += 1
        self.most = max(self.most, len(self.waiting))
        return future

    def end_one(self) -> None:
        future, call = self.waiting.pop()
        outcome = self._outcomes.pop(0) if self._outcomes else "run"
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        elif outcome == "cancel":
            future.cancel()
        else:
            future.set_result(call())


class AtOnce(ByHand):
    """Runs a task at once in ``submit``."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(function, *args, **kwargs)
        self.end_one()
        return future


class Refuses(Executor):
    """Accepts a number of tasks, then refuses."""

    def __init__(self, num_taken: int, error: Exception) -> None:
        self._num_left, self._error = num_taken, error
        self._takes = AtOnce()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not self._num_left:
            raise self._error
        self._num_left -= 1
        return self._takes.submit(function, *args, **kwargs)


def all_results(tasks: Iterator[int], function: Callable[[int], Any], executor: Executor) -> dict[int, Any]:
    return dict(run_tasks(tasks, function, Workers(executor)))


# In this process, and in those of our own


def test_worker_processes_run_all_tasks_and_end() -> None:
    """They are set up, do all tasks, and are gone, also where the results are not all taken."""
    before = set(multiprocessing.active_children())
    done = dict(run_tasks(iter(range(5)), words_and_process, Workers(None, 2, set_up, ("a",))))
    assert [done[task][0] for task in range(5)] == 5 * [["a"]]
    assert os.getpid() not in {process for _, process in done.values()}
    found = run_tasks(count(), double, Workers(None, 1))
    assert next(found) == (0, 0)
    found.close()
    assert set(multiprocessing.active_children()) == before


def test_errors_of_worker_processes_keep_type_and_traceback() -> None:
    """Type and message are those of the task; the traceback of there is the cause."""
    with pytest.raises(LabelError, match="no label for 3") as caught:
        list(run_tasks(iter([3]), lose_label, Workers(None, 1)))
    assert "in lose_label" in str(caught.value.__cause__)


# By an executor


@given(num_tasks=st.integers(0, 600))
def test_each_task_is_submitted_once_within_the_limit_of_pending_ones(num_tasks: int) -> None:
    """Results are returned in any order."""
    executor = ByHand()
    results = run_tasks(iter(range(num_tasks)), double, Workers(executor))
    done: list[tuple[int, int]] = []

    def take() -> None:
        done.extend(results)

    ender = threading.Thread(target=take)
    ender.start()
    while ender.is_alive():
        if executor.waiting:
            executor.end_one()
    ender.join()
    assert sorted(done) == [(task, 2 * task) for task in range(num_tasks)]
    assert executor.most <= 256
    assert executor.submitted == num_tasks


def test_futures_that_are_done_at_once() -> None:
    """A future may have ended before anybody asks for it."""
    assert all_results(iter(range(700)), double, AtOnce()) == {task: 2 * task for task in range(700)}


def test_the_users_executor_is_left_open() -> None:
    """It may be used again, after a success and after an error."""
    with ThreadPoolExecutor(2) as executor:
        assert all_results(iter(range(9)), double, executor) == {task: 2 * task for task in range(9)}
        with pytest.raises(LabelError, match="no label for 3"):
            all_results(count(), lose_label, executor)
        assert all_results(iter([1]), double, executor) == {1: 2}


def test_no_task_starts_after_the_first_error() -> None:
    """Pending ones are cancelled."""
    begun: list[int] = []
    raised = threading.Event()

    def work(task: int) -> None:
        begun.append(task)
        if task == 0:
            raise LabelError("no label for 0")
        raised.wait()

    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(LabelError):
            all_results(iter(range(50)), work, executor)
        raised.set()
    assert begun in ([0], [0, 1])  # the second may have begun before the error was seen


def test_leaving_early_cancels_pending_tasks() -> None:
    """As Ctrl-C does."""
    executor = ByHand()
    submitted = executor.submit

    def submit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if executor.submitted == 4:
            raise KeyboardInterrupt
        return submitted(function, *args, **kwargs)

    executor.submit = submit  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        all_results(count(), double, executor)
    assert [future.cancelled() for future, _ in executor.waiting] == 4 * [True]


@pytest.mark.parametrize("outcome", [ConnectionError("gone"), "cancel"])
@pytest.mark.parametrize("num_lost", [1, 3])
def test_a_lost_task_is_submitted_again(outcome: BaseException | str, num_lost: int) -> None:
    """Whether the executor says that its worker is lost, or cancels the future."""
    executor = AtOnce(*num_lost * [outcome])
    assert all_results(iter(range(5)), double, executor) == {task: 2 * task for task in range(5)}
    assert executor.submitted == 5 + num_lost


@pytest.mark.parametrize(
    ("outcome", "message"), [(ConnectionError("gone"), "ConnectionError: gone"), ("cancel", "cancelled it")]
)
def test_a_task_that_is_always_lost_is_an_error(outcome: BaseException | str, message: str) -> None:
    """After some attempts, with the executor's error."""
    executor = AtOnce(*100 * [outcome])
    with pytest.raises(WorkerLostError, match=rf"lost 4 time\(s\).*{message}.*start the job again"):
        all_results(iter([1]), double, executor)
    assert executor.submitted == 4


@pytest.mark.parametrize("error", [RuntimeError("shut down"), ValueError("closed"), OSError("no scheduler")])
def test_an_executor_that_refuses_tasks_is_an_error(error: Exception) -> None:
    """Whatever its error is."""
    with pytest.raises(WorkerLostError, match=str(error)) as caught:
        all_results(iter(range(5)), double, Refuses(2, error))
    assert caught.value.__cause__ is error


def test_an_executor_that_was_shut_down_is_an_error() -> None:
    """The standard library's is one of them."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(WorkerLostError, match="after shutdown"):
        all_results(iter([1]), double, executor)


@pytest.mark.parametrize("executor", [AtOnce(AttributeError("Can't pickle it")), Refuses(0, TypeError("a lock"))])
def test_a_task_that_does_not_pickle_is_not_retried(executor: Executor) -> None:
    """Nobody tries that again."""
    with pytest.raises(TypeError, match="no lambdas"):
        all_results(iter([1]), double, executor)


# By processes of the user


def kill_itself(task: int) -> int:
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as executor:
        yield executor


def test_a_process_pool_executor_runs_all_tasks_and_keeps_error_types(processes: ProcessPoolExecutor) -> None:
    """The standard library's executor does all tasks; its errors keep their type."""
    assert all_results(iter(range(9)), double, processes) == {task: 2 * task for task in range(9)}
    with pytest.raises(LabelError, match="no label for 3") as caught:
        all_results(iter(range(9)), lose_label, processes)
    assert "in lose_label" in str(caught.value.__cause__)


def test_a_lambda_for_a_process_pool_executor_is_an_error_with_advice(processes: ProcessPoolExecutor) -> None:
    """At once."""
    with pytest.raises(TypeError, match="no lambdas"):
        all_results(iter([1]), lambda task: task, processes)


def test_a_broken_process_pool_executor_is_an_error_with_advice() -> None:
    """The standard library's executor ends with a lost worker."""
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as executor,
        pytest.raises(WorkerLostError, match=r"BrokenProcessPool.*start the job again"),
    ):
        all_results(iter(range(9)), kill_itself, executor)
