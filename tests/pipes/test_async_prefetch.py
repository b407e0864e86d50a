"""``async_prefetch`` as a pipe; the engine below it is tested in ``tests/fetch/test_scheduler.py``."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from torchdata_remote import AsyncPrefetch, Resumable, RetryPolicy
from torchdata_remote.errors import ObjectChangedError, ObjectNotFoundError, StateError, UrlError
from torchdata_remote.testing import assert_resumes_everywhere

MIB = 1 << 20


def put(folder: str, objects: dict[str, bytes]) -> list[str]:
    path = folder.removeprefix("memory:/")
    fsspec.filesystem("memory").pipe({f"{path}/{name}": data for name, data in objects.items()})
    return [f"{folder}/{name}" for name in objects]


def threads_of_ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "torchdata_remote"}


def wait_for_threads_to_end(before: set[threading.Thread]) -> None:
    deadline = time.monotonic() + 20
    while threads_of_ours() - before:
        assert time.monotonic() < deadline, threads_of_ours() - before
        time.sleep(0.005)


@given(objects=st.lists(st.binary(max_size=50), max_size=6), part_bytes=st.integers(1, 60))
def test_streams_in_the_order_of_the_urls(objects: list[bytes], part_bytes: int) -> None:
    """Each URL comes with a stream of its object's bytes, in order, also when a URL comes twice."""
    folder = f"memory://{os.urandom(8).hex()}"
    urls = put(folder, {f"{number}": data for number, data in enumerate(objects)})
    pipe = AsyncPrefetch(IterableWrapper(urls * 2), part_bytes=part_bytes, max_in_flight=3)
    for _ in range(2):
        assert [(url, stream.read()) for url, stream in pipe] == list(zip(urls, objects, strict=True)) * 2


def test_functional_name(memory_folder: str) -> None:
    """The pipe is found by its name, and its limits by theirs."""
    urls = put(memory_folder, {"a": b"12"})
    pipe = IterableWrapper(urls).async_prefetch(max_in_flight=2, max_buffer_bytes=MIB, part_bytes=MIB)
    assert isinstance(pipe, AsyncPrefetch)
    assert [stream.read() for _, stream in pipe] == [b"12"]


@pytest.mark.parametrize("wrong", [{"max_in_flight": 0}, {"part_bytes": 0}, {"max_buffer_bytes": 0}])
def test_limits_must_be_positive(wrong: dict[str, Any]) -> None:
    """A limit that lets nothing through is refused when the pipe is built."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AsyncPrefetch(IterableWrapper([]), **wrong)


def test_wrong_options_are_refused() -> None:
    """Storage options that are no dict are refused when the pipe is built."""
    with pytest.raises(TypeError, match="storage_options must be a dict"):
        AsyncPrefetch(IterableWrapper([]), storage_options="key")  # type: ignore[arg-type]


def test_errors_come_from_the_stream(memory_folder: str) -> None:
    """A missing object is an error where its bytes are read; the others are read."""
    [first, last] = put(memory_folder, {"a": b"1", "c": b"3"})
    pipe = AsyncPrefetch(IterableWrapper([first, f"{memory_folder}/b", last]))
    streams = list(pipe)
    assert streams[0][1].read() == b"1"
    with pytest.raises(ObjectNotFoundError, match=f"{memory_folder}/b"):
        streams[1][1].read()
    assert streams[2][1].read() == b"3"


def test_url_that_nobody_can_read(memory_folder: str) -> None:
    """A wrong URL is a UrlError from the pipe, after the streams before it."""
    [url] = put(memory_folder, {"a": b"1"})
    got: list[bytes] = []
    with pytest.raises(UrlError, match="nope"):  # noqa: PT012  # the loop is what raises, at its end
        for _, stream in AsyncPrefetch(IterableWrapper([url, "nope://bucket/a"])):
            got.append(stream.read())
    assert got == [b"1"]


@pytest.mark.parametrize("end", ["exhausted", "break", "next only", "error", "dropped"])
def test_threads_end(memory_folder: str, end: str) -> None:
    """However iteration ends, its threads end too."""
    urls = put(memory_folder, {f"{number}": bytes(100) for number in range(50)})
    before = threads_of_ours()
    pipe = AsyncPrefetch(IterableWrapper(urls), part_bytes=10)

    def run() -> None:
        if end == "next only":
            next(iter(pipe))
            return
        for _, stream in pipe:
            if end != "dropped":
                stream.read()
            if end == "break":
                break
            if end == "error":
                raise ZeroDivisionError

    try:
        run()
    except ZeroDivisionError:
        assert end == "error"
    gc.collect()
    wait_for_threads_to_end(before)


def test_new_pass_ends_the_old_one(memory_folder: str) -> None:
    """A second iterator of the same pipe, which torch lets invalidate the first, leaves no threads of it."""
    urls = put(memory_folder, {f"{number}": bytes(100) for number in range(50)})
    before = threads_of_ours()
    pipe = AsyncPrefetch(IterableWrapper(urls), part_bytes=10)
    first = iter(pipe)
    next(first)
    assert len(list(pipe)) == 50
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)
    del first
    gc.collect()
    wait_for_threads_to_end(before)


class Numbered(IterDataPipe[str]):
    """Counts what is pulled."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.pulled = 0

    def __iter__(self) -> Iterator[str]:
        for url in self.urls:
            self.pulled += 1
            yield url


