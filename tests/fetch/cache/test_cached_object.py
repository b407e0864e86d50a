"""Reading through the cache: hits send no requests, and misses are stored unchanged."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.cache_folder import (
    ALONE,
    answer_of,
    bytes_in,
    child_of,
    num_bytes_in,
    objects_in,
    said_of,
    unfinished_in,
)
from tests.support.cached_store import CountingStore, cached, epoch, options
from tests.support.waiting import new_threads, wait_for
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import AccessDeniedError
from torchdata_remote.fetch.cache import cached_object as cached_read
from torchdata_remote.fetch.object_stream import ObjectStream
from torchdata_remote.fetch.scheduler import PartScheduler
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage import Entry
from torchdata_remote.testing import FaultyStore, write_small_shards

OBJECTS = st.lists(st.binary(max_size=60), max_size=6).map(lambda them: dict(zip("abcdef", them, strict=False)))


@settings(max_examples=60)
@given(objects=OBJECTS, listed=st.booleans(), in_order=st.booleans(), ranges=st.booleans(), chunk=st.integers(1, 20))
def test_the_second_epoch_sends_no_get(
    objects: dict[str, bytes], listed: bool, in_order: bool, ranges: bool, chunk: int
) -> None:
    """The second epoch sends no GET; a HEAD for each object of which neither size nor etag is known, and no other."""
    with cached(objects, chunk_bytes=chunk) as (store, folder):
        store.may_ignore_ranges = not ranges
        chosen = options(folder, in_order=in_order)
        assert epoch(store, chosen, listed=listed) == objects
        gets, heads = store.gets, store.heads
        assert heads == (0 if listed else len(objects))
        assert epoch(store, chosen, listed=listed) == objects
        assert (store.gets, store.heads) == (gets, 2 * heads)
        assert not unfinished_in(folder)


@settings(max_examples=40)
@given(objects=OBJECTS, cache_bytes=st.integers(1, 150), in_order=st.booleans(), listed=st.booleans())
def test_objects_beyond_the_bound_are_fetched_again_in_each_epoch(
    objects: dict[str, bytes], cache_bytes: int, in_order: bool, listed: bool
) -> None:
    """Whatever does not fit is fetched again, and the bytes are right in every epoch."""
    with cached(objects) as (store, folder):
        for _ in range(3):
            assert epoch(store, options(folder, cache_bytes, in_order=in_order), listed=listed) == objects
            assert num_bytes_in(folder) <= cache_bytes


@settings(max_examples=200)
@given(
    size=st.integers(1, 60),
    faults=st.lists(st.sampled_from(["", "cut", "reset", "whole"]), max_size=8),
    part_bytes=st.integers(1, 30),
    chunk=st.integers(1, 20),
    listed=st.booleans(),
    stop_at=st.integers(0, 60),
)
def test_faults_do_not_spoil_the_cache(
    size: int, faults: list[str], part_bytes: int, chunk: int, listed: bool, stop_at: int
) -> None:
    """Bodies that break, and ranges that are ignored: a kept file is the object, also when reading stops anywhere."""
    data = bytes(range(1, size + 1))
    with cached({"a": data}, chunk_bytes=chunk) as (store, folder):
        store.faults = list(faults)
        url = RemoteUrl("a", size, store.etag("a")) if listed else "a"
        chosen = options(folder, part_bytes=part_bytes, max_in_flight=1, max_buffer_bytes=1)
        [(_, stream)] = stream_objects([url], FetchSession(chosen, StorageOptions()))
        assert stream.read(stop_at) == data[:stop_at]
        for stored in objects_in(folder).values():  # others may read it from now on
            assert bytes_in(stored) == data
        stream.read()
        stream.close()
        assert [bytes_in(stored) for stored in objects_in(folder).values()] in ([data], [])  # "whole" may keep it out


def test_a_replaced_object_is_fetched_and_never_mixed_with_the_old_version() -> None:
    """The old version is not returned, and its room is given to the new one."""
    with cached({"a": b"old" * 10}) as (store, folder):
        for listed in (True, False):
            for data in (b"old" * 10, b"new" * 10, b"newer" * 7):
                store.objects["a"] = data
                assert epoch(store, options(folder), listed=listed) == {"a": data}
        assert store.gets == 2 * (3 + 3 + 4)


@pytest.mark.parametrize("listed", [True, False])
def test_an_object_without_an_etag_is_read_and_not_cached(listed: bool) -> None:
    """An object without an etag is read, and not kept."""
    with cached({"a": bytes(35)}) as (store, folder):
        store.has_etags = False
        for _ in range(2):
            assert epoch(store, options(folder), listed=listed) == {"a": bytes(35)}
        assert store.gets == 8
        assert not objects_in(folder)
        assert not unfinished_in(folder)


@pytest.mark.parametrize("listed", [True, False])
def test_a_response_without_an_etag_is_not_cached(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another version than that of the listing or HEAD."""
    with cached({"a": b"replaced since then."}) as (store, folder):
        store.has_etags = False
        monkeypatch.setattr(store, "stat", lambda path: Entry(path, 20, '"before"'))
        url = RemoteUrl("a", 20, '"before"') if listed else "a"
        for _, stream in stream_objects([url], FetchSession(options(folder), StorageOptions())):
            stream.read()
        assert not objects_in(folder)


