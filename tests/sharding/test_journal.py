"""Whose destination it is, and what an earlier run left there."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.checksums import Checksums
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.processes.process_identity import this_process
from torchdata_remote.errors import ManifestError, ObjectExistsError, TransientStorageError
from torchdata_remote.formats.manifest import ShardInfo
from torchdata_remote.sharding.journal import Journal, PreviousRun
from torchdata_remote.writing.claim import CLAIM_NAME
from torchdata_remote.writing.shard_folder import ShardFolder
from torchdata_remote.writing.template import ShardTemplate

NEVER_S = 3600.0


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder of each kind of store."""
    return memory_place() if request.param == "memory" else Place(f"{tmp_path}/d/")


class Watched(ShardFolder):
    """Calls ``on_publish`` after each writing, and ``on_read`` before each reading."""

    on_publish: Callable[[], object] = staticmethod(lambda: None)
    on_read: Callable[[], object] = staticmethod(lambda: None)

    def publish(self, name: str, data: bytes, *, overwrite: bool = True) -> None:
        super().publish(name, data, overwrite=overwrite)
        self.on_publish()

    def read(self, name: str, *, is_expected: bool = False) -> bytes | None:
        self.on_read()
        return super().read(name, is_expected=is_expected)


def destination(place: Place) -> Watched:
    return Watched(ShardTemplate(f"{place.url}{{shard:03d}}.tar"), StorageOptions(place.options))


def journal(place: Place, *, beat_s: float = NEVER_S, lease_s: float = 0.02) -> Journal:
    return Journal(destination(place), beat_s=beat_s, lease_s=lease_s)


def shard(place: Place, number: int, checksums: Checksums | None = None) -> ShardInfo:
    return ShardInfo(f"{destination(place).template.url(number)}", number, 10 * number, f"{number:032x}", checksums)


def document(place: Place) -> Any:
    return json.loads(place.files()[CLAIM_NAME])


def leave(place: Place, owner: dict[str, Any] | None, **changed: Any) -> None:
    """The journal of another job."""
    fields: dict[str, Any] = {"__kind__": "torchdata_remote-job-v1", "owner": owner, "plan": "p", "tasks": []}
    place.put({CLAIM_NAME: json.dumps({**fields, "shardlist": [], **changed}).encode()})


def elsewhere() -> dict[str, Any]:
    """A process whose end cannot be seen from here."""
    return {**this_process(), "host": "another"}


@contextmanager
def failing(own: Journal) -> Iterator[Journal]:
    """A job that is interrupted at the end of the block."""
    with contextlib.suppress(KeyboardInterrupt), own:
        yield own
        raise KeyboardInterrupt


def heart_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "torchdata_remote job"]


def test_a_completed_job_leaves_no_journal_and_no_thread(place: Place) -> None:
    """While it runs the journal says whose job it is; then it is gone, and so is the thread."""
    with journal(place) as own:
        assert own.open() is None
        assert not own.took_over
        assert document(place)["owner"]["pid"] == this_process()["pid"]
        own.set_plan("p")
        own.add_finished(0, [shard(place, 0)])
        own.check()
        own.end()
    assert place.files() == {}
    assert heart_threads() == []


def test_a_failed_job_leaves_its_plan_and_finished_shards(place: Place) -> None:
    """Its plan and its finished shards, which the next job takes over at once, and leaves again."""
    checksums = Checksums(1 << 16, (1,))
    done = {0: [shard(place, 0)], 3: [shard(place, 3, checksums), shard(place, 7)], 2: []}
    for _ in range(2):
        with failing(journal(place, lease_s=NEVER_S)) as own:
            left = own.open()
            assert left in (None, PreviousRun("p", done))
            own.set_plan("p")
            if left is None:
                for task, shards in done.items():
                    own.add_finished(task, shards)
        assert document(place)["owner"] is None
        assert heart_threads() == []
    with journal(place) as own:
        assert own.open() == PreviousRun("p", done)
        assert own.took_over


def test_a_job_that_failed_before_its_plan_leaves_nothing(place: Place) -> None:
    """Without finished shards and temporary objects the folder is as before."""
    with failing(journal(place)) as own:
        own.open()
    assert place.files() == {}
    with journal(place):
        pass
    assert place.files() == {}


def test_the_journal_stays_while_there_are_temporary_objects(place: Place) -> None:
    """So that the folder is not taken for another job's."""
    with failing(journal(place)) as own:
        own.open()
        place.put({"_unfinished-index": b""})
    assert document(place)["owner"] is None


def test_shards_of_another_plan_are_dropped_when_the_plan_is_set(place: Place) -> None:
    """Until then they stay in the journal, so that a job which fails before its plan loses nothing."""
    with failing(journal(place)) as own:
        own.open()
        own.set_plan("p")
        own.add_finished(0, [shard(place, 0)])
    with failing(journal(place)) as own:
        own.open()
        assert (document(place)["plan"], document(place)["tasks"]) == ("p", [0])
    with journal(place) as own:
        assert own.open() == PreviousRun("p", {0: [shard(place, 0)]})
        own.set_plan("p")
        assert document(place)["tasks"] == [0]
        own.set_plan("q")
        assert (document(place)["plan"], document(place)["tasks"], document(place)["shardlist"]) == ("q", [], [])


def test_a_running_owner_is_named_and_not_replaced(place: Place) -> None:
    """Its journal is unchanged."""
    with journal(place) as first:
        first.open()
        before = place.files()
        with pytest.raises(ObjectExistsError, match=rf"process {this_process()['pid']} on"), journal(place) as second:
            second.open()
        assert place.files() == before
        first.check()


