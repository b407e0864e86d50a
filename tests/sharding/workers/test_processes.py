"""Worker processes: each task is run once, whichever workers are lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.servers.s3 import wait_until
from tests.support.paths import ROOT
from torchdata_remote.errors import LabelError, WorkerLostError
from torchdata_remote.sharding.workers.processes import WorkerProcesses

_set_up: list[str] = []


def results(function: Callable[[Any], Any], tasks: list[Any], num_workers: int = 2) -> list[Any]:
    """Run tasks; returns the results in the order of the tasks."""
    with closing(WorkerProcesses(function, num_workers)) as workers:
        done = list(workers.results(iter(tasks)))
    assert [task for task, _ in sorted(done, key=lambda pair: tasks.index(pair[0]))] == tasks
    return [result for _, result in sorted(done, key=lambda pair: tasks.index(pair[0]))]


def double(task: int) -> int:
    return 2 * task


@pytest.mark.parametrize(("num_tasks", "num_workers"), [(0, 2), (2, 3), (12, 2)])
def test_each_task_is_run_once(num_tasks: int, num_workers: int) -> None:
    """With fewer and with more tasks than workers; no worker is left afterwards."""
    before = set(multiprocessing.active_children())
    assert results(double, list(range(num_tasks)), num_workers) == [2 * task for task in range(num_tasks)]
    assert set(multiprocessing.active_children()) == before


def process_of(task: int) -> int:
    return os.getpid()


def test_no_more_processes_are_started_than_there_are_tasks() -> None:
    """One task starts one of eight workers, and does not run in this process."""
    before = set(multiprocessing.active_children())
    with closing(WorkerProcesses(process_of, 8)) as workers:
        ((_, process),) = workers.results(iter([0]))
        assert {child.pid for child in set(multiprocessing.active_children()) - before} == {process}
    assert process != os.getpid()


def length_and_echo(task: bytes) -> bytes:
    return task[::-1]


def test_tasks_and_results_larger_than_a_pipe_do_not_block() -> None:
    """Megabytes each."""
    tasks = [bytes([i]) * (1 << 20) + b"." for i in range(5)]
    assert results(length_and_echo, tasks) == [task[::-1] for task in tasks]


def set_up(*words: str) -> None:
    _set_up.extend(words)


def words_and(task: int) -> tuple[list[str], int]:
    return _set_up, task


def test_the_initializer_runs_once_in_each_worker() -> None:
    """The initializer is called before a worker's first task, and not here."""
    with closing(WorkerProcesses(words_and, 2, set_up, ("a", "b"))) as workers:
        assert dict(workers.results(iter(range(4)))) == {task: (["a", "b"], task) for task in range(4)}
    assert not _set_up


def refuse(*words: str) -> None:
    raise LabelError(f"no class for {words[0]}")


def test_an_error_of_the_initializer_is_raised() -> None:
    """It is not reported as a worker that does not start."""
    with closing(WorkerProcesses(double, 2, refuse, ("cat",))) as workers, pytest.raises(LabelError, match="for cat"):
        list(workers.results(iter([1])))


def fail_at_three(task: int) -> int:
    if task == 3:
        raise LabelError("no label for 3")
    return task


def test_the_first_error_of_a_task_ends_all_workers() -> None:
    """Also with an endless iterator of tasks."""
    before = set(multiprocessing.active_children())
    with closing(WorkerProcesses(fail_at_three, 2)) as workers, pytest.raises(LabelError, match="no label for 3"):
        list(workers.results(count()))
    assert set(multiprocessing.active_children()) == before


def lock_and(task: object) -> object:
    return threading.Lock()


def test_a_task_or_result_that_does_not_pickle_is_a_type_error() -> None:
    """At once, without other attempts."""
    before = set(multiprocessing.active_children())
    with pytest.raises(TypeError, match="no lambdas"):
        results(double, [threading.Lock()])
    with pytest.raises(TypeError, match="lock"):
        results(lock_and, [1])
    assert set(multiprocessing.active_children()) == before


# Workers that are lost


def kill_once(task: tuple[int, str]) -> tuple[int, int]:
    """Ends the process, the first time; returns the process that got through."""
    number, flag = task
    if flag:
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return number, os.getpid()


@pytest.mark.parametrize(("lost", "num_workers"), [({0, 1, 2}, 1), ({0, 3, 5}, 2)])
def test_the_task_of_a_lost_worker_is_run_by_another(tmp_path: Path, lost: set[int], num_workers: int) -> None:
    """Whichever tasks kill their workers, all results are returned."""
    tasks = [(i, str(tmp_path / str(i)) if i in lost else "") for i in range(6)]
    assert [number for number, _ in results(kill_once, tasks, num_workers)] == list(range(6))


def meet(task: tuple[str, str]) -> int:
    """Write the process id into one fifo, and wait until the other one is opened."""
    Path(task[0]).write_text(str(os.getpid()))
    Path(task[1]).read_bytes()
    return os.getpid()


