"""Stalls, signals, few descriptors, process exit: no hang, and no leaked resources."""

from __future__ import annotations

import gc
import http.server
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.ports import free_port
from torchdata_remote import Backend, RetryPolicy
from torchdata_remote.errors import TransientStorageError
from torchdata_remote.testing import Faults, write_small_shards

DEADLINE_S = 30.0
STALLS = {
    "before the headers": Faults(stall=1.0, stall_s=600),
    "in the body": Faults(stall_in_body=1.0, stall_s=600),
    "one byte at a time": Faults(trickle=1.0, trickle_s=0.01),
}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def folder(moto: S3Server) -> str:
    """Twelve objects of 60,000 bytes."""
    bucket, client = moto.new_bucket(), moto.client()
    for number in range(12):
        client.put_object(Bucket=bucket, Key=f"objects/{number:02d}.bin", Body=bytes([number]) * 60_000)
    return f"s3://{bucket}/objects/"


def prefetched(folder: str, server: S3Server, **options: Any) -> Any:
    urls = IterableWrapper([folder]).list_remote(storage_options=server.storage_options)
    return urls.async_prefetch(storage_options=server.storage_options, **options)


@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE])
def test_stalled_store_is_an_error_after_the_attempts_of_the_policy(
    moto: S3Server, folder: str, stall: str, backend: Backend
) -> None:
    """Each attempt ends after the time of the policy without progress."""
    with faulty(moto, STALLS[stall]) as (broken, store):
        policy = RetryPolicy(max_attempts=3, progress_timeout_s=0.3, first_wait_s=0)
        pipe = prefetched(folder, broken, max_in_flight=1, retry=policy, backend=backend)
        start = time.monotonic()
        _, stream = next(iter(pipe))
        with pytest.raises(TransientStorageError, match=r"Gave up after 3 attempts"):
            stream.read()
        assert time.monotonic() - start < 10
        first = [request for request in store.requests if request.path.endswith("/00.bin") and not request.query]
        assert len(first) == 3


def test_stalled_request_is_resumed_on_another_connection(moto: S3Server, folder: str) -> None:
    """It continues at the byte after the last one received."""
    with faulty(moto) as (broken, store):
        store.faults = Faults(stall_s=600)
        policy = RetryPolicy(progress_timeout_s=0.3, first_wait_s=0)
        pipe = prefetched(folder, broken, max_in_flight=2, part_bytes=25_000, retry=policy)
        store.script(*["stall", "stall_in_body", None] * 6)
        got = [stream.read() for _, stream in pipe]
        assert got == [bytes([number]) * 60_000 for number in range(12)]
        assert store.counts["stall"] + store.counts["stall_in_body"] == 12


def test_streams_survive_closed_idle_connections(moto: S3Server, folder: str) -> None:
    """Stores close idle connections while a slow consumer is working."""
    with faulty(moto) as (broken, store):
        iterator = iter(prefetched(folder, broken, max_in_flight=2, part_bytes=10_000, max_buffer_bytes=30_000))
        _, stream = next(iterator)
        start = stream.read(5_000)
        wait_for(lambda: store.counts["well"] >= 4)
        with store._lock:
            for sock in [sock for sock in store._sockets if sock.getsockname() != ("127.0.0.1", 0)]:
                try:
                    sock.getpeername()
                except OSError:
                    continue  # the listening socket
                sock.shutdown(2)
        assert start + stream.read() == bytes(60_000)
        assert [rest.read() for _, rest in iterator] == [bytes([number]) * 60_000 for number in range(1, 12)]


