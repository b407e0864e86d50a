"""One writer at a time in a folder, over threads, processes, jobs and machines."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.support.shard_places import Place, memory_place, some_files
from torchdata_remote import ShardTarReader, ShardWriter, WriteShards, shard_dataset
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.processes.process_identity import this_process
from torchdata_remote.errors import ObjectExistsError, ShardWriteError
from torchdata_remote.storage import PARTIAL_SUFFIX
from torchdata_remote.testing import FaultyStore
from torchdata_remote.writing.claim import CLAIM_NAME, Claim
from torchdata_remote.writing.shard_folder import ShardFolder
from torchdata_remote.writing.template import ShardTemplate

SAMPLE = {"__key__": "a", "txt": b"small"}


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder of each kind of store."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("moto")
        return Place(f"s3://{server.new_bucket()}/d/", server)
    return memory_place() if request.param == "memory" else Place(f"{tmp_path}/d/")


def writer_of(place: Place, *, overwrite: bool = True, name: str = "{shard:03d}.tar") -> ShardWriter:
    return ShardWriter(f"{place.url}{name}", overwrite=overwrite, storage_options=place.options)


def keys(place: Place) -> list[str]:
    shards = [f"{place.url}{name}" for name in sorted(place.files()) if name.endswith(".tar")]
    read = ShardTarReader(IterableWrapper(shards), storage_options=place.options)
    return [sample["__key__"] for sample in read]


def claims(place: Place) -> list[str]:
    return [name for name in place.files() if name.startswith("_unfinished-")]


@pytest.mark.parametrize(
    ("place", "overwrite", "name"),
    [
        ("local", False, "{shard:03d}.tar"),
        ("local", True, "val-{shard}.tar.gz"),
        ("memory", True, "{shard:03d}.tar"),
        ("s3", True, "{shard:03d}.tar"),
        ("s3", False, "val-{shard}.tar.gz"),
    ],
    indirect=["place"],
)
def test_a_second_writer_is_refused_and_the_first_one_loses_nothing(place: Place, overwrite: bool, name: str) -> None:
    """Of the same template or of another one in the same folder, which would replace the manifest."""
    with writer_of(place) as first:
        first.write(SAMPLE)
        with pytest.raises(ObjectExistsError, match=r"another job writes there now.*not closed"):
            writer_of(place, overwrite=overwrite, name=name).write({"__key__": "b", "txt": b""})
        with pytest.raises(ObjectExistsError, match="another job writes there now"):
            list(WriteShards(IterableWrapper([SAMPLE]), f"{place.url}{name}", storage_options=place.options))
    assert keys(place) == ["a"]
    assert claims(place) == []
    with writer_of(place) as after:
        after.write({"__key__": "c", "txt": b""})
    assert keys(place) == ["c"]


def test_of_many_threads_only_one_gets_the_claim(place: Place) -> None:
    """All enter at once: one gets through, with all of its samples, and the others get an error."""
    count = 6
    barrier, done = threading.Barrier(count), threading.Event()
    entered: list[int] = []
    refused: list[int] = []
    settled = threading.Semaphore(0)

    def write(number: int) -> None:
        barrier.wait(30)
        try:
            with writer_of(place) as writer:
                for index in range(3):
                    writer.write({"__key__": f"{number}-{index}", "txt": b""})
                entered.append(number)
                settled.release()
                done.wait(60)
        except ObjectExistsError:
            refused.append(number)
            settled.release()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for _ in range(count):
        assert settled.acquire(timeout=60)
    done.set()
    for thread in threads:
        thread.join()
    (winner,) = entered
    assert len(refused) == count - 1
    assert keys(place) == [f"{winner}-{index}" for index in range(3)]
    assert claims(place) == []


def test_a_writer_and_a_job_refuse_each_other(place: Place) -> None:
    """``shard_dataset`` holds the folder by the same claim."""
    source = memory_place().put(some_files(3))
    with writer_of(place) as writer:
        writer.write(SAMPLE)
        with pytest.raises(ObjectExistsError, match="another job writes there now"):
            shard_dataset(
                source, f"{place.url}{{shard:03d}}.tar", overwrite=True, storage_options=place.options, progress=False
            )

    def also_write(sample: dict[str, Any]) -> dict[str, Any]:
        with pytest.raises(ObjectExistsError, match="another job writes there now"):
            writer_of(place).write(SAMPLE)
        return sample

    shard_dataset(
        source,
        f"{place.url}{{shard:03d}}.tar",
        overwrite=True,
        transform=also_write,
        storage_options=place.options,
        progress=False,
    )
    assert len(keys(place)) == 3
    assert claims(place) == []


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("local", "empty"),
        ("memory", "refused"),
        ("local", "raises"),
        ("s3", "raises"),
        ("memory", "aborted"),
        ("local", "forgotten"),
        ("s3", "forgotten"),
        ("local", "given up"),
    ],
    indirect=["place"],
)
def test_no_claim_outlives_its_writer(place: Place, how: str) -> None:
    """However the writer ends; the next one need not wait."""
    writer = writer_of(place)
    if how == "empty":
        with pytest.raises(ShardWriteError, match="there are no samples to write"), writer:
            pass
    elif how == "refused":
        place.put({"000.tar": b"old"})
        with pytest.raises(ObjectExistsError), writer_of(place, overwrite=False):
            pytest.fail("it was entered")
    elif how == "raises":
        with contextlib.suppress(KeyboardInterrupt), writer:
            writer.write(SAMPLE)
            raise KeyboardInterrupt
    elif how == "aborted":
        writer.write(SAMPLE)
        writer.abort()
    elif how == "given up":
        pipe = WriteShards(
            IterableWrapper([{"__key__": f"{index}", "txt": b""} for index in range(9)]),
            f"{place.url}{{shard:03d}}.tar",
            max_shard_samples=1,
            storage_options=place.options,
        )
        for _ in pipe:
            break
        del pipe, _
        gc.collect()
    else:
        writer.write(SAMPLE)
        assert claims(place) == [CLAIM_NAME]
    del writer
    gc.collect()
    with writer_of(place) as after:
        after.write({"__key__": "c", "txt": b""})
    assert keys(place) == ["c"]
    assert claims(place) == []


CHILD = """
import sys, torchdata_remote as tdr
writer = tdr.ShardWriter(sys.argv[1], max_shard_samples=1, overwrite=True)
writer.write({"__key__": "child", "txt": b""})
print("writing", flush=True)
sys.stdin.read()
writer.close()
"""


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_writer_of_another_process_is_refused_until_that_one_has_ended(tmp_path: Path, how: str) -> None:
    """One that runs keeps the folder; one that was killed is taken over at once."""
    place = Place(f"{tmp_path}/d/")
    command = [sys.executable, "-c", CHILD, f"{place.url}{{shard:03d}}.tar"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        with pytest.raises(ObjectExistsError, match=f"process {child.pid} on"), writer_of(place):
            pytest.fail("it was entered")
        if how == "killed":
            child.send_signal(signal.SIGKILL)
        else:
            child.communicate("")
        child.wait()
    assert claims(place) == ([CLAIM_NAME] if how == "killed" else [])
    assert ("index.json" in place.files()) == (how == "closed")
    with writer_of(place) as writer:
        writer.write(SAMPLE)
    assert keys(place) == ["a"]


def _leave_claim_of_a_dead_process(place: Place) -> None:
    with writer_of(place) as writer:
        writer.write(SAMPLE)
        claim = json.loads(place.files()[CLAIM_NAME])
    claim["owner"]["started"] = "1"
    place.put({CLAIM_NAME: json.dumps(claim).encode()})


def test_of_two_that_take_over_one_claim_only_one_holds_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has seen that the owner is gone before the first one wrote its claim, and writes it later."""
    _leave_claim_of_a_dead_process(place)
    template = ShardTemplate(f"{place.url}{{shard:03d}}.tar")
    first, second = (Claim(ShardFolder(template, StorageOptions(place.options))) for _ in range(2))
    publish, first_goes_on, second_has_written = ShardFolder.publish, threading.Event(), threading.Event()
    late = threading.Thread(target=lambda: outcomes.append(_outcome(second)))
    outcomes: list[str] = []

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

    looked = threading.Event()
    monkeypatch.setattr(ShardFolder, "publish", publish_in_turn)
    monkeypatch.setattr("torchdata_remote.writing.claim.time.sleep", settle)
    late.start()
    looked.wait(60)
    outcomes.append(_outcome(first))
    first_goes_on.set()
    late.join()
    first.release()
    second.release()
    assert sorted(outcomes) == ["held", "refused"]


