"""``shard_dataset`` by processes and executors: the bytes of one process, whichever workers are lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.servers.s3 import wait_until
from tests.support.paths import ROOT
from tests.support.shard_places import Place, some_files
from tests.support.written import Items, shard
from torchdata_remote import labels
from torchdata_remote.errors import DecodeError, LabelError, StorageError, WorkerLostError

Sample = dict[str, Any]
FILES = some_files(60)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Place(f"{tmp_path_factory.mktemp('source')}/").put(FILES)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("forkserver")) as executor:
        yield executor


@pytest.fixture(autouse=True)
def _no_worker_stays(processes: ProcessPoolExecutor) -> Iterator[None]:
    before = {child.pid for child in multiprocessing.active_children()}
    yield
    own = set(processes._processes or ())
    assert {child.pid for child in multiprocessing.active_children()} <= before | own


def test_any_kind_of_worker_writes_the_same_bytes(source: str, tmp_path: Path, processes: ProcessPoolExecutor) -> None:
    given: dict[str, Any] = {"max_shard_bytes": 20_000, "provenance": True, "labels": labels.parent_directory()}
    expected = Place(f"{tmp_path}/here/")
    infos = shard(source, expected, **given)
    assert len(infos) > 3
    with ThreadPoolExecutor(3) as threads:
        kinds: list[dict[str, Any]] = [{"num_workers": 2}, {"executor": threads}, {"executor": processes}]
        for number, kind in enumerate(kinds):
            to = Place(f"{tmp_path}/{number}/")
            assert [info.num_samples for info in shard(source, to, **given, **kind)] == [i.num_samples for i in infos]
            assert to.files() == expected.files()
        assert threads.submit(int, "3").result() == 3, "it is left open"


def test_a_dataset_of_this_process_is_sharded_by_others(tmp_path: Path) -> None:
    dataset, here, others = (
        Items((b"%d" % n, n % 2) for n in range(20)),
        Place(f"{tmp_path}/0/"),
        Place(f"{tmp_path}/2/"),
    )
    shard(dataset, here, max_shard_samples=4)
    shard(dataset, others, max_shard_samples=4, num_workers=2)
    assert here.files() == others.files()
    number = 7
    shard(dataset, others, num_workers=1, overwrite=True, transform=lambda sample: {**sample, "cls": number})
    assert {data for name, data in others.members().items() if name.endswith(".cls")} == {b"7"}, "a lambda is sent, too"


def test_megabytes_of_tasks_do_not_block(tmp_path: Path) -> None:
    dataset, to = [{"bin": bytes([n]) * (3 << 20)} for n in range(4)], Place(f"{tmp_path}/")
    shard(dataset, to, max_shard_samples=1, num_workers=2)
    assert sorted(to.members().values()) == [item["bin"] for item in dataset]


class TwoPartsError(Exception):
    """Pickles, and cannot be built from its pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class UnreducibleError(ValueError):
    """Raises what is no ``PicklingError`` when it is pickled."""

    def __reduce__(self) -> str:
        raise ZeroDivisionError