def test_the_journal_of_an_ended_process_is_taken_over_at_once(place: Place) -> None:
    """It is taken over without waiting."""
    leave(place, {**this_process(), "started": "1"})
    with journal(place, lease_s=NEVER_S) as own:
        assert own.open() == PreviousRun("p", {})
        assert own.took_over
        own.check()


def test_a_silent_owner_on_another_machine_is_replaced_after_the_lease(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait is logged once."""
    leave(place, elsewhere())
    with caplog.at_level(logging.WARNING, "torchdata_remote"), journal(place, lease_s=0.03) as own:
        assert own.open() == PreviousRun("p", {})
    (record,) = caplog.records
    assert "process" in record.getMessage()
    assert "on another" in record.getMessage()


def test_a_living_owner_on_another_machine_is_not_replaced(place: Place) -> None:
    """Its journal changes, so the destination is not taken."""
    leave(place, elsewhere())
    folder = destination(place)
    reads: list[int] = []

    def beat_then() -> None:
        reads.append(0)
        if len(reads) == 2:
            leave(place, elsewhere(), written_at_s=1)

    folder.on_read = beat_then
    with pytest.raises(ObjectExistsError, match="on another"), Journal(folder, lease_s=0.03) as own:
        own.open()
    assert document(place)["written_at_s"] == 1


def test_an_owner_on_another_machine_may_complete_its_job_during_the_lease(place: Place) -> None:
    """Its shards are in a manifest by now, so none of them is unfinished business."""
    leave(place, elsewhere(), tasks=[0])
    folder = destination(place)
    reads: list[int] = []

    def end_then() -> None:
        reads.append(0)
        if len(reads) == 2:
            place.delete(CLAIM_NAME)

    folder.on_read = end_then
    with Journal(folder, lease_s=0.03) as own:
        assert own.open() == PreviousRun("p", {})
        own.check()


def test_the_journal_is_rewritten_as_a_heartbeat(place: Place) -> None:
    """The journal is written again and again, each time another one, though no shard is finished."""
    folder, beats = destination(place), threading.Semaphore(0)
    folder.on_publish = beats.release
    with Journal(folder, beat_s=0.005) as own:
        own.open()
        assert beats.acquire(timeout=30)
        first = place.files()[CLAIM_NAME]
        for _ in range(3):
            assert beats.acquire(timeout=30)
        assert document(place)["owner"] == json.loads(first)["owner"]
        assert document(place)["written_at_s"] > json.loads(first)["written_at_s"]


@pytest.mark.parametrize("thief", [elsewhere, lambda: None])
def test_a_lost_claim_is_noticed_by_each_call(place: Place, thief: Callable[[], dict[str, Any] | None]) -> None:
    """By the check, by the next writing, and by the next finished shard after a beat; the thief's journal stays."""
    folder, stolen = destination(place), threading.Semaphore(0)

    def steal() -> None:
        """At the end of a beat: one that had read its own claim before would overwrite the thief's, as it may."""
        folder.on_publish = lambda: None
        leave(place, thief())
        stolen.release()

    with Journal(folder, beat_s=0.005) as own:
        own.open()
        folder.on_publish = steal
        assert stolen.acquire(timeout=30)
        taken = place.files()[CLAIM_NAME]
        with pytest.raises(ObjectExistsError, match="another job"):
            own.check()
        with pytest.raises(ObjectExistsError, match="another job"):
            own.set_plan("q")
        while heart_threads():
            heart_threads()[0].join(1)
        with pytest.raises(ObjectExistsError, match="another job"):
            own.add_finished(0, [shard(place, 0)])
    assert place.files()[CLAIM_NAME] == taken


def test_a_removed_journal_stops_the_job(place: Place) -> None:
    """Another job has taken the folder, or a user has cleared it."""
    with journal(place) as own:
        own.open()
        place.delete(CLAIM_NAME)
        with pytest.raises(ObjectExistsError, match="another job"):
            own.check()


def test_transient_faults_of_the_journal_do_not_stop_the_job() -> None:
    """A beat or a finished shard that could not be written down is written with the next one."""
    place = memory_place()
    folder, failed = destination(place), threading.Semaphore(0)
    faulty = threading.Event()

    def fail() -> None:
        if faulty.is_set():
            failed.release()
            raise TransientStorageError("busy")

    folder.on_read = fail
    with Journal(folder, beat_s=0.005) as own:
        own.open()
        own.set_plan("p")
        faulty.set()
        own.add_finished(0, [shard(place, 0)])
        for _ in range(3):
            assert failed.acquire(timeout=30)
        faulty.clear()
        own.add_finished(1, [shard(place, 1)])
        own.set_plan("p")
        assert document(place)["tasks"] == [0, 1]


@pytest.mark.parametrize("damaged", [b"", b"{}", b"[]", b'{"__kind__": "another"}', b"\xff"])
def test_an_unreadable_journal_is_an_error_and_stays(damaged: bytes) -> None:
    """Nothing is taken over from it."""
    place = memory_place()
    place.put({CLAIM_NAME: damaged})
    with pytest.raises(ManifestError, match=f"{CLAIM_NAME} is not a journal.*Remove it"), journal(place) as own:
        own.open()
    assert place.files() == {CLAIM_NAME: damaged}


@pytest.mark.parametrize("changed", [{"tasks": None}, {"tasks": ["x"]}, {"shardlist": [{"task": 5}]}, {"shardlist": 1}])
def test_a_damaged_journal_of_the_right_kind_is_an_error_and_stays(changed: dict[str, Any]) -> None:
    """Likewise if its kind is right."""
    place = memory_place()
    leave(place, None, **changed)
    with pytest.raises(ManifestError, match="is damaged"), journal(place) as own:
        own.open()