def test_server_that_starts_late_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Refused connections are retried."""
    (tmp_path / "a.bin").write_bytes(b"late")
    port = free_port()
    pipe = IterableWrapper([f"http://127.0.0.1:{port}/a.bin"]).async_prefetch(
        retry=RetryPolicy(first_wait_s=0.02, max_wait_s=0.05)
    )
    with caplog.at_level("DEBUG", "torchdata_remote"):
        _, stream = next(iter(pipe))
        wait_for(lambda: sum("next in" in record.getMessage() for record in caplog.records) >= 5)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert stream.read() == b"late"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_dns_failures_are_retried(scheme: str) -> None:
    """A name that does not resolve is a transient error."""
    url = {"s3": "s3://bucket/a", "http": "http://nowhere.invalid/a"}[scheme]
    options = {"endpoint_url": "http://nowhere.invalid", "anon": True} if scheme == "s3" else None
    policy = RetryPolicy(max_attempts=3, first_wait_s=0)
    _, stream = next(iter(IterableWrapper([url]).async_prefetch(retry=policy, storage_options=options)))
    with pytest.raises(TransientStorageError, match="Gave up after 3 attempts"):
        stream.read()


def test_passes_through_a_storm_leak_no_descriptors_and_threads(moto: S3Server, folder: str) -> None:
    """30 passes, complete ones and ones that were stopped early."""
    others = engine_threads()  # of earlier tests, which may still wait for a stalled store
    with faulty(moto, Faults.storm(0.2), seed=1) as (broken, _):
        policy = RetryPolicy(first_wait_s=0.001, max_wait_s=0.01, progress_timeout_s=5)

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
        passes(30)
        wait_for(lambda: engine_threads() <= others)
        assert descriptors() <= before + 20  # idle pooled connections on both sides of the proxy


READ_ALL = """
import sys
from torch.utils.data.datapipes.iter import IterableWrapper
import torchdata_remote as tdr

folder, endpoint_url, key, secret, how = sys.argv[1:]
options = {"endpoint_url": endpoint_url, "key": key, "secret": secret}
policy = tdr.RetryPolicy(first_wait_s=0.01, max_wait_s=0.1, progress_timeout_s=60)


def main():
    urls = IterableWrapper([folder]).list_remote(storage_options=options)
    pipe = urls.async_prefetch(part_bytes=20_000, retry=policy, storage_options=options)
    if how.startswith("worker"):
        from torch.utils.data import DataLoader
        loader = DataLoader(pipe.file_reader(), batch_size=None, num_workers=1,
                            multiprocessing_context=how.partition("-")[2])
        for index, sample in enumerate(loader):
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