def test_a_response_of_another_size_than_listed_is_refused_and_the_object_still_cached() -> None:
    """A response that belongs to another request, such as a listing, says nothing about the object's version."""
    with cached({"a": bytes(35)}) as (store, folder):
        store.faults = ["listing"]
        assert epoch(store, options(folder), listed=True) == {"a": bytes(35)}
        assert len(objects_in(folder)) == 1


def read_range(store: CountingStore, folder: str, start: int, stop: int | None, *, listed: bool) -> bytes:
    """A range of the object ``a``, as a resumed pass requests it."""
    scheduler = PartScheduler(FetchSession(options(folder), StorageOptions()))
    url = RemoteUrl("a", len(store.objects["a"]), store.etag("a")) if listed else "a"
    with ObjectStream(scheduler, url, start=start, stop=stop) as stream:
        scheduler.release()
        return stream.read()


@settings(max_examples=60)
@given(start=st.integers(0, 59), stop=st.none() | st.integers(1, 59), listed=st.booleans(), chunk=st.integers(1, 20))
def test_an_object_read_from_the_middle_is_not_cached(start: int, stop: int | None, listed: bool, chunk: int) -> None:
    """It is served from the cache if it is there; else it is read, and not kept, since it is not whole."""
    assume(stop is None or start < stop)
    data = bytes(range(60))
    with cached({"a": data}, chunk_bytes=chunk) as (store, folder):
        in_part = (start, stop) != (0, None)
        assert read_range(store, folder, start, stop, listed=listed) == data[start:stop]
        assert len(objects_in(folder)) == (0 if in_part else 1)
        assert not unfinished_in(folder)
        assert epoch(store, options(folder), listed=listed) == {"a": data}
        [stored] = objects_in(folder).values()
        gets = store.gets
        assert read_range(store, folder, start, stop, listed=listed) == data[start:stop]
        assert store.gets == gets
        assert bytes_in(stored) == data


def test_an_object_whose_head_is_refused_is_read_without_the_cache() -> None:
    """Its size and etag are unknown."""
    with cached({"a": b"abc"}) as (store, folder):

        def refuse() -> None:
            raise AccessDeniedError("403 Forbidden")

        store.before_stat = refuse
        assert epoch(store, options(folder), listed=False) == {"a": b"abc"}


@pytest.mark.parametrize("stop_at", [0, 1, 10, 25])
def test_a_stream_or_iterator_closed_halfway_leaves_no_partial_file(stop_at: int) -> None:
    """A stream that is closed, or an iterator that is left, half-way leaves no partial file."""
    with cached({"a": bytes(50), "b": bytes(50), "c": bytes(50)}) as (store, folder):
        urls = [RemoteUrl(url, 50, store.etag(url)) for url in store.objects]
        for _, stream in stream_objects(
            urls, FetchSession(options(folder, ALONE, max_buffer_bytes=20), StorageOptions())
        ):
            stream.read(stop_at)
            stream.close()
            break
        wait_for(lambda: not unfinished_in(folder))