def test_the_loss_of_a_worker_does_not_disturb_the_other_ones(tmp_path: Path) -> None:
    """A task that runs in another worker at that time is not run again."""
    tasks = [(str(tmp_path / f"{name} at work"), str(tmp_path / f"{name} may end")) for name in ("first", "second")]
    for name in (*tasks[0], *tasks[1]):
        os.mkfifo(name)
    pids: list[int] = []

    def watch() -> None:
        (first, first_end), (second, second_end) = tasks
        pids.extend(int(Path(name).read_text()) for name in (first, second))
        os.kill(pids[0], signal.SIGKILL)
        pids.append(int(Path(first).read_text()))
        for name in (first_end, second_end):
            Path(name).write_text("")

    watcher = threading.Thread(target=watch)
    watcher.start()
    processes = results(meet, tasks)
    watcher.join()
    victim, other, successor = pids
    assert processes == [successor, other]
    assert victim not in processes


def leave(task: int) -> None:
    os._exit(task)


def kill(task: int) -> None:
    os.kill(os.getpid(), task)


@pytest.mark.parametrize(
    ("function", "task", "reason"), [(leave, 7, "exit code 7"), (kill, signal.SIGKILL, "ended by SIGKILL")]
)
def test_a_task_that_loses_four_workers_is_an_error(function: Callable[[int], None], task: int, reason: str) -> None:
    """The error says how the last one ended."""
    with pytest.raises(WorkerLostError, match=rf"lost 4 time\(s\).*{reason}.*start the job again"):
        results(function, [task], num_workers=1)


def test_an_idle_worker_that_is_lost_is_replaced() -> None:
    """The loss of a worker between two tasks does not count as an attempt."""
    with closing(WorkerProcesses(process_of, 1)) as workers:
        found = workers.results(iter(range(3)))
        _, process = next(found)
        os.kill(process, signal.SIGKILL)
        assert {task for task, _ in found} == {1, 2}


SOON_S = 20.0  # on a busy machine; what is waited for otherwise never ends

SCRIPT = """
import signal
import sys
from contextlib import closing
from torchdata_remote.sharding.workers.processes import WorkerProcesses


def hold(name):
    import os
    try:
        with open(name, "w") as fifo:
            print(os.getpid(), file=fifo, flush=True)
            while True:
                pass
    finally:
        open(name + ".left", "w").close()


{guard}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in a shell's background does not have
    with closing(WorkerProcesses({function}, 2)) as workers:
        print(list(workers.results(iter(sys.argv[1:]))))
"""


def start_script(folder: Path, *tasks: Path, guard: str, function: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(guard=guard, function=function))
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, tasks)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def test_a_script_without_main_guard_gets_an_error_that_names_it(tmp_path: Path) -> None:
    """Without ``if __name__ == "__main__"`` there is an error that says what is missing, and no process is left."""
    process = start_script(tmp_path, Path("a"), Path("b"), guard="if True:", function="len")
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "WorkerLostError: A worker process did not start" in stderr
    assert 'below `if __name__ == "__main__":`' in stderr
    wait_until(lambda: not processes_of(process.pid), "the end of all processes", timeout_s=SOON_S)


def processes_of(group: int) -> list[str]:
    """What still runs of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            name, _, fields = path.read_text().rpartition(")")
            state, _, its_group = fields.split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(f"{name}) {state}")
    return found


def at_work(fifos: list[Path]) -> None:
    """Wait until both tasks run."""
    for fifo in fifos:
        with fifo.open() as stream:
            assert int(stream.readline()) > 0


@pytest.fixture
def fifos(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "first", tmp_path / "second"]
    for fifo in made:
        os.mkfifo(fifo)
    return made


def open_both(fifos: list[Path]) -> list[int]:
    """Descriptors that keep fifos open, so that their writers are not ended by a broken pipe."""
    return [os.open(fifo, os.O_RDWR) for fifo in fifos]


@pytest.mark.parametrize("how", ["ctrl-c", "kill"])
def test_workers_end_with_their_parent_and_remove_partial_objects(tmp_path: Path, fifos: list[Path], how: str) -> None:
    """After Ctrl-C, and when the parent is killed."""
    process = start_script(tmp_path, *fifos, guard='if __name__ == "__main__":', function="hold")
    kept = open_both(fifos)
    at_work(fifos)
    begun_s = time.monotonic()
    if how == "kill":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    process.wait(timeout=60)
    if how == "ctrl-c":
        assert time.monotonic() - begun_s < SOON_S
    wait_until(lambda: not processes_of(process.pid), "the end of all processes", timeout_s=SOON_S)
    assert all(Path(f"{fifo}.left").exists() for fifo in fifos)
    _, stderr = process.communicate()
    assert ("KeyboardInterrupt" in stderr) == (how == "ctrl-c")
    for descriptor in kept:
        os.close(descriptor)


def never_end(task: tuple[str, bool]) -> None:
    """Is not ended by SIGTERM; or waits until that is so."""
    name, ends = task
    if not ends:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(name, "r" if ends else "w"):  # each waits for the other
        pass
    while not ends:
        signal.pause()


def test_a_worker_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """Closing the pool does not wait for it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    before = set(multiprocessing.active_children())
    with closing(WorkerProcesses(never_end, 2)) as workers:
        task, _ = next(workers.results(iter([(str(fifo), False), (str(fifo), True)])))
        begun_s = time.monotonic()
    assert task[1]
    assert time.monotonic() - begun_s < SOON_S
    assert set(multiprocessing.active_children()) == before
