"""Files that are fetched where they are read."""

from __future__ import annotations

import io
import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_member_file import STEPS, assert_like_bytes_io
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.memory_objects import put
from tests.support.requested_bytes import requested_bytes
from tests.support.videos import noise_mp4
from torchdata_remote import decoders
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ObjectChangedError, ObjectNotFoundError, StorageError
from torchdata_remote.fetch.lazy_members.lazy_file import BLOCK_BYTES, BUFFER_BYTES, LazyFile
from torchdata_remote.formats.sample_size import sample_bytes
from torchdata_remote.testing import Faults

NO_OPTIONS = StorageOptions()
AT_ONCE = RetryPolicy(first_wait_s=0, max_wait_s=0)


@given(
    num_bytes=st.integers(0, 500_000),
    before=st.integers(0, 2000),
    after=st.integers(0, 2000),
    buffer_bytes=st.sampled_from([0, 3 * BLOCK_BYTES, BUFFER_BYTES]),
    steps=STEPS,
)
def test_a_lazy_file_reads_as_bytes_io(
    num_bytes: int, before: int, after: int, buffer_bytes: int, steps: list[tuple[object, ...]]
) -> None:
    """For any sequence of seeks and reads, at any place of an object, with any bound on its blocks."""
    data = random.Random(num_bytes).randbytes(num_bytes)
    file = LazyFile(put(bytes(before) + data + bytes(after)), before, num_bytes, NO_OPTIONS, buffer_bytes=buffer_bytes)
    assert_like_bytes_io(file, data, steps)
    assert sum(map(len, file._blocks.values())) <= max(buffer_bytes, 2 * BLOCK_BYTES)


def test_blocks_are_fetched_once_and_more_of_them_in_order() -> None:
    """A file that is read in small pieces costs few requests, and no byte twice."""
    data = os.urandom(8 << 20)
    file = LazyFile(put(data), 0, len(data), NO_OPTIONS)
    assert b"".join(iter(lambda: file.read(30_000), b"")) == data
    assert file.fetched_bytes == len(data)
    assert file.num_requests == 4 + 8, "1, 2, 4, 8 blocks, then 16 each"
    file.seek(-100, os.SEEK_END)
    file.read()
    assert file.num_requests == 12, "the last blocks are kept"
    file.seek(1 << 20)
    file.read(10)
    assert (file.num_requests, file.fetched_bytes) == (13, len(data) + BLOCK_BYTES), "a jump fetches one block"


def test_nothing_is_fetched_before_the_first_read() -> None:
    file = LazyFile("memory://nowhere/at-all", 0, 100, NO_OPTIONS)
    assert (file.seek(0, os.SEEK_END), file.num_requests, sample_bytes({"a": file})) == (100, 0, sample_bytes({"a": 1}))
    assert file.read() == b""
    file.seek(0)
    with pytest.raises(ObjectNotFoundError):
        file.read(1)


def test_two_seconds_of_a_video_cost_their_bytes(moto: S3Server) -> None:
    """2 of 10 s of 20 MB: their 4 MB, the header, and less than 1.5 MB ahead."""
    data, bucket = noise_mp4(20_000_000), moto.new_bucket()
    assert 15e6 < len(data) < 25e6
    moto.client().put_object(Bucket=bucket, Key="a.mp4", Body=b"x" * 777 + data)
    with faulty(moto) as (server, store):
        url = RemoteUrl(f"s3://{bucket}/a.mp4", len(data) + 777)
        file = LazyFile(url, 777, len(data), StorageOptions(server.storage_options), name="a.mp4")
        frames = decoders.video(start_s=4, stop_s=6)(file)
        fetched = requested_bytes(store, "/a.mp4")
    assert len(frames) == 60
    assert fetched == file.fetched_bytes
    assert fetched < 0.2 * len(data) + 1.5e6


def test_a_replaced_object_is_an_error(moto: S3Server) -> None:
    """All reads are of the version of the first one, or of that which the reader has seen."""
    bucket = moto.new_bucket()
    moto.client().put_object(Bucket=bucket, Key="a", Body=b"1" * 200_000)
    file = LazyFile(f"s3://{bucket}/a", 0, 200_000, StorageOptions(moto.storage_options))
    assert file.read(10) == b"1" * 10
    moto.client().put_object(Bucket=bucket, Key="a", Body=b"2" * 200_000)
    file.seek(150_000)
    with pytest.raises(ObjectChangedError):
        file.read(10)


