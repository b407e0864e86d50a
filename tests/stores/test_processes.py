"""Signals, forks, exits, few descriptors and little memory while requests are under way: no hang, and no leak."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.servers.scripted import Response, scripted
from tests.support.waiting import engine_threads, wait_for
from torchdata_remote.testing import Faults

NUM, SIZE = 12, 60_000


@pytest.fixture(scope="module")
def folder(moto: S3Server) -> str:
    """Twelve objects of 60,000 bytes."""
    bucket, client = moto.new_bucket(), moto.client()
    for number in range(NUM):
        client.put_object(Bucket=bucket, Key=f"objects/{number:02d}.bin", Body=bytes([number]) * SIZE)
    return f"s3://{bucket}/objects/"


EXPECTED = [bytes([number]) * SIZE for number in range(NUM)]


def prefetched(folder: str, server: S3Server, **options: Any) -> Any:
    urls = tdr.IterableWrapper([folder]).list_remote(storage_options=server.storage_options)
    return urls.async_prefetch(storage_options=server.storage_options, **options)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_passes_through_a_storm_leak_no_descriptors_and_threads(moto: S3Server, folder: str) -> None:
    """Complete ones and ones that were stopped early."""
    others = engine_threads()  # of earlier tests, which may still wait for a stalled store
    with faulty(moto, Faults.storm(0.2), seed=1) as (broken, _):
        policy = tdr.RetryPolicy(first_wait_s=0.001, max_wait_s=0.01)

        def passes(count: int) -> None:
            for number in range(count):
                for index, (_, stream) in enumerate(prefetched(folder, broken, part_bytes=20_000, retry=policy)):
                    stream.read(1_000 if number % 3 == 0 else -1)
                    if number % 3 == 1 and index == 5:
                        break
            gc.collect()

        passes(3)
        wait_for(lambda: engine_threads() <= others)
        before = descriptors()
        passes(9)
        wait_for(lambda: engine_threads() <= others)
        wait_for(lambda: descriptors() <= before + 15)  # idle pooled connections on both sides of the proxy


READ_ALL = """
import sys
import torchdata_remote as tdr

folder, endpoint_url, key, secret, how = sys.argv[1:]
options = {"endpoint_url": endpoint_url, "key": key, "secret": secret}
policy = tdr.RetryPolicy(first_wait_s=0.01, max_wait_s=0.1, progress_timeout_s=600)


def main():
    urls = tdr.IterableWrapper([folder]).list_remote(storage_options=options)
    pipe = urls.async_prefetch(part_bytes=20_000, retry=policy, storage_options=options)
    if how.startswith("worker"):
        from torch.utils.data import DataLoader
        loader = DataLoader(pipe.file_reader(), batch_size=None, num_workers=1,
                            multiprocessing_context=how.partition("-")[2])
        iterator = iter(loader)
        print(iterator._workers[0].pid, flush=True)
        for index, sample in enumerate(iterator):
            if index == 5:
                break
        return
    count = 0
    for url, stream in pipe:
        count += len(stream.read())
        if how == "stop":
            print("reading", flush=True)
        if how == "error":
            raise ZeroDivisionError
        if how == "break":
            break
    assert count == (720_000 if how in ("all", "stop") else 60_000), count


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a file, because spawn and forkserver import it again."""
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(READ_ALL)
    return path


def start(program: Path, folder: str, server: S3Server, how: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(program), folder, server.endpoint_url, server.key, server.secret, how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, errors = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, errors


def test_ctrl_c_ends_a_process_with_requests_that_stand_still(moto: S3Server, folder: str, program: Path) -> None:
    """Although each request would wait for ten minutes."""
    with faulty(moto, Faults(stall_s=3600)) as (broken, store):
        store.script(None, *["stall_in_body"] * 200)
        # Background processes of a shell ignore Ctrl-C, and their children inherit this.
        process = start(
            program, folder, broken, "stop", preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        )
        wait_for(lambda: store.counts["stall_in_body"] >= 10)
        process.send_signal(signal.SIGINT)
        _, errors = finish(process)
        assert "KeyboardInterrupt" in errors
        assert "Fatal Python error" not in errors


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_with_requests_that_stand_still_ends_with_the_training_process(
    moto: S3Server, folder: str, program: Path
) -> None:
    """Although it is a child of the fork server."""
    with faulty(moto, Faults(stall_in_body=1.0, stall_s=3600)) as (broken, store):
        with start(program, folder, broken, "worker-forkserver") as process:
            assert process.stdout is not None
            worker = int(process.stdout.readline())
            wait_for(lambda: store.counts["stall_in_body"] >= 10)
            process.kill()
            process.wait()
        wait_for(lambda: not is_alive(worker))


@pytest.mark.parametrize("times", [1, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_a_process_that_has_read_ends_with_its_own_exit_code(
    moto: S3Server, folder: str, program: Path, times: int
) -> None:
    """0 after ``break`` and with a worker, 1 after an exception; a thread inside a native call would abort some."""
    for how in ["error", "worker-forkserver", *["break", "worker-spawn"] * (times > 1)] * times:
        code, errors = finish(start(program, folder, moto, how))
        assert code == (how == "error"), errors
        assert "Fatal" not in errors
        assert "never awaited" not in errors


MEASURE = """
import resource, sys
import torchdata_remote as tdr, obstore, botocore.session

