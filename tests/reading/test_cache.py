"""The cache on local disk: later epochs send no GET, and what it returns is what the store holds."""

from __future__ import annotations

import gc
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.reading.wire import wire
from tests.support.paths import ROOT
from tests.support.scripted_store import ScriptedStore, numbered, store_of
from tests.support.waiting import wait_for

LARGE = 1 << 30
IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
OBJECTS = st.lists(st.binary(max_size=60), max_size=6).map(lambda them: dict(zip("abcdef", them, strict=False)))


def cached(folder: str | Path, cache_bytes: int = LARGE, **more: Any) -> dict[str, Any]:
    return {"cache_dir": str(folder), "cache_bytes": cache_bytes, **more}


def gets_of_an_epoch(store: ScriptedStore, **options: Any) -> list[str]:
    """Read everything, which has to be right; the names of objects that were requested."""
    store.reads.clear()
    assert store.read_all(**options) == store.objects
    return [read.name for read in store.reads]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)


def used_bytes(folder: Path) -> int:
    """What the files of a folder take of the disk."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:  # removed meanwhile
            continue
    return total


@settings(max_examples=15)  # each makes a cache
@given(objects=OBJECTS, listed=st.booleans(), in_order=st.booleans(), part_bytes=st.integers(5, 70))
def test_the_second_epoch_sends_no_get_and_asks_only_for_versions_that_no_listing_told(
    folder: Path, objects: dict[str, bytes], listed: bool, in_order: bool, part_bytes: int
) -> None:
    with store_of(objects) as store:
        options = cached(folder / uuid.uuid4().hex, in_order=in_order, part_bytes=part_bytes)
        assert set(gets_of_an_epoch(store, listed=listed, **options)) >= {name for name in objects if objects[name]}
        asked: list[str] = []
        store.before_stat = asked.append
        before = tdr.stats()
        assert gets_of_an_epoch(store, listed=listed, **options) == []
        assert sorted(asked) == ([] if listed else sorted(objects))
        assert (tdr.stats() - before).fetch.requests == len(asked)


@pytest.mark.parametrize("num_bytes", [100, 300_000, 5 << 20])
def test_another_path_another_pass_and_another_process_find_what_was_stored(folder: Path, num_bytes: int) -> None:
    with store_of({f"{number}": os.urandom(num_bytes) for number in range(4)}) as store:
        options = {"part_bytes": max(100, num_bytes // 3)}
        (folder / "link").symlink_to(folder / "cache")
        assert gets_of_an_epoch(store, **cached(folder / "cache"), **options)
        assert gets_of_an_epoch(store, **cached(folder / "link"), **options) == []

        def gets_of_another_process() -> int:
            child = os.fork()
            if child == 0:
                os._exit(len(gets_of_an_epoch(store, **cached(folder / "cache"), **options)))
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

        wait_for(lambda: gets_of_another_process() == 0)  # it sees small objects a moment after they were stored


SCRIPT = """
import json, sys
import torchdata_remote as tdr
urls, options, folder = json.loads(sys.argv[1])
urls = tdr.IterableWrapper([tdr.RemoteUrl(*url) for url in urls])
pipe = urls.async_prefetch(cache_dir=folder, cache_bytes=1 << 30, storage_options=options)
print(sum(len(stream.read()) for _, stream in pipe))
"""


def test_a_process_that_ends_has_stored_what_it_read_and_servers_do_not_share_objects(folder: Path) -> None:
    with wire() as server, wire() as other:
        objects = [server.put(bytes([number]) * 500) for number in range(12)]
        arguments = [[[made.url, 500, made.etag] for made in objects], server.storage_options, str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SCRIPT, json.dumps(arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        assert (done.stdout, done.stderr) == ("6000\n", "")
        for made in objects:
            made.requests.clear()
        assert [server.read(made.listed(), **cached(folder)) for made in objects] == [made.data for made in objects]
        assert not any(made.requests for made in objects)
        same_name = [other.put(b"x" * 500) for _ in objects]
        assert [made.url for made in same_name] == [made.url for made in objects]
        assert [other.read(made.listed(), **cached(folder)) for made in same_name] == [b"x" * 500] * 12


@pytest.mark.parametrize("listed", [True, False])
def test_a_new_version_is_fetched_and_the_old_one_never_returned(folder: Path, listed: bool) -> None:
    with store_of({"a": b"old" * 10, "b": b"stays"}) as store:
        for number, data in enumerate([b"old" * 10, b"new" * 10, b"newer" * 7, b"old" * 10]):
            store.objects["a"], expected = data, ["a"] if number else ["a", "b"]
            assert sorted(gets_of_an_epoch(store, listed=listed, part_bytes=100, **cached(folder))) == expected
            assert gets_of_an_epoch(store, listed=listed, part_bytes=100, **cached(folder)) == []


@pytest.mark.parametrize("num_bytes", [0, 500, 3 << 20])
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_bare_url_costs_one_get_and_while_it_is_cached_one_that_confirms_its_version(
    folder: Path, scheme: str, num_bytes: int
) -> None:
    with wire() as server:
        made = server.put(os.urandom(num_bytes))
        url = made.url if scheme == "s3" else made.url.replace("s3:/", server.endpoint_url)
        options = cached(folder)
        if scheme == "http":
            options["storage_options"] = {}
        for version in ('"v1"', '"v2"'):
            made.etag, made.data = version, made.data[::-1]
            for is_hit in (False, True, True):
                made.requests.clear()
                assert server.read(url, **options) == made.data
                confirmed = [asked.if_none_match for asked in made.requests]
                # No range of an empty object can be asked for, and the first of several parts tells the size
                num_requests = max(1, num_bytes >> 20) + (num_bytes == 0)
                assert confirmed == [version] if is_hit else len(confirmed) == num_requests
        assert made.num_heads == 0


def test_objects_without_an_etag_are_read_and_not_cached_with_one_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with store_of(numbered(3, 5)) as store:
        store.has_etags = False
        for _ in range(2):
            assert len(gets_of_an_epoch(store, **cached(folder))) == 3
        assert [record for record in caplog.records if "reports no etag or no size" in record.getMessage()] != []
        assert len(caplog.records) == 1


def test_an_object_larger_than_the_cache_is_read_and_reported_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with store_of({"a": bytes(95), "b": bytes(96)}) as store:
        for _ in range(2):
            assert len(gets_of_an_epoch(store, part_bytes=100, **cached(folder, 90))) == 2
    [said] = [record.getMessage() for record in caplog.records]
    assert re.search("9[56] bytes, more than cache_bytes=90", said)


@pytest.mark.parametrize("read_bytes", [0, 1, 10, 25])
def test_an_object_that_was_read_in_part_is_fetched_again(folder: Path, read_bytes: int) -> None:
    with store_of({"a": bytes(range(50))}) as store:
        [(_, stream)] = store.open(max_buffer_bytes=10, **cached(folder))
        assert stream.read(read_bytes) == bytes(range(read_bytes))
        stream.close()
        assert len(gets_of_an_epoch(store, **cached(folder))) >= 5  # and perhaps one that was under way
        assert gets_of_an_epoch(store, **cached(folder)) == []


@settings(max_examples=15)
@given(fails=st.sets(st.integers(0, 9)), part_bytes=st.integers(5, 30), wrong=st.booleans())
def test_faults_of_the_store_do_not_spoil_the_cache(
    folder: Path, fails: set[int], part_bytes: int, wrong: bool
) -> None:
    with store_of({"a": bytes(range(60))}) as store:
        options = cached(folder / uuid.uuid4().hex, part_bytes=part_bytes)
        numbers = iter(range(100))

        def before_read(name: str, start: int) -> None:
            if next(numbers) in fails:
                raise ConnectionError("try again")

        real = store.read
        store.before_read = before_read
        if wrong:  # every second response is too short, which is noticed
            store.read = lambda name, start, end: real(name, start, end - next(numbers) % 2)  # type: ignore[method-assign]
        for _ in range(3):
            assert store.read_all(**options) == store.objects


# --- what is kept

MIB = 1 << 20
NUM, OBJECT_BYTES = 40, 100_000


def random_epoch(store: ScriptedStore, folder: Path, cache_bytes: int, seed: int, *, part: int = 1) -> float:
    """The share of objects that the cache had, in an epoch in random order."""
    urls = random.Random(seed).sample(store.urls(), len(store.objects) // part)
    store.reads.clear()
    for name, stream in store.open(urls, part_bytes=MIB, **cached(folder, cache_bytes)):
        assert stream.read() == store.objects[name]
    return 1 - len(store.reads) / len(urls)


@pytest.mark.parametrize(("cache_bytes", "kept"), [(1 * MIB, 0.2), (2 * MIB, 0.45), (3 * MIB, 0.7), (8 * MIB, 1)])
def test_a_cache_serves_the_share_of_the_data_that_it_has_room_for(folder: Path, cache_bytes: int, kept: float) -> None:
    with store_of(numbered(NUM, OBJECT_BYTES)) as store:
        found = list[float]()
        for seed in range(4):
            found.append(random_epoch(store, folder, cache_bytes, seed))
            wait_for(lambda: used_bytes(folder) <= cache_bytes)
        assert found[0] == 0
        assert min(found[1:]) >= kept


@pytest.mark.parametrize("num_bytes", [0, 16, 300, 4_097])
def test_the_bound_holds_on_the_disk_for_small_objects_and_what_names_them(folder: Path, num_bytes: int) -> None:
    with store_of(dict.fromkeys([f"{number}" for number in range(1_600)], bytes(num_bytes))) as store:
        for seed in range(2):
            urls = store.urls()[seed * 800 :][:800]
            streams = store.open(urls, part_bytes=MIB, **cached(folder, MIB))
            assert sum(len(stream.read()) for _, stream in streams) == 800 * num_bytes
            wait_for(lambda: used_bytes(folder) <= MIB)  # a journal is there for a moment


def test_a_smaller_bound_holds_once_a_few_objects_have_been_stored(folder: Path) -> None:
    with store_of(numbered(NUM, OBJECT_BYTES)) as store:
        random_epoch(store, folder, 8 * MIB, 0)
        wait_for(lambda: used_bytes(folder) > 3 * MIB)

        def holds_after_one_more() -> bool:  # as far as it comes in the time that a reader lends it
            store.objects[f"more {len(store.objects)}"] = bytes(OBJECT_BYTES)
            random_epoch(store, folder, 2 * MIB, len(store.objects))
            return used_bytes(folder) <= 2 * MIB

        wait_for(holds_after_one_more)


def test_an_object_that_is_being_read_is_not_removed(folder: Path) -> None:
    with store_of(numbered(NUM, OBJECT_BYTES)) as store:
        random_epoch(store, folder, 2 * MIB, 0)
        for url in store.urls():  # which half was kept is a matter of what was complete first
            store.reads.clear()
            [(name, stream)] = store.open([url], part_bytes=1_000, **cached(folder, 2 * MIB))
            first, before = stream.read(10), store.objects[name]
            if not store.reads:
                break
        for name in store.objects:
            store.objects[name] = b"new" + store.objects[name][3:]
        random_epoch(store, folder, 2 * MIB, 1)
        assert first + stream.read() == before
        del stream
        gc.collect()