@pytest.mark.parametrize("known", [True, False])
def test_an_object_that_is_shorter_than_its_file_is_an_error(moto: S3Server, known: bool) -> None:
    """It was replaced since the header was read, whether the request is in part or all beyond its end (416)."""
    bucket = moto.new_bucket()
    moto.client().put_object(Bucket=bucket, Key="a", Body=b"1" * 100_000)
    url = RemoteUrl(f"s3://{bucket}/a", 300_000) if known else f"s3://{bucket}/a"
    options = StorageOptions(moto.storage_options)
    for start in (90_000, 150_000):
        file = LazyFile(url, start, 50_000, options, retry=RetryPolicy(max_attempts=4, first_wait_s=0, max_wait_s=0))
        with pytest.raises(ObjectChangedError, match="replaced"):
            file.read()


def test_transient_faults_are_retried(moto: S3Server) -> None:
    bucket, data = moto.new_bucket(), bytes(range(250)) * 4000
    moto.client().put_object(Bucket=bucket, Key="a", Body=data)
    with faulty(moto, Faults.storm(0.4), seed=1) as (server, store):
        file = LazyFile(f"s3://{bucket}/a", 0, len(data), StorageOptions(server.storage_options), retry=AT_ONCE)
        assert b"".join(iter(lambda: file.read(70_000), b"")) == data
    assert sum(count for fault, count in store.counts.items() if fault != "well") > 0


def test_threads_may_share_a_file() -> None:
    """Each byte goes to one of them."""
    data = os.urandom(2_000_000)
    file = LazyFile(put(data), 0, len(data), NO_OPTIONS, buffer_bytes=0)
    with ThreadPoolExecutor(4) as pool:
        pieces = list(pool.map(lambda _: file.read(10_000), range(200)))
    assert sorted(pieces) == sorted(data[at : at + 10_000] for at in range(0, len(data), 10_000))


def test_a_pickled_file_has_the_position_and_fetches_on_its_own() -> None:
    data = os.urandom(300_000)
    file = LazyFile(put(data), 0, len(data), NO_OPTIONS, name="a.bin")
    assert file.read(10) == data[:10]
    other = pickle.loads(pickle.dumps(file))
    assert len(pickle.dumps(file)) < 2000, "no blocks"
    assert (other.name, other.tell(), other.read(10)) == ("a.bin", 10, data[10:20])
    assert (file.tell(), other.num_requests) == (10, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_reads_while_the_parent_holds_the_lock(tmp_path: Path) -> None:
    """The lock is not inherited."""
    (tmp_path / "a").write_bytes(b"0123456789")
    file = LazyFile(f"file://{tmp_path}/a", 0, 10, NO_OPTIONS)
    file.read(4)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(file._lock.acquire).result()
        child = os.fork()
        if not child:
            os._exit(0 if file.read(3) == b"456" else 1)
        assert os.waitpid(child, 0)[1] == 0
        pool.submit(file._lock.release).result()
    assert file.read(3) == b"456", "positions are of each process"


def test_a_repr_has_no_credentials() -> None:
    url = "https://host/a.tar?X-Amz-Signature=SECRET"
    file = LazyFile(url, 0, 1_000_000, StorageOptions({"headers": {"Authorization": "SECRET"}}))
    assert repr(file) == "<LazyFile 'https://host/a.tar', 1,000,000 bytes>"
    assert "SECRET" not in file.url + file.name


def test_a_closed_file_is_not_read() -> None:
    file = LazyFile(put(b"01"), 0, 2, NO_OPTIONS)
    file.read(1)
    file.close()
    assert not file._blocks
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


def test_a_local_file_is_read_in_place(tmp_path: Path) -> None:
    """Also large reads; and a file that was replaced is an error."""
    data = os.urandom(6 << 20)
    (tmp_path / "a").write_bytes(data)
    file = LazyFile(f"file://{tmp_path}/a", 100, len(data) - 100, NO_OPTIONS)
    assert bytes(file) == data[100:]
    buffered = io.BufferedReader(pickle.loads(pickle.dumps(file)))
    assert buffered.read(10) == data[100:110]
    (tmp_path / "b").write_bytes(data)
    (tmp_path / "b").rename(tmp_path / "a")
    file.seek(5 << 20)
    with pytest.raises(StorageError):
        file.read(10)


def test_a_file_is_closed_between_the_reads_of_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never within one, whose blocks would be gone."""
    fsspec.filesystem("memory").pipe("/lazy/closed", bytes(range(256)) * 1024)
    file = LazyFile("memory://lazy/closed", 0, 1 << 18, StorageOptions())
    fetched, closing = file._fetched, []

    def fetched_meanwhile(start: int, stop: int) -> bytes:
        closing.append(threads.submit(file.close))
        wait(closing, timeout=0.05)
        return fetched(start, stop)

    monkeypatch.setattr(file, "_fetched", fetched_meanwhile)
    with ThreadPoolExecutor(1) as threads:
        assert file.read(1000) == (bytes(range(256)) * 4)[:1000]
    with pytest.raises(ValueError, match="closed"):
        file.read(1)
