"""The folder of the cache: damage, a full disk, other processes, kills, and what others put there."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reading.test_cache import IN_MEMORY, cached, gets_of_an_epoch, used_bytes
from tests.support.scripted_store import ScriptedStore, store_of
from tests.support.small_disk import small_disk
from tests.support.waiting import wait_for
from torchdata_remote.errors import StorageError

MIB = 1 << 20
SIZES = [0, 1, 300, 5_000, 700_000, 5 << 20]


def objects_of(sizes: list[int], seed: int = 0) -> dict[str, bytes]:
    chance = random.Random(seed)
    return {f"{number}": chance.randbytes(size) for number, size in enumerate(sizes)}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name, "cache")


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def place_of(folder: Path, data: bytes) -> tuple[Path, int]:
    """The file of the cache that has the bytes of an object, and where."""
    found: list[tuple[Path, int]] = []

    def is_there() -> bool:
        found[:] = [(path, at) for path in files_of(folder) if (at := path.read_bytes().find(data)) >= 0]
        return bool(found)

    wait_for(is_there)
    return found[0]


def in_child(function: object) -> int:
    """Call a function in a forked child; its result."""
    child = os.fork()
    if child == 0:
        status = 255
        try:
            status = int(function())  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fill_by_another_process(store: ScriptedStore, options: dict[str, Any]) -> None:
    """Let a child read everything, until others find it in the cache."""

    def fill() -> int:
        gets_of_an_epoch(store, **options)
        wait_for(lambda: in_child(lambda: len(gets_of_an_epoch(store, **options))) == 0)
        return 7

    assert in_child(fill) == 7


# --- damage


BLOCK, PART = 4 * MIB, 8 * MIB
DAMAGED_AT = {  # sizes, and the byte that is damaged
    BLOCK - 1: BLOCK - 2,
    BLOCK: 0,
    BLOCK + 1: BLOCK,
    PART - 1: BLOCK - 1,
    PART: BLOCK,
    PART + 1: PART,
    2 * PART + 1: 2 * PART,
}


@pytest.mark.parametrize("part_bytes", [PART, 3 * MIB + 1])
def test_objects_whose_sizes_are_at_borders_of_blocks_and_parts_are_kept_and_verified_to_the_last_byte(
    folder: Path, part_bytes: int
) -> None:
    with store_of(objects_of([*DAMAGED_AT, 0, 1])) as store:
        options = cached(folder, part_bytes=part_bytes)
        expected = {name: -(-len(data) // part_bytes) for name, data in store.objects.items() if data}
        assert Counter(gets_of_an_epoch(store, **options)) == expected
        assert gets_of_an_epoch(store, **options) == []
        contents = {path: path.read_bytes() for path in files_of(folder)}
        damaged = [name for name, data in store.objects.items() if len(data) > 1]
        for name, at in zip(damaged, DAMAGED_AT.values(), strict=True):
            [(path, start)] = [
                (path, start) for path, data in contents.items() if (start := data.find(store.objects[name][:64])) >= 0
            ]
            with path.open("r+b") as file:
                file.seek(start + at)
                file.write(bytes([store.objects[name][at] ^ 1]))
        assert set(gets_of_an_epoch(store, **options)) == set(damaged)
        gets_of_an_epoch(store, **options)  # which may be the pass that stores it
        assert gets_of_an_epoch(store, **options) == []


@settings(max_examples=8)  # each forks processes
@given(seed=st.integers(0, 1 << 32), num_bits=st.integers(1, 30), how=st.sampled_from(["flip", "cut", "zeros", "gone"]))
def test_damage_anywhere_in_the_folder_never_changes_what_is_read(
    folder: Path, seed: int, num_bits: int, how: str
) -> None:
    chance, path_of_cache = random.Random(seed), folder / f"{seed}-{num_bits}-{how}"
    with store_of(objects_of([0, 1, 30, 30, 30, 3_000, 40_000])) as store:
        options = cached(path_of_cache, part_bytes=MIB)
        fill_by_another_process(store, options)
        for path in files_of(path_of_cache):
            data = bytearray(path.read_bytes())
            if how == "flip" and data:
                for _ in range(num_bits):
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data)
            elif how == "gone" and chance.random() < 0.5:
                path.unlink()
            elif how == "cut":
                os.truncate(path, chance.randrange(len(data) + 1))
            elif how == "zeros":
                start = chance.randrange(len(data) + 1)
                path.write_bytes(bytes(data[:start]) + bytes(len(data) - start))
        for _ in range(3):
            assert store.read_all(**options) == store.objects


@pytest.mark.parametrize("instead", ["link", "dangling link", "folder", "fifo", "hard link", "other's"])
def test_what_lies_in_place_of_the_files_of_a_cache_is_neither_followed_nor_overwritten(
    folder: Path, instead: str
) -> None:
    precious = folder.parent / "precious"
    precious.write_bytes(b"precious" * 1_000)
    with store_of(objects_of(SIZES)) as store:
        options = cached(folder, part_bytes=MIB)
        fill_by_another_process(store, options)
        for path in files_of(folder):
            path.unlink()
            if instead == "folder":
                path.mkdir()
            elif instead == "fifo":
                os.mkfifo(path)
            elif instead == "hard link":
                os.link(precious, path)
            elif instead == "other's":
                path.write_bytes(b"x" * 100)
                path.chmod(0o666)
            else:
                path.symlink_to(precious if instead == "link" else folder / "nowhere")
        for _ in range(2):
            try:
                assert store.read_all(**options) == store.objects
            except StorageError:
                assert instead == "folder", "which cannot be replaced"
        assert precious.read_bytes() == b"precious" * 1_000
        assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o750, 0o777])
def test_a_folder_that_others_may_enter_is_an_error(folder: Path, mode: int) -> None:
    (folder / "v4").mkdir(parents=True)
    (folder / "v4").chmod(mode)
    with store_of(objects_of([100])) as store, pytest.raises(StorageError, match="no folder that only user"):
        store.read_all(**cached(folder))


# --- folders that cannot be used


@pytest.fixture
def store() -> Iterator[ScriptedStore]:
    """Ten objects."""
    with store_of(dict.fromkeys("0123456789", b"x" * 100)) as made:
        yield made


def read(store: ScriptedStore, cache_dir: str | Path) -> int:
    return len(store.read_all(part_bytes=MIB, **cached(cache_dir)))


def test_missing_parents_are_created_and_belong_to_this_user_only(store: ScriptedStore, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert read(store, tmp_path / "a" / "b") == 10
        wait_for(lambda: used_bytes(tmp_path / "a") > 0)
    finally:
        os.umask(before)
    made = [tmp_path / "a" / "b", *(tmp_path / "a" / "b").rglob("*")]
    assert {path.lstat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert {path.lstat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}


def said_of(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for record in caplog.records if str(folder) in (message := record.getMessage())]


@pytest.mark.parametrize("problem", ["removed", "full", "read-only"])
def test_a_cache_that_cannot_be_used_any_more_does_not_end_a_training(
    store: ScriptedStore, tmp_path: Path, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as stack:
        disk = tmp_path if problem == "removed" else stack.enter_context(small_disk(tmp_path, "tmpfs"))
        cache = disk / "cache"
        assert read(store, cache) == 10
        assert used_bytes(cache) > 0
        if problem == "removed":
            shutil.rmtree(cache)
        elif problem == "full":
            with contextlib.suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(512))
        else:
            remount = ["mount", "-o", "remount,ro", str(disk)]  # not while files are open, which are closed soon
            wait_for(lambda: subprocess.run(remount, capture_output=True, check=False).returncode == 0)
        for number in range(3):
            store.objects[f"more-{number}"] = os.urandom(100_000)
            assert read(store, cache) == 11 + number
        if problem == "removed":
            assert gets_of_an_epoch(store, part_bytes=MIB, **cached(cache)) == []
        else:
            [said] = said_of(cache, caplog)
            assert "are read without it" in said


def test_files_of_others_in_the_folder_are_not_removed(folder: Path) -> None:
    kept = [folder / "notes.txt", folder / "en" / "notes.txt", folder / "v2" / "notes.txt"]
    for path in kept:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(bytes(50))
    with store_of(objects_of([100_000] * 40)) as store:
        for _ in range(2):
            assert store.read_all(part_bytes=MIB, **cached(folder, MIB)) == store.objects
            for name in store.objects:
                store.objects[name] = store.objects[name][::-1]
    assert [path.read_bytes() for path in kept] == [bytes(50)] * 3


# --- other processes


def versions_of(number: int) -> bytes:
    return hashlib.shake_128(b"%d" % number).digest(50 + 9_700 * (number % 20))


def test_processes_that_share_a_folder_read_right_bytes_and_keep_the_bound(folder: Path) -> None:
    with store_of({f"{number}": versions_of(number) for number in range(20)}) as store:
        children = []
        for seed in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for turn in range(6):
                        for name in store.objects:  # versions come and go
                            store.objects[name] = versions_of(int(name) + 20 * (turn // 3))
                        urls = random.Random(f"{seed} {turn}").sample(store.urls(), 20)
                        for name, stream in store.open(urls, part_bytes=50_000, **cached(folder, MIB)):
                            assert stream.read() == store.objects[name]
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
        for name in store.objects:
            store.objects[name] = versions_of(int(name) + 20)
        names = set(gets_of_an_epoch(store, part_bytes=MIB, **cached(folder, MIB)))
        assert len(names) < 20, "something of it is kept"
        wait_for(lambda: used_bytes(folder) <= MIB)


def test_a_process_that_is_killed_at_any_request_leaves_a_sound_cache(folder: Path) -> None:
    sizes = [10, 100, 5_000, 300_000, 20, 400_000, 30, 40, 6_000, 500_000]
    for step in itertools.count(0, 3):
        with store_of(objects_of(sizes, seed=step // 9)) as store:
            numbers = itertools.count()

            def killing(name: str, start: int, step: int = step, numbers: Iterator[int] = numbers) -> None:
                if next(numbers) == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            store.before_read = killing
            status = in_child(lambda: store.read_all(part_bytes=100_000, **cached(folder, MIB)) != store.objects)
            store.before_read = lambda name, start: None
            assert status in (0, -signal.SIGKILL)
            assert store.read_all(part_bytes=100_000, **cached(folder, MIB)) == store.objects
            wait_for(lambda: used_bytes(folder) <= MIB)
            if status == 0:
                assert step > 9
                break
    with store_of(objects_of([50_000] * 10)) as store:
        for _ in range(3):
            gets = gets_of_an_epoch(store, part_bytes=MIB, **cached(folder, 2 * MIB))
        assert gets == [], "what killed processes left does not take the room"