class Raising(Items):
    """A dataset that raises instead of an item, but not in the process that measures its samples."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__(range(6))
        self.error, self.home = error, os.getpid()

    def __getitem__(self, index: Any) -> Any:
        if os.getpid() != self.home and index == 3:
            raise self.error()
        return (b"x", 0)


def decode_error() -> Exception:
    error = DecodeError("s3://b/0.tar: no jpg")
    error.__cause__ = ZeroDivisionError("below")
    return error


def storage_error() -> Exception:
    return StorageError("refused", url="s3://b/0.tar", attempts=3)


def key_error() -> Exception:
    return KeyError("cls")


def two_parts() -> Exception:
    return TwoPartsError("a", "b")


def unreducible() -> Exception:
    return UnreducibleError("odd")


ERRORS = [decode_error, storage_error, key_error, two_parts, unreducible]


@pytest.mark.parametrize(
    ("made", "where"), [(decode_error, "own"), (two_parts, "own"), *((made, "executor") for made in ERRORS)]
)
def test_an_error_of_a_worker_keeps_its_type_or_at_least_its_text_and_has_its_traceback(
    tmp_path: Path, made: Callable[[], Exception], where: str, processes: ProcessPoolExecutor
) -> None:
    given: dict[str, Any] = {"num_workers": 2} if where == "own" else {"executor": processes}
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which one is what is asked
        shard(Raising(made), Place(f"{tmp_path}/"), max_shard_samples=1, **given)
    error, expected = caught.value, made()
    if made in (two_parts, unreducible):
        assert type(error) is RuntimeError
        assert str(error) == f"{type(expected).__name__}: {expected}"
    else:
        assert (type(error), str(error)) == (type(expected), str(expected))
    if isinstance(error, StorageError):
        assert (error.url, error.attempts) == ("s3://b/0.tar", 3)
    assert "raise self.error()" in str(error.__cause__)
    assert ("ZeroDivisionError: below" in str(error.__cause__)) == (made is decode_error)
    assert "index.json" not in Place(f"{tmp_path}/").files()


def test_what_cannot_be_sent_to_a_worker_is_an_error_with_advice(
    source: str, tmp_path: Path, processes: ProcessPoolExecutor
) -> None:
    with pytest.raises(TypeError, match="no lambdas"):
        shard(source, Place(f"{tmp_path}/"), executor=processes, transform=lambda sample: sample)
    with pytest.raises(TypeError, match="lock"):
        shard(Locked([(b"x", 0)]), Place(f"{tmp_path}/"), num_workers=1)


class Locked(Items):
    """Cannot be sent."""

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.lock = threading.Lock()


# Executors of others


class ByHand(Executor):
    """Ends tasks at once.

    Args:
        outcomes: what becomes of the next tasks: an error that the executor has, ``"cancel"``, or ``"run"``, which
            also becomes of all later ones.
    """

    def __init__(self, *outcomes: BaseException | str) -> None:
        self._outcomes, self.submitted = list(outcomes), 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted += 1
        outcome = self._outcomes.pop(0) if self._outcomes else "run"
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        elif outcome == "cancel":
            future.cancel()
        else:
            future.set_result(function(*args, **kwargs))
        return future


@pytest.mark.parametrize(
    "lost", [["cancel"], [ConnectionError("gone")] * 3, ["cancel", "run", OSError("x"), "run"]], ids=str
)
def test_a_task_that_an_executor_loses_is_given_to_it_again(source: str, tmp_path: Path, lost: list[Any]) -> None:
    to, executor = Place(f"{tmp_path}/"), ByHand(*lost)
    infos = shard(source, to, max_shard_samples=10, executor=executor)
    assert to.members() == FILES
    assert executor.submitted == len(infos) + sum(outcome != "run" for outcome in lost)


@pytest.mark.parametrize(
    ("outcome", "message"), [(ConnectionError("gone"), "ConnectionError: gone"), ("cancel", "cancelled it")]
)
def test_a_task_that_is_always_lost_is_an_error_after_four_times(
    source: str, tmp_path: Path, outcome: Any, message: str
) -> None:
    executor = ByHand(*100 * [outcome])
    with pytest.raises(WorkerLostError, match=rf"lost 4 time\(s\).*{message}.*start the job again"):
        shard(source, Place(f"{tmp_path}/"), executor=executor)
    assert executor.submitted == 4


def test_an_executor_that_takes_no_tasks_is_an_error_with_advice(source: str, tmp_path: Path) -> None:
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    with pytest.raises(WorkerLostError, match=r"after shutdown.*start the job again") as caught:
        shard(source, Place(f"{tmp_path}/"), executor=closed)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(TypeError, match="no lambdas"):
        shard(source, Place(f"{tmp_path}/"), executor=ByHand(AttributeError("Can't pickle it")))
    with pytest.raises(ValueError, match="exclude each other"):
        shard(source, Place(f"{tmp_path}/"), executor=closed, num_workers=1)


# Workers that are lost


class Fatal:
    """Ends the process of a worker with certain samples, once each if there is a folder for notes.

    Args:
        endings: keys end so.
        notes: a folder, or none.
        code: exit code; negative for a signal.
    """

    def __init__(self, endings: tuple[str, ...], notes: str, code: int) -> None:
        self.endings, self.notes, self.code, self.home = endings, notes, code, os.getpid()

    def __call__(self, sample: Sample) -> Sample:
        if os.getpid() != self.home and sample["__key__"].endswith(self.endings):
            try:
                if self.notes:
                    os.close(os.open(f"{self.notes}/{sample['__key__'][-2:]}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return sample
            if self.code >= 0:
                os._exit(self.code)
            os.kill(os.getpid(), -self.code)
        return sample


@pytest.mark.parametrize("num_workers", [1, 2])
def test_the_shard_of_a_lost_worker_is_written_by_another_one(source: str, tmp_path: Path, num_workers: int) -> None:
    notes, to, here = tmp_path / "notes", Place(f"{tmp_path}/to/"), Place(f"{tmp_path}/here/")
    notes.mkdir()
    shard(source, here, max_shard_samples=7, transform=plain_copy)
    shard(source, to, max_shard_samples=7, num_workers=num_workers, transform=Fatal(("03", "30", "31"), str(notes), -9))
    assert sorted(os.listdir(notes)) == ["03", "30", "31"]
    assert to.members() == FILES
    assert {name: data for name, data in to.files().items() if name != "index.json"} == {
        name: data for name, data in here.files().items() if name != "index.json"
    }


def plain_copy(sample: Sample) -> Sample:
    return sample


def test_a_shard_that_loses_four_workers_is_an_error(source: str, tmp_path: Path) -> None:
    with pytest.raises(WorkerLostError, match=r"lost 4 time\(s\), .* because of .*abruptly.*start the job again"):
        shard(source, Place(f"{tmp_path}/"), num_workers=1, transform=Fatal(("30",), "", 7))


class NoWorkers(Items):
    """Cannot be loaded in another process."""

    def __reduce__(self) -> Any:
        return refuse, ()


def refuse() -> None:
    raise LabelError("no class for cat")


def test_an_error_while_a_worker_is_set_up_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(LabelError, match="no class for cat"):
        shard(NoWorkers([(b"x", 0)]), Place(f"{tmp_path}/"), num_workers=1)


# One sample stops its worker if there is a file "stop": the worker removes it, writes its process id into a fifo, and
# waits for another fifo, which is never opened. So it can be killed in the middle of a shard.
JOB = """
import os
import signal
import sys
from pathlib import Path

