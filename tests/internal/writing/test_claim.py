"""Claims of a folder: heartbeats, leases of other machines, and takeovers at once."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.shard_places import Place, memory_place
from torchdata_remote import ShardWriter
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.processes.process_identity import this_process
from torchdata_remote.errors import ManifestError, ObjectExistsError
from torchdata_remote.sharding.journal import Journal, PreviousRun
from torchdata_remote.writing.claim import CLAIM_NAME, Claim
from torchdata_remote.writing.shard_folder import ShardFolder
from torchdata_remote.writing.template import ShardTemplate

SAMPLE = {"__key__": "a", "txt": b"small"}
NEVER_S = 3600.0


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return memory_place() if request.param == "memory" else Place(f"{tmp_path}/d/")


class Watched(ShardFolder):
    """Calls ``on_publish`` after each writing."""

    on_publish: Callable[[], object] = staticmethod(lambda: None)

    def publish(self, name: str, data: bytes, *, overwrite: bool = True) -> None:
        super().publish(name, data, overwrite=overwrite)
        self.on_publish()


def destination(place: Place) -> Watched:
    return Watched(ShardTemplate(f"{place.url}{{shard:03d}}.tar"), StorageOptions(place.options))


def document(place: Place) -> Any:
    return json.loads(place.files()[CLAIM_NAME])


def leave(place: Place, owner: dict[str, Any] | None, **changed: Any) -> None:
    """The journal of another job."""
    fields: dict[str, Any] = {"__kind__": "torchdata_remote-job-v1", "owner": owner, "plan": "p", "tasks": []}
    place.put({CLAIM_NAME: json.dumps({**fields, "shardlist": [], **changed}).encode()})


def elsewhere() -> dict[str, Any]:
    """A process whose end cannot be seen from here."""
    return {**this_process(), "host": "another"}


def test_of_two_that_take_over_one_claim_only_one_holds_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has seen that the owner is gone before the first one wrote its claim, and writes it later."""
    leave(place, {**this_process(), "started": "1"})
    first, second = (Claim(destination(place)) for _ in range(2))
    publish, first_goes_on, second_has_written = ShardFolder.publish, threading.Event(), threading.Event()
    looked, outcomes = threading.Event(), list[str]()

    def take(claim: Claim) -> None:
        try:
            claim.take()
        except ObjectExistsError:
            outcomes.append("refused")
        else:
            outcomes.append("held")

    late = threading.Thread(target=take, args=[second])

    def publish_in_turn(self: ShardFolder, name: str, data: bytes, *, overwrite: bool = True) -> None:
        if threading.current_thread() is late and not second_has_written.is_set():
            looked.set()
            first_goes_on.wait(60)
            publish(self, name, data, overwrite=overwrite)
            second_has_written.set()
        else:
            publish(self, name, data, overwrite=overwrite)

    def settle(seconds: float) -> None:
        first_goes_on.set()
        second_has_written.wait(60)

    monkeypatch.setattr(ShardFolder, "publish", publish_in_turn)
    monkeypatch.setattr("torchdata_remote.writing.claim.time.sleep", settle)
    late.start()
    looked.wait(60)
    take(first)
    first_goes_on.set()
    late.join()
    first.release()
    second.release()
    assert sorted(outcomes) == ["held", "refused"]


def test_a_writer_whose_claim_was_taken_over_publishes_nothing(place: Place) -> None:
    writer = ShardWriter(f"{place.url}{{shard:03d}}.tar", storage_options=place.options)
    writer.write(SAMPLE)
    leave(place, elsewhere())
    taken = document(place)
    with pytest.raises(ObjectExistsError, match="on another"):
        writer.close()
    assert document(place) == taken
    assert "index.json" not in place.files()


def test_the_journal_of_an_ended_process_is_taken_over_at_once(place: Place) -> None:
    leave(place, {**this_process(), "started": "1"})
    with Journal(destination(place), beat_s=NEVER_S, lease_s=NEVER_S) as own:
        assert own.open() == PreviousRun("p", {})
        own.check()


def test_a_silent_owner_on_another_machine_is_replaced_after_the_lease_which_is_said_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    leave(place, elsewhere())
    own = Journal(destination(place), beat_s=NEVER_S, lease_s=0.03)
    with caplog.at_level(logging.WARNING, "torchdata_remote"), own:
        assert own.open() == PreviousRun("p", {})
    (record,) = caplog.records
    assert "on another" in record.getMessage()


@pytest.mark.parametrize("thief", [elsewhere, lambda: None])
def test_a_lost_claim_is_noticed_by_each_call_and_the_thiefs_stays(
    place: Place, thief: Callable[[], dict[str, Any] | None]
) -> None:
    folder, stolen = destination(place), threading.Semaphore(0)

    def steal() -> None:
        """At the end of a beat: one that had read its own claim before would overwrite the thief's, as it may."""
        folder.on_publish = lambda: None
        leave(place, thief())
        stolen.release()

    with Journal(folder, beat_s=0.005) as own:
        own.open()
        folder.on_publish = steal
        assert stolen.acquire(timeout=60)
        taken = place.files()[CLAIM_NAME]
        for call in (own.check, lambda: own.set_plan("q")):
            with pytest.raises(ObjectExistsError, match="another job"):
                call()
        own._heartbeat.join(60)
        with pytest.raises(ObjectExistsError, match="another job"):
            own.add_finished(0, [])
    assert place.files()[CLAIM_NAME] == taken


@pytest.mark.parametrize("changed", [{"tasks": None}, {"tasks": ["x"]}, {"shardlist": [{"task": 5}]}, {"shardlist": 1}])
def test_a_damaged_journal_is_an_error_and_stays(changed: dict[str, Any]) -> None:
    place = memory_place()
    leave(place, None, **changed)
    before = place.files()
    with pytest.raises(ManifestError, match="is damaged"), Journal(destination(place)) as own:
        own.open()
    assert place.files() == before
