"""Lazy members: files that are fetched where they are read, from shards and from selections."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.selections.test_selected_bytes import requested, shards_of
from tests.support.archive_bytes import pack_tar
from tests.support.memory_objects import put
from tests.support.scripted_store import AT_ONCE, ScriptedStore, store_of
from tests.support.waiting import new_threads, wait_for
from torchdata_remote.errors import ObjectChangedError

SIZE, BLOCK_BYTES = 900_000, 65_536
DATA = random.Random(0).randbytes(SIZE)
FILES = shards_of([{"__key__": f"{n}", "cls": b"%d" % n, "mp4": DATA[n:]} for n in range(4)], 2)  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def store() -> Iterator[ScriptedStore]:
    with store_of(FILES) as store:
        yield store


def reader(store: ScriptedStore, keys: list[str] | None = None, lazy: Any = ("mp4",)) -> Any:
    urls: Any = tdr.IterableWrapper([f"{store.url}index.json"]).list_remote()
    urls = urls if keys is None else urls.select(keys=keys)
    store.reads.clear()
    return urls.async_prefetch(retry=AT_ONCE).shard_tar_reader(lazy=lazy)


def samples(store: ScriptedStore, keys: list[str] | None = None) -> list[dict[str, Any]]:
    return list(reader(store, keys))


def test_names_are_complete_extensions_or_last_parts_in_any_case() -> None:
    archive = put(pack_tar([("a.left.MP4", b"1" * 99), ("a.right.mp4", b"2"), ("a.mp4", b"3"), ("a.cls", b"4")]))
    for lazy, expected in (({"mp4"}, {"left.mp4", "right.mp4", "mp4"}), ({"LEFT.mp4"}, {"left.mp4"})):
        (sample,) = tdr.IterableWrapper([archive]).shard_tar_reader(lazy=lazy)
        assert {name for name, value in sample.items() if hasattr(value, "seek")} == expected
        assert sample["cls"] == b"4"


def test_the_beginnings_of_the_next_shards_are_requested_together_and_threads_end_with_the_pass(
    store: ScriptedStore,
) -> None:
    before = set(threading.enumerate())
    items = iter(reader(store))
    sample = next(items)
    wait_for(lambda: len({name for name, *_ in requested(store)}) == 2)
    items.close()
    assert bytes(sample["mp4"]) == DATA
    wait_for(lambda: not new_threads(before))


@pytest.mark.parametrize("kind", ["compressed", "nested", "opened by others"])
def test_files_are_in_memory_where_the_archive_has_no_places(kind: str) -> None:
    data, wrapper = pack_tar([("a.mp4", b"a" * 100_000), ("b.mp4", b"b" * 200_000)]), tdr.IterableWrapper
    source: Any = {
        "compressed": wrapper([put(gzip.compress(data))]),
        "nested": wrapper([put(pack_tar([("x.tar", data)]))]),
        "opened by others": wrapper([("0.tar", io.BytesIO(data))], deepcopy=False),
    }[kind]
    files = [sample["mp4"] for sample in source.shard_tar_reader(lazy={"mp4"}, nested=kind == "nested")]
    assert [(file.size, bytes(file)) for file in files] == [(100_000, b"a" * 100_000), (200_000, b"b" * 200_000)]


def test_decoders_of_the_package_get_bytes_and_functions_of_users_the_file(store: ScriptedStore) -> None:
    sample = next(iter(reader(store, lazy=("cls", "mp4")).decode_sample({"mp4": lambda file: file.name})))
    assert (sample["cls"], sample["mp4"]) == (0, "0.mp4")
    sample = next(iter(reader(store, lazy=("cls",)).decode_sample({"cls": tdr.decoders.text})))
    assert sample["cls"] == "0"


def test_what_is_passed_over_is_not_requested_and_no_byte_twice(store: ScriptedStore) -> None:
    files = [sample["mp4"] for sample in samples(store)]
    assert sum(end - start for _, start, end in requested(store)) < SIZE / 2, "of four files the headers"
    store.reads.clear()
    assert (files[1].seek(-10, os.SEEK_END), files[1].read()) == (SIZE - 11, DATA[-10:])
    assert sum(end - start for _, start, end in requested(store)) <= 2 * BLOCK_BYTES
    files[1].seek(-100, os.SEEK_END)
    files[1].read()
    assert len(requested(store)) == 1, "the last blocks are kept"
    store.reads.clear()
    assert b"".join(iter(lambda: files[0].read(30_000), b"")) == DATA
    assert sum(end - start for _, start, end in requested(store)) == SIZE
    assert len(requested(store)) < 8, "more blocks of one request while a file is read in order"


def test_of_a_large_file_four_mib_are_kept_of_the_blocks_that_were_used_last() -> None:
    data = random.Random(1).randbytes(12 << 20)
    with store_of(shards_of([{"__key__": "0", "mp4": data}], 1)) as store:  # type: ignore[dict-item]
        (sample,) = samples(store)
        file, places = sample["mp4"], range(0, len(data), BLOCK_BYTES)
        tracemalloc.start()
        try:
            for at in places:
                assert file.read(BLOCK_BYTES) == data[at : at + BLOCK_BYTES]
            assert tracemalloc.get_traced_memory()[0] < 8 << 20
        finally:
            tracemalloc.stop()
        kept = 0
        for at in reversed(places):
            store.reads.clear()
            file.seek(at)
            assert file.read(BLOCK_BYTES) == data[at : at + BLOCK_BYTES]
            kept += not store.reads
        assert 1 << 20 <= kept * BLOCK_BYTES <= 4 << 20


def test_copies_of_a_file_have_its_position_and_fetch_on_their_own(store: ScriptedStore) -> None:
    assert list(map(type, pickle.loads(pickle.dumps(reader(store))))) == [dict] * 4
    file = samples(store)[1]["mp4"]
    assert file.read(10) == DATA[1:11]
    sent = pickle.dumps(file)
    assert len(sent) < 5_000, "no blocks"
    assert pickle.loads(sent).read(10) == file.read(10) == DATA[11:21]
    child = os.fork()
    if child == 0:
        os._exit(7 if file.read(10) == DATA[21:31] else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with ThreadPoolExecutor(4) as pool:  # each byte goes to one of the threads
        pieces = list(pool.map(lambda _: file.read(1_000), range(100)))
    assert sorted(pieces) == sorted(DATA[at : at + 1_000] for at in range(21, 100_021, 1_000))
    assert "SECRET" not in repr(file)
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


@pytest.mark.parametrize("how", ["replaced", "shorter", "busy"])
def test_all_reads_are_of_the_version_that_the_reader_has_seen(how: str) -> None:
    with store_of(dict(FILES)) as store:
        (sample, *_), name = samples(store), "000000.tar"
        file = sample["mp4"]
        assert file.read(10) == DATA[:10]
        failures = iter([True] * 3)

        def before_read(name: str, start: int) -> None:
            if next(failures, False):
                raise ConnectionError("try again")

        file.seek(SIZE // 2)
        if how == "busy":
            store.before_read = before_read
            assert file.read(10) == DATA[SIZE // 2 :][:10]
            return
        store.objects[name] = FILES[name][:-1] + b"x" if how == "replaced" else FILES[name][: SIZE // 4]
        with pytest.raises(ObjectChangedError, match=name):
            list(tdr.IterableWrapper([sample], deepcopy=False).decode_sample({"mp4": lambda file: file.read(10)}))
        with pytest.raises(ObjectChangedError, match=name):
            file.read(10)


def test_members_of_a_local_shard_are_read_in_place(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    urls = tdr.IterableWrapper([f"{tmp_path}/index.json"]).list_remote()
    first, second, *_ = list(urls.async_prefetch().shard_tar_reader(lazy={"mp4"}))
    assert bytes(first["mp4"]) == DATA
    os.replace(tmp_path / "000001.tar", tmp_path / "000000.tar")
    second["mp4"].seek(SIZE // 2)
    with pytest.raises(tdr.errors.StorageError, match=r"000000\.tar"):
        second["mp4"].read(10)


def test_lazy_members_are_written_as_they_are(store: ScriptedStore, memory_folder: str) -> None:
    list(reader(store).write_shards(memory_folder + "/{shard}.tar"))
    written = tdr.stream_shards(memory_folder, seed=None)
    assert [sample["mp4"] for sample in written] == [DATA[number:] for number in range(4)]
