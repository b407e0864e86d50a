"""Shards of an earlier run, recognised without reading them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sharding.test_task import Numbers, task_in
from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.sharding.finished_shards import Written, etags_of, unchanged_tasks
from torchdata_remote.sharding.task import write_shard
from torchdata_remote.writing.shard_folder import ShardFolder
from torchdata_remote.writing.template import ShardTemplate

SOURCES = "_unfinished-sources-"


def written(place: Place) -> dict[int, Written]:
    """Two tasks, the second one with two shards."""
    prefix = f"{place.url}{SOURCES}"
    first = write_shard(task_in(place, Numbers(0, 2), sources_prefix=prefix))
    second = write_shard(task_in(place, Numbers(2, 7), number=1, max_shard_samples=3, sources_prefix=prefix))
    return {0: first, 1: second}


def unchanged(place: Place, found: dict[int, Written], *, forgotten: str = "") -> set[int]:
    folder = ShardFolder(ShardTemplate(f"{place.url}{{shard:03d}}.tar"), StorageOptions())
    etags = {name: etag for one in found.values() for name, etag in one.etags.items() if name != forgotten}
    finished = {task: one.shards for task, one in found.items()}
    return unchanged_tasks(finished, etags, folder, f"{place.url}{SOURCES}")


def replaced(path: Path) -> None:
    """By the same bytes in another file."""
    new = path.with_suffix(".new")
    new.write_bytes(path.read_bytes())
    new.replace(path)


def changed_in_place(path: Path) -> None:
    """In one byte, with the times set back, as a faulty tool or a restored backup does."""
    status, content = path.stat(), path.read_bytes()
    while path.stat().st_ctime_ns == status.st_ctime_ns:  # the clock of a filesystem has ticks
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = path.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (status.st_mtime_ns, status.st_size, status.st_ino)


CHANGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "shorter": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "touched": lambda path: os.utime(path, ns=(0, 0)),
    "replaced": replaced,
    "changed in place": changed_in_place,
}


@pytest.mark.parametrize("name", ["005.tar", "001.tar.idx", "005.tar.keys", f"{SOURCES}000001"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_task_with_a_changed_object_is_not_recognised(tmp_path: Path, change: str, name: str) -> None:
    """Whatever happened to a shard, its index or its provenance; other tasks are recognised."""
    place = Place(f"{tmp_path}/d/")
    found = written(place)
    assert set(found[1].etags) == {
        *(f"{number}.tar{ending}" for number in ("001", "005") for ending in ("", ".idx", ".keys")),
        f"{SOURCES}000001",
    }
    assert unchanged(place, found) == {0, 1}
    CHANGES[change](Path(place.url, name))
    assert unchanged(place, found) == {0}


def test_a_task_whose_etags_are_not_recorded_is_not_recognised(tmp_path: Path) -> None:
    """One of them, as in a damaged journal, or all of them, as in a journal of an earlier version."""
    place = Place(f"{tmp_path}/d/")
    found = written(place)
    assert unchanged(place, found, forgotten="005.tar.idx") == {0}
    assert unchanged(place, found, forgotten="005.tar.keys") == {0}
    assert unchanged(place, {task: one._replace(etags={}) for task, one in found.items()}) == set()


def test_a_task_of_another_size_than_recorded_is_not_recognised(tmp_path: Path) -> None:
    """Where the journal and the etag do not belong together."""
    place = Place(f"{tmp_path}/d/")
    found = written(place)
    (shard,) = found[0].shards
    found[0] = found[0]._replace(shards=[replace(shard, num_bytes=shard.num_bytes + 512)])
    assert unchanged(place, found) == {1}


def test_a_store_without_etags_records_none() -> None:
    """Its shards are read when the job is resumed, as they were before etags were recorded."""
    place = memory_place()
    found = written(place)
    assert [one.etags for one in found.values()] == [{}, {}]
    assert unchanged(place, found) == set()


def test_a_missing_object_has_no_etags(tmp_path: Path) -> None:
    """None of the task's are recorded then."""
    Place(f"{tmp_path}/d/").put({"a": b"a"})
    assert set(etags_of([f"{tmp_path}/d/a"], StorageOptions())) == {"a"}
    assert etags_of([f"{tmp_path}/d/a", f"{tmp_path}/d/b"], StorageOptions()) == {}