def test_a_stream_closed_during_its_head_leaves_no_partial_file() -> None:
    """Also if the stream is still referenced."""
    asked, may_answer, before = threading.Event(), threading.Event(), set(threading.enumerate())
    with cached({"a": bytes(50)}) as (store, folder):

        def before_stat() -> None:
            asked.set()
            assert may_answer.wait(20)

        store.before_stat = before_stat
        iterator = stream_objects(["a"], FetchSession(options(folder, ALONE), StorageOptions()))
        _, stream = next(iterator)
        assert asked.wait(20)
        stream.close()
        assert list(iterator) == []
        may_answer.set()
        wait_for(lambda: not new_threads(before))
        assert not unfinished_in(folder)


@pytest.mark.parametrize("max_in_flight", [1, 4])
def test_a_full_disk_does_not_stop_reading_and_warns_once(max_in_flight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are read from the store."""
    data = os.urandom(95)
    warnings: list[str] = []  # as text: pytest's own records would keep the error, and by its traceback the file
    monkeypatch.setattr(cached_read._log, "warning", lambda text, *more: warnings.append(text % more))

    def no_space(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    with cached({"a": data}) as (store, folder), monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_space)
        assert epoch(store, options(folder, ALONE, max_in_flight=max_in_flight), listed=True) == {"a": data}
        assert not objects_in(folder)
        wait_for(lambda: not unfinished_in(folder))  # threads let go of it as they end
    assert len(warnings) == 1, warnings
    assert "No space left" in warnings[0]


@pytest.mark.parametrize("spoiled", ["index", "link"])
def test_objects_are_read_whatever_the_cache_folder_contains(spoiled: str) -> None:
    """Links, folders and files of other kinds."""
    with cached({"a": b"abc"}) as (store, folder):
        if spoiled == "link":
            epoch(store, options(folder), listed=True)
            [(path, _, _)] = objects_in(folder).values()
            os.unlink(path)
            os.symlink("/etc/hostname", path)
        else:
            Path(folder, "v2").mkdir(0o700)
            Path(folder, "v2", "index.sqlite").write_bytes(b"x" * 5_000)
        assert epoch(store, options(folder), listed=True) == {"a": b"abc"}


@pytest.fixture(scope="module")
def photos(moto: S3Server) -> tuple[str, dict[str, bytes]]:
    """A bucket, and what its objects hold by URL; some are longer than a part."""
    bucket, client = moto.new_bucket(), moto.client()
    objects = {f"s3://{bucket}/{number}.bin": os.urandom(1 + 9_000 * number) for number in range(8)}
    for url, data in objects.items():
        client.put_object(Bucket=bucket, Key=url.rpartition("/")[2], Body=data)
    return f"s3://{bucket}/", objects


def pipe_of(
    urls: list[str],
    server: S3Server,
    folder: Path,
    *,
    listed: bool,
    pattern: str | None = None,
    split: bool = True,
    **more: Any,
) -> IterDataPipe[Any]:
    source = IterableWrapper(urls)
    if listed:
        source = source.list_remote(pattern=pattern, storage_options=server.storage_options)
    pipe: IterDataPipe[Any] = source.sharding_filter_rank(split=split).async_prefetch(
        cache_dir=str(folder), cache_bytes=1 << 30, storage_options=server.storage_options, **more
    )
    return pipe


def read_all(pipe: IterDataPipe[Any]) -> dict[str, bytes]:
    return {str(url): stream.read() for url, stream in pipe}


def gets(store: FaultyStore) -> int:
    return sum(one.method == "GET" and "list-type" not in one.query for one in store.requests)


def heads(store: FaultyStore) -> int:
    return sum(one.method == "HEAD" for one in store.requests)


@pytest.mark.parametrize("backend", ["obstore", "botocore", "fsspec"])
@pytest.mark.parametrize("listed", [True, False])
def test_each_backend_reads_the_second_epoch_from_the_cache(
    moto: S3Server, photos: tuple[str, dict[str, bytes]], tmp_path: Path, backend: str, listed: bool
) -> None:
    """From a real server the second epoch sends no GET, through each backend; of bare URLs one HEAD an object."""
    prefix, objects = photos
    with faulty(moto) as (server, store):
        urls = [prefix] if listed else list(objects)
        pipe = pipe_of(urls, server, tmp_path, listed=listed, backend=backend, part_bytes=10_000)
        assert read_all(pipe) == objects
        num_gets, num_heads = gets(store), heads(store)
        assert num_gets >= len(objects)
        assert read_all(pipe) == objects
        assert gets(store) == num_gets
        if not listed and backend != "fsspec":  # which asks as it likes
            assert heads(store) - num_heads == len(objects)


def test_servers_with_equal_urls_do_not_share_cached_objects(
    moto: S3Server, photos: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """A bucket of the same name on another server has objects of its own, also of equal size and etag."""
    prefix, objects = photos
    for _ in range(2):
        with faulty(moto) as (server, store):  # each is another endpoint
            assert read_all(pipe_of([prefix], server, tmp_path, listed=True)) == objects
            assert gets(store) >= len(objects)


def read_elsewhere(pipe: Any, prefix: str, server: S3Server, folder: Path) -> None:
    """In another process: one epoch."""
    pipe.send(read_all(pipe_of([prefix], server, folder, listed=True)))


def test_other_processes_and_dataloader_workers_use_cached_objects(
    moto: S3Server, photos: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    """What one process fetched, another one and DataLoader workers find."""
    prefix, objects = photos
    with faulty(moto) as (server, store):
        plain = S3Server("plain", server.endpoint_url, server.key, server.secret)
        assert read_all(pipe_of([prefix], plain, tmp_path, listed=True, part_bytes=10_000)) == objects
        num_gets = gets(store)
        with child_of(read_elsewhere, prefix, plain, tmp_path) as (_, pipe):
            assert answer_of(pipe) == objects
        loaded = pipe_of([prefix], plain, tmp_path, listed=True, split=False).map(_bytes_of)
        loader: DataLoader[Any] = DataLoader(
            loaded, batch_size=None, num_workers=2, multiprocessing_context="forkserver", timeout=60
        )
        assert dict(loader) == objects
        assert gets(store) == num_gets


def _bytes_of(pair: tuple[str, Any]) -> tuple[str, bytes]:
    return str(pair[0]), pair[1].read()


def test_reading_shards_caches_them_as_a_whole(moto: S3Server, tmp_path: Path) -> None:
    """Reading shards to their end of archive keeps them whole, in parts of any size."""
    url = f"s3://{moto.new_bucket()}/train/"
    write_small_shards(url, num_shards=3, samples_per_shard=9, storage_options=moto.storage_options)
    with faulty(moto) as (server, store):
        pipe = pipe_of([url], server, tmp_path, listed=True, pattern="*.tar", part_bytes=1_024, max_buffer_bytes=1_024)
        first = list(pipe.shard_tar_reader())
        num_gets = gets(store)
        assert [sample["__key__"] for sample in pipe.shard_tar_reader()] == [sample["__key__"] for sample in first]
        assert gets(store) == num_gets


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_an_empty_object_is_cached(listed: bool, in_order: bool) -> None:
    """As any other one: the second epoch sends no GET."""
    with cached({"a": b"", "b": b"abc", "c": b""}) as (store, folder):
        assert epoch(store, options(folder, in_order=in_order), listed=listed) == store.objects
        assert len(objects_in(folder)) == 3
        gets = store.gets
        assert epoch(store, options(folder, in_order=in_order), listed=listed) == store.objects
        assert store.gets == gets


def test_an_object_larger_than_the_cache_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Once in all epochs, with both numbers."""
    with cached({"a": bytes(95), "b": bytes(96)}) as (store, folder):
        for _ in range(2):
            assert epoch(store, options(folder, 90), listed=True) == store.objects
    [said] = said_of(folder, caplog)
    assert "95 bytes, more than cache_bytes=90" in said


def test_a_local_file_whose_modification_time_was_set_back_is_read_again(tmp_path: Path) -> None:
    """As by ``rsync --times --inplace``: same size, time and inode, but other bytes."""
    (tmp_path / "files").mkdir()
    path = tmp_path / "files" / "a.bin"
    path.write_bytes(b"abc")
    os.utime(path, (1, 1))

    def read() -> bytes:
        cache = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": 1 << 20}
        [sample] = tdr.stream_files(str(tmp_path / "files"), **cache)  # type: ignore[arg-type]
        return bytes(sample["bin"])

    assert read() == b"abc"
    path.write_bytes(b"xyz")
    os.utime(path, (1, 1))
    assert read() == b"xyz"