def test_large_objects_in_parts(moto: S3Server) -> None:
    """An object of many parts comes whole from S3, in parallel, by all transports, with little in memory."""
    bucket, data = moto.new_bucket(), os.urandom(3 * MIB + 17)
    client = moto.client()
    for key in ("a", "dir//b"):
        client.put_object(Bucket=bucket, Key=key, Body=data)
    for more in ({}, {"default_fill_cache": False}):
        urls = [f"s3://{bucket}/a", f"s3://{bucket}/dir//b"][: 1 if more else 2]
        options = {**moto.storage_options, **more}
        pipe = AsyncPrefetch(
            IterableWrapper(urls), part_bytes=MIB // 4, max_buffer_bytes=MIB, storage_options=options, max_in_flight=4
        )
        assert [stream.read() for _, stream in pipe] == [data] * len(urls)


def test_empty_objects(moto: S3Server) -> None:
    """Empty objects are no trouble, listed or not."""
    bucket = moto.new_bucket()
    moto.client().put_object(Bucket=bucket, Key="empty", Body=b"")
    listed = IterableWrapper([f"s3://{bucket}"]).list_remote(storage_options=moto.storage_options)
    for source in (listed, IterableWrapper([f"s3://{bucket}/empty"])):
        pipe = AsyncPrefetch(source, storage_options=moto.storage_options)
        assert [stream.read() for _, stream in pipe] == [b""]


def test_object_replaced_after_the_listing(s3: S3Server) -> None:
    """An object that is no longer what was listed is an ObjectChangedError, not a mixture."""
    bucket, client = s3.new_bucket(), s3.client()
    client.put_object(Bucket=bucket, Key="a", Body=b"first")
    urls = list(IterableWrapper([f"s3://{bucket}"]).list_remote(storage_options=s3.storage_options))
    client.put_object(Bucket=bucket, Key="a", Body=b"other")
    [(_, stream)] = AsyncPrefetch(urls, storage_options=s3.storage_options)  # type: ignore[arg-type]
    with pytest.raises(ObjectChangedError, match=f"s3://{bucket}/a"):
        stream.read()


def test_nothing_is_opened_before_iteration(memory_folder: str) -> None:
    """Building and pickling start nothing."""
    urls = put(memory_folder, {"a": b"1"})
    before = threads_of_ours()
    source = Numbered(urls)
    pipe = AsyncPrefetch(source, retry=RetryPolicy(deadline_s=5), storage_options={})
    copy = pickle.loads(pickle.dumps(pipe))
    assert (source.pulled, threads_of_ours() - before) == (0, set())
    assert [stream.read() for _, stream in copy] == [b"1"]