url, endpoint_url, key, secret, bound = sys.argv[1:]
options = {"endpoint_url": endpoint_url, "key": key, "secret": secret}
urls = list(tdr.IterableWrapper([url]).list_remote(storage_options=options))
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    streams = tdr.IterableWrapper(urls, deepcopy=False).async_prefetch(
        part_bytes=1 << 20, max_buffer_bytes=int(bound), storage_options=options)
    total = 0
    for _, stream in streams:
        while piece := stream.read(1 << 20):
            total += len(piece)
assert total == 3 * (24 << 20), total
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) << 10)
"""


def test_peak_memory_is_bounded_by_max_buffer_bytes(moto: S3Server) -> None:
    """Above the idle process: twice the bound, and 24 MiB for threads and clients; the objects have 72 MiB."""
    bucket, client = moto.new_bucket(), moto.client()
    for number in range(3):
        client.put_object(Bucket=bucket, Key=f"large/{number}", Body=bytes(24 << 20))
    arguments = [f"s3://{bucket}/large/", moto.endpoint_url, moto.key, moto.secret, str(8 << 20)]
    command = [sys.executable, "-c", MEASURE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 2 * (8 << 20) + (24 << 20)


def read_all(folder: str, server: S3Server) -> None:
    assert len(list(prefetched(folder, server).file_reader())) == NUM


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
def test_a_fork_with_requests_under_way_affects_neither_process(moto: S3Server, folder: str) -> None:
    """The child opens connections of its own, and the parent receives its responses."""
    with faulty(moto, Faults(stall_s=1.0)) as (broken, store):
        store.script(None, *["stall"] * 3)
        iterator = iter(prefetched(folder, broken, max_in_flight=4))
        _, stream = next(iterator)
        wait_for(lambda: len(store.requests) >= 4)
        child = multiprocessing.get_context("fork").Process(target=read_all, args=(folder, moto))
        child.start()
        child.join(60)
        child.kill()
        assert child.exitcode == 0
        assert stream.read() == EXPECTED[0]
        assert [rest.read() for _, rest in iterator] == EXPECTED[1:]


FORKED = """
import os, sys, warnings
sys.path.insert(0, sys.argv[2])
from tests.stores.transports import target
every = [target(name, sys.argv[1])._replace(backend="automatic") for name in sys.argv[3:]]
assert [one.read() for one in every] == [b"data"] * len(every)
child = os.fork()
if child == 0:
    ok = [one.read(part_bytes=2) for one in every] == [b"data"] * len(every)
    os._exit(0 if ok else 2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def in_child(*names: str) -> subprocess.CompletedProcess[str]:
    """Read from stores in a process, and in its child."""
    root = Path(__file__).parents[2]
    with scripted(lambda request: Response.of_object(request, b"data")) as server:
        command = [sys.executable, "-c", FORKED, server.url, str(root), *names]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_a_forked_child_reads_every_store_without_obstore_and_says_so() -> None:
    """obstore hangs in a child whose parent has used it."""
    done = in_child("s3 by obstore", "datasets", "http by obstore", "hub")
    assert done.returncode == 0, done.stderr
    for scheme in ("s3", "datasets", "http"):
        assert f"{scheme} is read by" in done.stderr
    assert "more slowly" in done.stderr


@pytest.mark.parametrize(("name", "package"), [("gs by obstore", "gcsfs"), ("az", "adlfs")])
def test_a_forked_child_without_the_package_for_a_store_is_told_of_it_and_of_forkserver(
    name: str, package: str
) -> None:
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    done = in_child(name)
    assert done.returncode != 0
    assert f"pip install {package}" in done.stderr
    assert "multiprocessing_context='forkserver'" in done.stderr