from torchdata_remote import labels, shard_dataset


class Louder:
    def __init__(self, folder):
        self.folder, self.home = folder, os.getpid()

    def __call__(self, sample):
        if sample["__key__"].endswith("30") and os.getpid() != self.home:
            try:
                os.unlink(f"{self.folder}/stop")
            except FileNotFoundError:
                pass
            else:
                Path(self.folder, "victim").write_text(str(os.getpid()))
                Path(self.folder, "never").read_bytes()
        return {**sample, "txt": sample["txt"].upper()}


def write(source, folder, **options):
    template, label = f"{folder}/shards/{{shard:03d}}.tar", labels.parent_directory()
    given = {"max_shard_samples": 7, "provenance": True, **options}
    shard_dataset(source, template, labels=label, transform=Louder(folder), **given)


GUARD
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in a shell's background does not have
    source, folder, num_workers = sys.argv[1:]
    write(source, folder, num_workers=int(num_workers))
    print("complete")
"""


class Program:
    """A job in a process group of its own, none of which is left when the block ends.

    Args:
        log: gets its standard error.
        *arguments: of Python.
    """

    def __init__(self, log: Path, *arguments: str | Path) -> None:
        self._log, self._command = log, [sys.executable, *map(str, arguments)]

    def __enter__(self) -> Program:
        with self._log.open("w") as errors:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._log.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def ended(self) -> tuple[str, str]:
        """Wait for its end; returns standard output and standard error."""
        printed, _ = self.process.communicate(timeout=200)
        return printed, self._log.read_text()

    def wait_for_all(self) -> None:
        """Wait until none of its processes runs."""
        wait_until(lambda: not running(self.process.pid), "the end of all processes")


def running(group: int) -> list[str]:
    """What still runs of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            name, _, fields = path.read_text().rpartition(")")
            state, _, its_group = fields.split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(f"{name}) {state}")
    return found


def started(source: str, folder: Path, num_workers: int, guard: str = 'if __name__ == "__main__":') -> Program:
    script = folder / "job.py"
    script.write_text(JOB.replace("GUARD", guard))
    return Program(folder / "log", script, source, folder, str(num_workers))


def files_in(folder: Path) -> dict[str, bytes]:
    return Place(f"{folder}/shards/").files()


def write_to_the_end(source: str, folder: Path, num_workers: int) -> dict[str, bytes]:
    """What a job writes."""
    with started(source, folder, num_workers) as job:
        printed, stderr = job.ended()
    assert printed.endswith("complete\n"), stderr
    return files_in(folder)


@contextmanager
def stopped_in_a_shard(source: str, folder: Path) -> Iterator[tuple[Program, int]]:
    """A job one of whose workers is in the middle of a shard, and the process of that one."""
    (folder / "stop").touch()
    for name in ("victim", "never"):
        os.mkfifo(folder / name)
    with started(source, folder, 2) as job:
        yield job, int((folder / "victim").read_text())
    assert not (folder / "stop").exists()


@pytest.fixture(scope="module")
def expected(source: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process writes, undisturbed."""
    written = write_to_the_end(source, tmp_path_factory.mktemp("here"), 0)
    assert sum(name.endswith(".tar") for name in written) == 9
    return written


@pytest.mark.parametrize("how", ["ctrl-c", pytest.param("killed", marks=pytest.mark.slow)])
def test_a_stopped_job_leaves_no_worker_and_nothing_half_written_and_is_continued(
    source: str, tmp_path: Path, expected: dict[str, bytes], how: str
) -> None:
    """Though a worker waits for ever."""
    with stopped_in_a_shard(source, tmp_path) as (job, _):
        if how == "killed":
            job.process.kill()
        else:
            os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does it
        printed, stderr = job.ended()
        assert printed == ""
        assert stderr.rstrip().endswith("KeyboardInterrupt") == (how == "ctrl-c")
        job.wait_for_all()
        left = [name for name in files_in(tmp_path) if not name.endswith((".tar", ".tar.idx", ".tar.keys"))]
        assert all(name.startswith("_unfinished-") for name in left), left
    assert write_to_the_end(source, tmp_path, 2) == expected


def test_a_script_without_main_guard_gets_an_error_that_names_what_is_missing(source: str, tmp_path: Path) -> None:
    with started(source, tmp_path, 2, guard="if True:") as job:
        _, stderr = job.ended()
        assert job.process.returncode == 1
        assert 'if __name__ == "__main__":' in stderr.rpartition("Error: ")[2]
        job.wait_for_all()
