"""An object by windows, with jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.servers.scripted import Response, scripted
from tests.support.byte_readers import assert_same_step
from tests.support.memory_objects import put
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ObjectChangedError, ObjectNotFoundError
from torchdata_remote.fetch.read_ahead import FAR_BYTES, LEAST_BYTES, MOST_BYTES, ReadAhead
from torchdata_remote.formats.byte_reader import ByteReader, Skippable
from torchdata_remote.testing import Faults

NO_OPTIONS = StorageOptions()


@given(
    num_bytes=st.integers(0, 400_000),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 150_000)), max_size=8),
    known=st.booleans(),
    start=st.integers(0, 50_000),
    stop=st.none() | st.integers(50_000, 450_000),
)
def test_a_byte_reader_over_windows_reads_the_object(
    num_bytes: int, steps: list[tuple[bool, int]], known: bool, start: int, stop: int | None
) -> None:
    """For any sequence of reads and jumps."""
    data = b"".join(number.to_bytes(4, "big") for number in range(num_bytes // 4 + 1))[:num_bytes]
    start = min(start, num_bytes)
    url = RemoteUrl(put(data), num_bytes if known else None)
    windows = ReadAhead(url, NO_OPTIONS, start=start if known else 0, stop=stop)
    jumping, plain = ByteReader(windows, windows.start), ByteReader([data[windows.start : stop]], windows.start)
    plain.take(0), windows.head()
    for take, length in steps:
        assert_same_step(jumping, plain, length, take=take)
    assert windows.fetched_bytes <= num_bytes
    assert windows.find_num_bytes() == num_bytes


def test_windows_double_until_a_long_jump() -> None:
    """From the smallest to the largest; after a long jump from the smallest again."""
    windows = ReadAhead(put(bytes(8 << 20)), NO_OPTIONS)
    parts = iter(windows)
    lengths = [len(next(parts)) for _ in range(11)]
    assert lengths == [min(LEAST_BYTES << step, MOST_BYTES) for step in range(11)]
    assert windows.jump(FAR_BYTES) == FAR_BYTES
    assert len(next(parts)) == MOST_BYTES, "that was near"
    assert windows.jump(FAR_BYTES) + windows.jump(1) == FAR_BYTES + 1
    assert [len(next(parts)) for _ in range(2)] == [LEAST_BYTES, 2 * LEAST_BYTES]
    assert windows.num_requests == 14


def test_the_head_costs_no_extra_request() -> None:
    """Looking at the beginning costs no request of its own."""
    windows = ReadAhead(put(bytes(range(200)) * 100), NO_OPTIONS)
    assert windows.head() == windows.head() == (bytes(range(200)) * 100)[:LEAST_BYTES]
    assert b"".join(windows) == bytes(range(200)) * 100
    assert windows.num_requests == 3
    assert isinstance(windows, Skippable)


def test_a_replaced_object_is_an_error(moto: S3Server) -> None:
    """Later windows ask for the version of the first one."""
    bucket = moto.new_bucket()
    moto.client().put_object(Bucket=bucket, Key="a", Body=b"1" * 100_000)
    windows = iter(ReadAhead(f"s3://{bucket}/a", StorageOptions(moto.storage_options)))
    assert next(windows) == b"1" * LEAST_BYTES
    moto.client().put_object(Bucket=bucket, Key="a", Body=b"2" * 100_000)
    with pytest.raises(ObjectChangedError):
        list(windows)


def test_transient_faults_are_retried(moto: S3Server) -> None:
    """As for any range."""
    bucket = moto.new_bucket()
    moto.client().put_object(Bucket=bucket, Key="a", Body=bytes(range(250)) * 800)
    with faulty(moto, Faults.storm(0.4), seed=1) as (server, store):
        waits: list[float] = []
        windows = ReadAhead(f"s3://{bucket}/a", StorageOptions(server.storage_options), sleep=waits.append)
        assert b"".join(windows) == bytes(range(250)) * 800
    assert sum(count for fault, count in store.counts.items() if fault != "well") >= len(waits) > 0


def test_a_missing_object_is_a_storage_error() -> None:
    """An error of storage, when its first byte is wanted."""
    with pytest.raises(ObjectNotFoundError):
        ReadAhead("memory://nowhere/at-all", NO_OPTIONS).head()


@pytest.mark.parametrize("known", [True, False])
def test_a_server_that_ignores_ranges_gives_no_byte_after_the_stop(known: bool) -> None:
    """Segments of several objects are one archive: what follows a segment in its object is not part of it."""
    data = bytes(range(256)) * 64
    with scripted(lambda request: Response(200, data, {"ETag": '"1"'})) as server:
        url = RemoteUrl(f"{server.url}/object", len(data) if known else None)
        windows = ReadAhead(url, NO_OPTIONS, start=1_000, stop=10_000)
        assert b"".join(windows) == data[1_000:10_000]
        assert windows.num_requests == 1
