"""One planned shard: written, or seen to be there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.shard_places import Place, header_places, memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import ObjectNotFoundError, ShardWriteError
from torchdata_remote.sharding.planned_samples import Drawn
from torchdata_remote.sharding.task import ShardOptions, ShardTask, start_shard, transformed, write_shard


@dataclass
class Numbers:
    """Samples ``first`` to ``last`` (exclusive); records whether they were read and closed."""

    first: int
    last: int
    closed: bool = False
    drawn: int = 0

    def draw(self, window_bytes: int) -> Iterator[Drawn]:
        try:
            for number in range(self.first, self.last):
                self.drawn += 1
                yield Drawn(f"s/{number}.txt", {"__key__": f"{number:03d}", "txt": memoryview(b"%d" % number)})
        finally:
            self.closed = True


def task_in(place: Place, samples: Numbers, *, number: int = 0, **options: Any) -> ShardTask:
    common: dict[str, Any] = {
        "url_template": f"{place.url}{{shard:03d}}.tar",
        "first_number": 0,
        "num_tasks": 4,
        "max_shard_bytes": 1 << 20,
        "max_shard_samples": 100,
        "transform": None,
        "sources_prefix": None,
        "storage_options": StorageOptions(),
    }
    return ShardTask(number, samples, ShardOptions(**{**common, **options}))


def test_write_shard_writes_one_shard_with_its_index() -> None:
    """Samples in their order, with its index; nothing else is written."""
    place = memory_place()
    (shard,) = write_shard(task_in(place, Numbers(0, 3), number=2, first_number=10)).shards
    assert (shard.url, shard.num_samples) == (f"{place.url}012.tar", 3)
    assert set(place.files()) == {"012.tar", "012.tar.idx", "012.tar.keys"}
    assert place.shards()["012.tar"] == [("000.txt", b"0"), ("001.txt", b"1"), ("002.txt", b"2")]
    assert shard.num_bytes == len(place.files()["012.tar"])


def test_samples_beyond_the_limit_go_into_shards_after_the_planned_ones() -> None:
    """Numbers that no other task uses: each further shard is a whole round of tasks later."""
    place = memory_place()
    shards = write_shard(task_in(place, Numbers(0, 5), number=1, first_number=3, max_shard_samples=2)).shards
    assert [shard.url.rpartition("/")[2] for shard in shards] == ["004.tar", "008.tar", "012.tar"]
    assert [shard.num_samples for shard in shards] == [2, 2, 1]


def test_start_shard_returns_a_function_that_waits_for_the_shard() -> None:
    """``start_shard`` hands back what waits; the shard is there when it was called."""
    place = memory_place()
    finish = start_shard(task_in(place, Numbers(0, 2)))
    (shard,) = finish().shards
    assert shard.num_samples == 2
    assert "000.tar" in place.files()


@pytest.mark.parametrize("label", [3, b"3", memoryview(b"3"), "3"])
def test_provenance_holds_class_shard_and_position_of_each_sample(label: Any) -> None:
    """By the name of its source."""
    place = memory_place()

    def labelled(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "cls": label if sample["__key__"] == "001" else "no number"}

    prefix = f"{place.url}_sources-"
    write_shard(task_in(place, Numbers(0, 3), number=1, max_shard_samples=2, transform=labelled, sources_prefix=prefix))
    files = place.files()
    starts = [start for name, start in header_places(files["001.tar"]) if name.endswith(".cls")]
    assert json.loads(files["_sources-000001"]) == {
        "s/0.txt": {"class": None, "targetFile": "001.tar", "position": starts[0]},
        "s/1.txt": {"class": 3, "targetFile": "001.tar", "position": starts[1]},
        "s/2.txt": {"class": None, "targetFile": "005.tar", "position": 0},
    }


def test_a_transform_gets_bytes_and_may_leave_out() -> None:
    """What it returns is written; nothing at all is no shard."""
    place, seen = memory_place(), []

    def odd(sample: dict[str, Any]) -> dict[str, Any] | None:
        seen.append(type(sample["txt"]))
        return {"__key__": "x" + sample["__key__"], "up": b"!"} if int(sample["__key__"]) % 2 else None

    (shard,) = write_shard(task_in(place, Numbers(0, 4), transform=odd)).shards
    assert set(seen) == {bytes}
    assert (shard.num_samples, place.members()) == (2, {"x001.up": b"!", "x003.up": b"!"})
    assert write_shard(task_in(memory_place(), Numbers(0, 4), transform=lambda sample: None)).shards == []


def test_a_failing_transform_is_an_error_that_names_the_source() -> None:
    """The error names the source and what was raised; nothing is left of the shard, and the source is closed."""
    place, samples = memory_place(), Numbers(0, 9)

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        return sample if sample["__key__"] != "002" else sample["missing"]

    with pytest.raises(ShardWriteError, match=r"'s/2\.txt': KeyError: 'missing'") as caught:
        write_shard(task_in(place, samples, transform=fail))
    assert isinstance(caught.value.__cause__, KeyError)
    assert place.files() == {}
    assert samples.closed


def test_our_own_errors_in_a_transform_stay_what_they_are() -> None:
    """Errors of this package are raised unchanged."""

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        raise ObjectNotFoundError("gone")

    with pytest.raises(ObjectNotFoundError, match="gone"):
        write_shard(task_in(memory_place(), Numbers(0, 1), transform=fail))


def test_an_early_end_closes_the_samples() -> None:
    """Pending requests end with the iteration."""
    samples = Numbers(0, 9)
    with closing(transformed(samples, None, 1 << 20)) as drawn:  # type: ignore[type-var]
        next(drawn)
    assert samples.closed


def written_before(place: Place) -> ShardTask:
    """A task that an earlier run has finished, two shards of it."""
    task = task_in(place, Numbers(0, 5), max_shard_samples=3, sources_prefix=f"{place.url}_sources-")
    return replace(task, finished=tuple(write_shard(task).shards), samples=Numbers(0, 5))


def drawn_by(task: ShardTask) -> int:
    """Number of samples that are read to run a task again, which gives the same bytes."""
    assert task.finished is not None
    assert write_shard(task).shards == list(task.finished)
    assert isinstance(task.samples, Numbers)
    return task.samples.drawn


def test_a_verified_shard_is_not_written_again() -> None:
    """If it is unchanged."""
    place = memory_place()
    task = written_before(place)
    before = place.files()
    assert drawn_by(task) == 0
    assert place.files() == before


@pytest.mark.parametrize("name", ["000.tar", "004.tar", "000.tar.idx", "000.tar.keys", "_sources-000000"])
@pytest.mark.parametrize("damage", ["missing", "longer", "changed"])
def test_a_damaged_shard_is_written_again(name: str, damage: str) -> None:
    """Any damage of shards and indexes; provenance objects, which have no checksum, must exist."""
    place = memory_place()
    task = written_before(place)
    before = place.files()
    if damage == "missing":
        place.delete(name)
    elif damage == "longer":
        place.put({name: before[name] + b"x"})
    else:
        place.put({name: bytes([before[name][0] ^ 1]) + before[name][1:]})
    if name.startswith("_") and damage != "missing":
        assert drawn_by(task) == 0
        return
    assert drawn_by(task) == 5
    assert place.files() == before


def test_a_task_that_left_out_all_is_finished() -> None:
    """No shards are what it has written."""
    samples = Numbers(0, 3)
    task = replace(task_in(memory_place(), samples), finished=())
    assert (write_shard(task).shards, samples.drawn) == ([], 0)