def _outcome(claim: Claim) -> str:
    try:
        claim.take()
    except ObjectExistsError:
        return "refused"
    return "held"


def test_partial_files_of_a_killed_writer_are_removed_by_the_next_one(tmp_path: Path) -> None:
    """The next writer takes over its claim, and the partial files with it."""
    place = Place(f"{tmp_path}/d/")
    command = [sys.executable, "-c", CHILD, f"{place.url}{{shard:03d}}.tar"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert [file for file in (tmp_path / "d").iterdir() if file.name.endswith(PARTIAL_SUFFIX)]
    with writer_of(place) as writer:
        writer.write(SAMPLE)
    assert not [file for file in (tmp_path / "d").iterdir() if file.name.startswith(".")]


def test_the_claim_of_a_killed_writer_is_not_resumed_by_a_job(tmp_path: Path) -> None:
    """Its shards have no manifest, so ``shard_dataset`` does not replace them unasked."""
    place = Place(f"{tmp_path}/d/")
    with writer_of(place) as writer:
        writer.write(SAMPLE)
        claim = json.loads(place.files()[CLAIM_NAME])
    claim["owner"]["started"] = "1"
    place.delete("index.json")
    place.put({CLAIM_NAME: json.dumps(claim).encode()})
    before = place.files()["000.tar"]
    source = memory_place().put(some_files(3))
    with pytest.raises(ObjectExistsError, match="exists already"):
        shard_dataset(source, f"{place.url}{{shard:03d}}.tar", progress=False)
    assert place.files()["000.tar"] == before


def test_a_writer_whose_claim_was_taken_over_publishes_nothing(place: Place) -> None:
    """Another machine took the folder: samples and manifest of its writer stay."""
    writer = writer_of(place)
    writer.write(SAMPLE)
    claim = json.loads(place.files()[CLAIM_NAME])
    claim["owner"] = {**this_process(), "host": "another"}
    place.put({CLAIM_NAME: json.dumps(claim).encode()})
    with pytest.raises(ObjectExistsError, match="on another"):
        writer.close()
    assert json.loads(place.files()[CLAIM_NAME]) == claim
    assert "index.json" not in place.files()


def test_a_heartbeat_that_finds_another_owner_stops_the_writer(tmp_path: Path) -> None:
    """With the next sample, not with the last one."""
    place = Place(f"{tmp_path}/d/")
    writer = writer_of(place)
    writer._claim = claim = Claim(
        ShardFolder(ShardTemplate(f"{place.url}{{shard:03d}}.tar"), StorageOptions()), beat_s=0.005
    )
    writer.write(SAMPLE)
    document = json.loads(place.files()[CLAIM_NAME])
    document["owner"]["token"] = "another"
    with claim._lock:  # never between a beat's look and its writing, which would put the old owner back
        place.put({CLAIM_NAME: json.dumps(document).encode()})
    claim._heartbeat.join(60)
    with pytest.raises(ObjectExistsError, match="another job"):
        writer.write({"__key__": "b", "txt": b""})
    with pytest.raises(ShardWriteError, match="aborted"):
        writer.close()
    assert json.loads(place.files()[CLAIM_NAME]) == document


def test_a_claim_costs_few_requests(moto: S3Server) -> None:
    """Looked for twice, written, read twice and removed."""
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        with ShardWriter(f"{place.url}{{shard}}.tar", storage_options=options) as writer:
            writer.write(SAMPLE)
        asked = [(one.method, one.path) for one in store.requests if CLAIM_NAME in one.path or CLAIM_NAME in one.query]
    methods = [method for method, _ in asked]
    assert methods.count("PUT") == methods.count("DELETE") == 1
    assert len(methods) <= 7
