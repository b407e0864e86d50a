"""Reading after the pools were closed, in real processes: it returns bytes or raises, and never hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.s3 import S3Server

EARLY = """
import atexit, sys
last = []
def read_on():  # registered before torchdata_remote is imported, so it runs after the pools were closed
    for read in last:
        try:
            print("bytes", len(read()), flush=True)
        except Exception as error:
            print(type(error).__name__, isinstance(error, RemoteDataError), error, flush=True)
atexit.register(read_on)
import torchdata_remote as tdr
from torchdata_remote.core.options import FetchOptions, RetryPolicy, StorageOptions
from torchdata_remote.errors import RemoteDataError
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
"""
STREAM = """
import json
import fsspec
url, backend, storage, in_order = json.loads(sys.argv[1])
options = FetchOptions(
    max_in_flight=1, part_bytes=1_000, max_buffer_bytes=500_000, backend=backend, in_order=in_order,
    retry=RetryPolicy(deadline_s=5)
)
streams = stream_objects([url], FetchSession(options, StorageOptions(storage)))
if in_order:
    _, stream = next(streams)
    stream.read(10)
    last += [stream.read, stream.read]
else:
    import threading
    from torchdata_remote.fetch.unordered_scheduler import UnorderedScheduler

    finish, begun, opened = UnorderedScheduler._part_ended, threading.Event(), []
    UnorderedScheduler._part_ended = lambda self, target: (begun.set(), finish(self, target))
    first = threading.Thread(target=lambda: opened.append(next(streams)), daemon=True)
    first.start()  # waits for an object that is complete
    begun.wait(30)
    last += [lambda: (first.join(), opened[0][1].read())[1]]
"""
TASKS = """
from torchdata_remote.core.threads.ordered_map import ordered_map
import threading
begun = threading.Event()
def slow(wait):
    begun.set()
    wait(600)
results = ordered_map([slow, lambda wait: b"", lambda wait: b""], max_threads=1)
failed = []
def first():
    try:
        failed.append(next(results))
    except Exception as error:
        failed.append(error)
reader = threading.Thread(target=first, daemon=True)
reader.start()
begun.wait(30)
def outcome():
    reader.join()
    raise failed[0]
last.append(outcome)
"""


def run(script: str, *arguments: str) -> list[str]:
    """What a process prints, which must end by itself and well."""
    done = subprocess.run(
        [sys.executable, "-c", EARLY + script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def stored_object(kind: str, tmp_path: Path, moto: S3Server) -> tuple[str, str, dict[str, object]]:
    """URL of an object of a million bytes, the backend, and storage options."""
    if kind == "local":
        (tmp_path / "a").write_bytes(bytes(1_000_000))
        return f"file://{tmp_path}/a", "automatic", {}
    bucket = moto.new_bucket()
    moto.client().put_object(Bucket=bucket, Key="a", Body=bytes(1_000_000))
    return f"s3://{bucket}/a", kind, moto.storage_options


@pytest.mark.parametrize(
    ("kind", "in_order"),
    [("local", True), ("obstore", False), ("botocore", True)],
)
def test_each_queued_part_ends_in_bytes_or_an_error(kind: str, in_order: bool, tmp_path: Path, moto: S3Server) -> None:
    """An exit handler that runs after the pools were closed reads an open stream: it gets bytes or an error, twice."""
    url, backend, storage = stored_object(kind, tmp_path, moto)
    lines = run(STREAM, json.dumps([url, backend, storage, in_order]))
    assert len(lines) == (2 if in_order else 1)
    for line in lines:
        assert line.startswith("bytes") or "PoolClosedError True" in line, line
    if kind in ("obstore", "botocore"):  # whose requests take long enough that some are queued
        assert "once the interpreter shuts down" in lines[-1]


def test_started_and_queued_tasks_raise_in_their_consumer() -> None:
    """The one that waits for another attempt is woken, and queued ones are not started."""
    [line] = run(TASKS)
    assert line.startswith("PoolClosedError True")


def test_an_open_iterator_prints_nothing_when_the_program_ends() -> None:
    """It is finalized while the interpreter shuts down."""
    script = (
        "import fsspec\n"
        "fsspec.filesystem('memory').pipe('memory://exit/b', bytes(100_000))\n"
        "options = FetchOptions(max_in_flight=2, part_bytes=1_000, max_buffer_bytes=20_000)\n"
        "streams = stream_objects(['memory://exit/b'], FetchSession(options, StorageOptions({})))\n"
        "pair = next(streams)\n"
        "print(len(pair[1].read(10)))\n"
    )
    assert run(script) == ["10"]
