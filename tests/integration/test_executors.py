"""Shards written by many processes: of this machine, of Dask, MPI and Ray; and what becomes of a lost one's shard.

Those of clusters are slow, and need ``pip install -e '.[cluster]'`` and ``apt-get install openmpi-bin libopenmpi-dev``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchdata_remote import labels
from torchdata_remote.sharding.shard_dataset import shard_dataset

SOON_S = 30.0  # on a busy machine; a worker that is waited for never ends
PACKAGES = {"dask": "distributed", "mpi": "mpi4py", "ray": "ray"}

# One sample stops its worker if there is a file "stop": the worker removes it, writes its process id into a fifo, and
# waits for another fifo, which is never opened. So it can be killed in the middle of a shard.
JOB = """
import os
import signal
import sys
from pathlib import Path

from shard_on_cluster import open_executor
from torchdata_remote import labels
from torchdata_remote.sharding.shard_dataset import shard_dataset


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
    shard_dataset(
        source,
        f"{folder}/shards/{{shard:03d}}.tar",
        max_shard_samples=7,
        labels=labels.parent_directory(),
        transform=Louder(folder),
        provenance=True,
        **options,
    )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in a shell's background does not have
    source, folder, on, *scheduler = sys.argv[1:]
    if on == "own workers":
        write(source, folder, num_workers=2)
    elif on == "here":
        write(source, folder)
    else:
        with open_executor(on, *scheduler) as executor:
            write(source, folder, executor=executor)
    print("complete")
"""

on_all = pytest.mark.parametrize(
    "on", ["own workers", "processes", *(pytest.param(name, marks=pytest.mark.slow) for name in PACKAGES)]
)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


class Program:
    """A program in a process group of its own, none of which is left when the block ends.

    Args:
        log: gets its standard error.
        *command: name and arguments.
    """

    def __init__(self, log: Path, *command: str | Path) -> None:
        self._log, self._command = log, list(map(str, command))

    def __enter__(self) -> Program:
        with self._log.open("w") as errors:
            self.process = subprocess.Popen(
                self._command,
                cwd=self._log.parent,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        process = self.process
        if process.poll() is None:
            process.terminate()  # so that mpiexec and Dask's nannies end others
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def ended(self) -> tuple[str, str]:
        """Wait for its end; returns standard output and standard error."""
        printed, _ = self.process.communicate(timeout=120)
        return printed, self._log.read_text()


@contextmanager
def started(source: Path, folder: Path, on: str) -> Iterator[Program]:
    """A job, with the cluster that it needs."""
    package = PACKAGES.get(on)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[cluster]'")
    script = folder / "job.py"
    script.write_text(JOB)
    python: list[str] = [sys.executable]
    arguments: list[str | Path] = [source, folder, on]
    with ExitStack() as stack:
        if on == "mpi":
            if shutil.which("mpiexec") is None:
                pytest.skip("MPI is not installed: apt-get install openmpi-bin libopenmpi-dev")
            python = ["mpiexec", "-n", "3", sys.executable, "-m", "mpi4py.futures"]
        elif on == "dask":
            common = ["--scheduler-file", str(folder / "dask.json"), "--no-dashboard"]
            dask = [sys.executable, "-m", "dask"]
            stack.enter_context(Program(folder / "scheduler", *dask, "scheduler", *common, "--port", "0"))
            workers = ["worker", "--nworkers", "2", "--nthreads", "1"]
            stack.enter_context(Program(folder / "workers", *dask, *workers, *common))
            arguments.append(folder / "dask.json")
        yield stack.enter_context(Program(folder / "job", *python, script, *arguments))


def write_to_the_end(source: Path, folder: Path, on: str) -> dict[str, bytes]:
    """What a job writes."""
    with started(source, folder, on) as job:
        printed, stderr = job.ended()
    assert printed.endswith("complete\n"), stderr
    return files_in(folder)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "shards").iterdir()}


@contextmanager
def stopped_in_a_shard(source: Path, folder: Path, on: str) -> Iterator[tuple[Program, int]]:
    """A job one of whose workers is in the middle of a shard, and the process of that one."""
    (folder / "stop").touch()
    for name in ("victim", "never"):
        os.mkfifo(folder / name)
    with started(source, folder, on) as job:
        yield job, int((folder / "victim").read_text())
    assert not (folder / "stop").exists()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 texts in four classes."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(60):
        path = folder / "abcd"[number % 4] / f"{number:02d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"text {number} " * number)
    return folder


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process writes, undisturbed."""
    written = write_to_the_end(source, tmp_path_factory.mktemp("here"), "here")
    assert sum(name.endswith(".tar") for name in written) == 9
    assert sum(data.count(b"TEXT 30 ") for data in written.values()) == 30
    return written


@on_all
def test_a_lost_workers_shard_is_written_again_and_all_bytes_are_those_of_one_process(
    on: str, source: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    """By another worker; where the executor ends with a worker, by the next run, which keeps the finished shards."""
    with stopped_in_a_shard(source, tmp_path, on) as (job, victim):
        os.kill(victim, signal.SIGKILL)
        printed, stderr = job.ended()
    if on in ("processes", "mpi"):
        assert printed == ""
        assert job.process.returncode != 0
        assert on == "mpi" or "WorkerLostError: A shard's worker was lost" in stderr
        assert "index.json" not in files_in(tmp_path)
        assert write_to_the_end(source, tmp_path, on) == expected
    else:
        assert printed.endswith("complete\n"), stderr
        assert files_in(tmp_path) == expected


def test_ctrl_c_ends_workers_and_the_next_run_resumes(source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    """Soon, though a worker waits for ever; nothing half-written is left, and no process."""
    with stopped_in_a_shard(source, tmp_path, "own workers") as (job, victim):
        begun_s = time.monotonic()
        os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does it
        printed, stderr = job.ended()
        assert time.monotonic() - begun_s < SOON_S
        assert printed == ""
        assert stderr.rstrip().endswith("KeyboardInterrupt")
        with pytest.raises(ProcessLookupError):
            os.kill(victim, 0)
        left = {name for name in files_in(tmp_path) if not name.endswith((".tar", ".tar.idx", ".tar.keys"))}
        assert all(name.startswith("_unfinished-") for name in left), left
    assert write_to_the_end(source, tmp_path, "own workers") == expected


def test_threads_write_the_same_bytes(source: Path, tmp_path: Path) -> None:
    """Of the standard library's executor, which is left open."""
    here, threads = tmp_path / "here" / "shards", tmp_path / "threads" / "shards"
    with ThreadPoolExecutor(3) as executor:
        for folder, option in [(here, None), (threads, executor)]:
            template = f"{folder}/{{shard:03d}}.tar.gz"
            shard_dataset(str(source), template, max_shard_samples=7, labels=labels.parent_directory(), executor=option)
        assert executor.submit(int, "3").result() == 3
    assert files_in(here.parent) == files_in(threads.parent)
