"""Stalls, signals, few descriptors, the end of a process: whatever happens, no hang and nothing left behind."""

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
from tests.servers.s3 import S3Server, free_port
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
def test_a_stalled_store_is_given_up(moto: S3Server, folder: str, stall: str, backend: Backend) -> None:
    """A store that stands still is an error after the attempts that the policy allows, each as long as it says."""
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


def test_a_stall_that_passes(moto: S3Server, folder: str) -> None:
    """A request that stands still is repeated on another connection, from where it stood."""
    with faulty(moto) as (broken, store):
        store.faults = Faults(stall_s=600)
        policy = RetryPolicy(progress_timeout_s=0.3, first_wait_s=0)
        pipe = prefetched(folder, broken, max_in_flight=2, part_bytes=25_000, retry=policy)
        store.script(*["stall", "stall_in_body", None] * 6)
        got = [stream.read() for _, stream in pipe]
        assert got == [bytes([number]) * 60_000 for number in range(12)]
        assert store.counts["stall"] + store.counts["stall_in_body"] == 12


def test_a_slow_consumer_keeps_its_streams(moto: S3Server, folder: str) -> None:
    """Streams survive that all connections are closed meanwhile, as stores do with idle ones."""
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
                    continue  # the one that listens
                sock.shutdown(2)
        assert start + stream.read() == bytes(60_000)
        assert [rest.read() for _, rest in iterator] == [bytes([number]) * 60_000 for number in range(1, 12)]


def test_refused_connections_are_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A server that comes up while it is asked for is read as if it had always been there."""
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
def test_names_that_do_not_resolve_are_repeated(scheme: str) -> None:
    """A name server that is gone for a while is a fault that may pass."""
    url = {"s3": "s3://bucket/a", "http": "http://nowhere.invalid/a"}[scheme]
    options = {"endpoint_url": "http://nowhere.invalid", "anon": True} if scheme == "s3" else None
    policy = RetryPolicy(max_attempts=3, first_wait_s=0)
    _, stream = next(iter(IterableWrapper([url]).async_prefetch(retry=policy, storage_options=options)))
    with pytest.raises(TransientStorageError, match="Gave up after 3 attempts"):
        stream.read()


def test_descriptors_and_threads_come_back(moto: S3Server, folder: str) -> None:
    """Hundreds of passes through a storm, ended in all ways, leave as many threads and descriptors as one."""
    others = engine_threads()  # of tests before, which may still wait for a store that stands still
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
        passes(60)
        wait_for(lambda: engine_threads() <= others)
        assert descriptors() <= before + 20  # connections that wait to be used again, on both sides of the proxy


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


@pytest.mark.parametrize("max_descriptors", [64])
def test_few_descriptors(moto: S3Server, folder: str, max_descriptors: int) -> None:
    """With 64 descriptors everything is read, through a storm."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max_descriptors, max_descriptors))

    with faulty(moto, Faults.storm(0.2), seed=2) as (broken, _):
        code, errors = finish(start(folder, broken, "all", preexec_fn=limit))
        assert code == 0, errors


@pytest.mark.parametrize("how", ["interrupt", "terminate"])
def test_a_signal_ends_a_process_that_waits(moto: S3Server, folder: str, how: str) -> None:
    """Ctrl-C and SIGTERM end a process within seconds although its requests stand still."""
    with faulty(moto, Faults(stall_s=600)) as (broken, store):
        store.script(None, *["stall_in_body"] * 200)
        # What a shell starts in the background ignores Ctrl-C, and hands that down.
        heeds_it = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        process = start(folder, broken, "stop", preexec_fn=heeds_it)
        assert process.stdout is not None
        wait_for(lambda: store.counts["stall_in_body"] >= 10)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGTERM)
        code, errors = finish(process)
        assert time.monotonic() - begun < 10
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


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_worker_ends_with_its_parent(moto: S3Server, folder: str, tmp_path: Path, method: str) -> None:
    """When the training process is killed, a worker that waits for a store that stands still ends too, in seconds."""
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
    """Exit codes that are not what they should be."""
    wrong = []
    for how in ways:
        more = {"at": at} if how.startswith("worker") else {}
        code, errors = finish(start(folder, server, how, **more))
        if code != (1 if how == "error" else 0) or "Fatal" in errors or "never awaited" in errors:
            wrong.append((how, code, errors[-2_000:]))
    return wrong


WAYS = ["all", "error", "break", "worker-spawn", "worker-forkserver"]


def test_processes_end_well(moto: S3Server, folder: str, tmp_path: Path) -> None:
    """A process that has read ends with code 0: at the end, on ``break``, with workers; or with its exception."""
    assert codes_of(folder, moto, [*WAYS, "break", "error"], tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_processes_end_well(moto: S3Server, folder: str, tmp_path: Path) -> None:
    """The same two hundred times: a thread inside a native call at exit would abort some of them."""
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
assert total == 3 * (40 << 20), total
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - idle) << 10)
"""


def test_memory_follows_the_bound(moto: S3Server) -> None:
    """Peak memory above the idle process is at most 1.5 times the bound and a little for threads and clients."""
    bucket, client = moto.new_bucket(), moto.client()
    for number in range(3):
        client.put_object(Bucket=bucket, Key=f"large/{number}", Body=bytes(40 << 20))
    arguments = [f"s3://{bucket}/large/", moto.endpoint_url, moto.key, moto.secret]
    for bound in (16 << 20, 64 << 20):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *arguments, str(bound)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) <= 1.5 * bound + (24 << 20), (int(done.stdout), bound)


def test_whole_chain_through_everything(moto: S3Server) -> None:
    """The recipe that users begin with reads its shards through a storm with the default policy."""
    import torchdata_remote as tdr

    bucket = moto.new_bucket()
    written = write_small_shards(
        f"s3://{bucket}/shards", num_shards=4, samples_per_shard=25, storage_options=moto.storage_options
    )
    with faulty(moto, Faults.storm(0.3), seed=3) as (broken, _):
        read = list(tdr.stream_shards(f"s3://{bucket}/shards/", seed=None, storage_options=broken.storage_options))
    assert read == written


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
def test_fork_with_requests_in_flight(moto: S3Server, folder: str) -> None:
    """A child that is forked while its parent waits for answers reads on its own, and the parent goes on."""
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