def start(folder: str, server: S3Server, how: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", READ_ALL, folder, server.endpoint_url, server.key, server.secret, how]
    if how.startswith("worker"):  # spawn and forkserver import the program again, so it has to be a file
        program = Path(more.pop("at")) / "program.py"
        program.write_text(READ_ALL)
        command[1:3] = [str(program)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def finish(process: subprocess.Popen[str], timeout_s: float = 60.0) -> tuple[int, str]:
    try:
        _, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, errors


def test_64_descriptors_suffice_through_a_storm(moto: S3Server, folder: str) -> None:
    """All objects are read."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with faulty(moto, Faults.storm(0.2), seed=2) as (broken, _):
        code, errors = finish(start(folder, broken, "all", preexec_fn=limit))
        assert code == 0, errors


@pytest.mark.parametrize("how", ["interrupt", "terminate"])
def test_signal_ends_a_process_with_stalled_requests(moto: S3Server, folder: str, how: str) -> None:
    """Ctrl-C and SIGTERM, within seconds."""
    with faulty(moto, Faults(stall_s=600)) as (broken, store):
        store.script(None, *["stall_in_body"] * 200)
        # Background processes of a shell ignore Ctrl-C, and their children inherit this.
        with_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        process = start(folder, broken, "stop", preexec_fn=with_ctrl_c)
        assert process.stdout is not None
        wait_for(lambda: store.counts["stall_in_body"] >= 10)
        started_s = time.monotonic()
        process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGTERM)
        code, errors = finish(process)
        assert time.monotonic() - started_s < 10
        assert code == -signal.SIGTERM if how == "terminate" else "KeyboardInterrupt" in errors
        assert "Fatal Python error" not in errors


WORKER = """
import sys
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
import torchdata_remote as tdr

folder, endpoint_url, key, secret, method = sys.argv[1:]
options = {"endpoint_url": endpoint_url, "key": key, "secret": secret}

if __name__ == "__main__":
    urls = IterableWrapper([folder]).list_remote(storage_options=options)
    pipe = urls.async_prefetch(retry=tdr.RetryPolicy(progress_timeout_s=600), storage_options=options).file_reader()
    iterator = iter(DataLoader(pipe, batch_size=None, num_workers=1, multiprocessing_context=method))
    print(iterator._workers[0].pid, flush=True)
    list(iterator)
"""


# A spawned worker is a child of the training process, as a forked one is; one of forkserver is not.
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_worker_with_stalled_requests_ends_with_the_training_process(
    moto: S3Server, folder: str, tmp_path: Path, method: str
) -> None:
    """The training process is killed; the worker ends within seconds."""
    program = tmp_path / "program.py"
    program.write_text(WORKER)
    with faulty(moto, Faults(stall_in_body=1.0, stall_s=600)) as (broken, store):
        arguments = [folder, broken.endpoint_url, broken.key, broken.secret, method]
        with subprocess.Popen([sys.executable, str(program), *arguments], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            worker = int(process.stdout.readline())
            wait_for(lambda: store.counts["stall_in_body"] >= 10)
            process.kill()
            process.wait()
            wait_for(lambda: not alive(worker))


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def codes_of(folder: str, server: S3Server, ways: list[str], at: Path) -> list[tuple[str, int, str]]:
    """Run a process in each way; return those with a wrong exit code."""
    wrong = []
    for how in ways:
        more = {"at": at} if how.startswith("worker") else {}
        code, errors = finish(start(folder, server, how, **more))
        if code != (1 if how == "error" else 0) or "Fatal" in errors or "never awaited" in errors:
            wrong.append((how, code, errors[-2_000:]))
    return wrong


WAYS = ["all", "error", "break", "worker-spawn", "worker-forkserver"]


def test_exit_codes_of_processes_that_have_read(moto: S3Server, folder: str, tmp_path: Path) -> None:
    """0 after a complete pass, after ``break`` and with a worker; 1 after an exception."""
    assert codes_of(folder, moto, ["all", "error", "break", "worker-forkserver"], tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_exit_codes_of_two_hundred_processes_that_have_read(moto: S3Server, folder: str, tmp_path: Path) -> None:
    """A thread inside a native call at exit would abort some of them."""
    assert codes_of(folder, moto, WAYS * 40, tmp_path) == []


MEASURE = """
import resource, sys
from torch.utils.data.datapipes.iter import IterableWrapper
import torchdata_remote as tdr, obstore, botocore.session

url, endpoint_url, key, secret, bound = sys.argv[1:]
options = {"endpoint_url": endpoint_url, "key": key, "secret": secret}
urls = list(IterableWrapper([url]).list_remote(storage_options=options))
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    streams = IterableWrapper(urls, deepcopy=False).async_prefetch(
        part_bytes=1 << 20, max_buffer_bytes=int(bound), storage_options=options)
    total = sum(len(piece) for _, stream in streams for piece in stream.file_obj.parts())
assert total == 3 * (24 << 20), total
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) << 10)
"""


def test_peak_memory_is_bounded_by_max_buffer_bytes(moto: S3Server) -> None:
    """Peak memory above the idle process: at most 1.5 times the bound, and 24 MiB for threads and clients."""
    bucket, client = moto.new_bucket(), moto.client()
    for number in range(3):
        client.put_object(Bucket=bucket, Key=f"large/{number}", Body=bytes(24 << 20))
    arguments = [f"s3://{bucket}/large/", moto.endpoint_url, moto.key, moto.secret]
    for bound in (8 << 20, 24 << 20):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *arguments, str(bound)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) <= 1.5 * bound + (24 << 20), (int(done.stdout), bound)


def test_stream_shards_reads_everything_through_a_storm(moto: S3Server) -> None:
    """With the default retry policy."""
    import torchdata_remote as tdr

    bucket = moto.new_bucket()
    written = write_small_shards(
        f"s3://{bucket}/shards", num_shards=4, samples_per_shard=25, storage_options=moto.storage_options
    )
    with faulty(moto, Faults.storm(0.3), seed=3) as (broken, _):
        read = list(tdr.stream_shards(f"s3://{bucket}/shards/", seed=None, storage_options=broken.storage_options))
    assert read == written


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
def test_fork_with_requests_in_flight_affects_neither_process(moto: S3Server, folder: str) -> None:
    """The child opens connections of its own, and the parent receives its responses."""
    with faulty(moto, Faults(stall_s=1.0)) as (broken, store):
        store.script(None, *["stall"] * 3)
        iterator = iter(prefetched(folder, broken, max_in_flight=4))
        _, stream = next(iterator)
        wait_for(lambda: len(store.requests) >= 4)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if len(list(prefetched(folder, moto).file_reader())) == 12 else 2
            finally:
                os._exit(code)
        ended: list[int] = []
        waiter = threading.Thread(target=lambda: ended.append(os.waitpid(child, 0)[1]), daemon=True)
        waiter.start()
        waiter.join(DEADLINE_S)
        if not ended:
            os.kill(child, signal.SIGKILL)
        assert ended == [0]
        assert stream.read() == bytes(60_000)
        assert [rest.read() for _, rest in iterator] == [bytes([number]) * 60_000 for number in range(1, 12)]