def test_secrets_are_not_in_reprs(moto: S3Server) -> None:
    """Neither the pipe nor what torch adds to an error shows the options."""
    options = {**moto.storage_options, "secret": "Sup3rS3cretCanary"}
    pipe = AsyncPrefetch(IterableWrapper(["nope://x/y"]), storage_options=options)
    with pytest.raises(UrlError) as caught:
        list(pipe)
    assert "Sup3rS3cretCanary" not in f"{pipe} {pipe!r} {caught.value} {caught.value!r}"


def test_an_iterator_that_lives_until_the_interpreter_ends_is_silent(tmp_path: Path) -> None:
    """A program may look at one sample and end: code 0, and no traceback from what was still planned."""
    for number in range(40):
        (tmp_path / f"{number}.bin").write_bytes(bytes(100_000))
    script = (
        "import torchdata_remote as tdr\n"
        "from torch.utils.data.datapipes.iter import IterableWrapper\n"
        f"urls = [f'{tmp_path}/{{number}}.bin' for number in range(40)]\n"
        "prefetched = IterableWrapper(urls).async_prefetch(max_buffer_bytes=300_000, part_bytes=30_000)\n"
        "iterator = iter(prefetched)\n"
        "url, stream = next(iterator)\n"
        "assert len(stream.read(10)) == 10\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def _read(pair: tuple[str, Any]) -> tuple[str, bytes]:
    return pair[0], pair[1].read()


def _is_not_empty(pair: tuple[str, bytes]) -> bool:
    return pair[1] != b""


@pytest.mark.parametrize("options", [{}, {"part_bytes": 7, "max_buffer_bytes": 20, "max_in_flight": 2}])
def test_it_resumes_after_any_stream(memory_folder: str, options: dict[str, Any]) -> None:
    """By itself, with torch's own pipes behind it, and as several streams in one process."""
    urls = put(memory_folder, {str(i): bytes([i]) * 5 * i for i in range(7)})
    assert_resumes_everywhere(lambda: IterableWrapper(urls).async_prefetch(**options).map(_read))
    assert_resumes_everywhere(lambda: IterableWrapper(urls).async_prefetch(**options).map(_read).filter(_is_not_empty))
    assert_resumes_everywhere(
        lambda: IterableWrapper(urls).sharding_filter_rank().async_prefetch(**options).map(_read), num_streams=2
    )


def test_the_state_counts_what_was_handed_out(memory_folder: str) -> None:
    """Not what is under way; a pass that goes on begins with the next one, and the one after it is whole."""
    urls = put(memory_folder, {str(i): b"%d" % i for i in range(5)})
    pipe = IterableWrapper(urls).async_prefetch()
    streams = iter(pipe)
    assert pipe.state_dict() == {"next": 0}
    next(streams)
    assert pipe.state_dict() == {"next": 1}
    twin = IterableWrapper(urls).async_prefetch()
    twin.load_state_dict({"next": 3})
    assert twin.state_dict() == {"next": 3}
    assert [stream.read() for _, stream in twin] == [b"3", b"4"]
    assert twin.state_dict() == {"next": 5}
    assert [stream.read() for _, stream in twin] == [b"0", b"1", b"2", b"3", b"4"]


def test_an_order_that_cannot_be_repeated_has_no_state(memory_folder: str) -> None:
    """The error says what to choose."""
    pipe = IterableWrapper(put(memory_folder, {"a": b"1"})).async_prefetch(in_order=False)
    with pytest.raises(StateError, match="in_order=True"):
        pipe.state_dict()
    with pytest.raises(StateError, match="in_order=True"):
        Resumable(pipe.file_reader())


@pytest.mark.parametrize("reader", ["shard_tar_reader", "file_reader"])
def test_readers_of_such_an_order_have_none_either(memory_folder: str, reader: str) -> None:
    """Objects of lower numbers that were not read yet would be lost without a word."""
    urls = put(memory_folder, {f"{i}.tar": pack_tar([(f"{i}.x", b"")]) for i in range(5)})
    pipe = getattr(IterableWrapper(urls).async_prefetch(in_order=False), reader)()
    next(iter(pipe))
    with pytest.raises(StateError, match="in_order=True"):
        pipe.state_dict()
