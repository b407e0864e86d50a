"""One writer at a time in a folder, over threads, processes and jobs; a killed one is in nobody's way."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.paths import ROOT
from tests.support.shard_places import Place, memory_place, some_files
from tests.support.written import listed, shard, with_beside
from torchdata_remote.errors import ObjectExistsError, RemoteDataError, ShardWriteError

SAMPLE = {"__key__": "a", "txt": b"small"}
BUSY = "another job writes there now"


def writer_of(place: Place, *, overwrite: bool = True) -> tdr.ShardWriter:
    return tdr.ShardWriter(place.template(), overwrite=overwrite, storage_options=place.options)


def write_one(place: Place, key: str) -> None:
    with writer_of(place) as writer:
        writer.write({"__key__": key, "txt": b""})


def check_only(place: Place, *names: str) -> None:
    """These members are there, and nothing that only a writer needs."""
    assert list(place.members()) == list(names)
    assert not [name for name in place.files() if name.startswith(("_", "."))]


OTHERS: dict[str, Callable[[Place], object]] = {
    "writer": lambda place: writer_of(place, overwrite=False).write(SAMPLE),
    "pipe": lambda place: list(
        tdr.IterableWrapper([SAMPLE]).write_shards(place.template(), storage_options=place.options)
    ),
    "job": lambda place: shard(memory_place().put(some_files(3)), place, seed=7),
}


def test_a_second_writer_or_job_is_refused_and_the_first_one_loses_nothing(place: Place) -> None:
    with writer_of(place) as first:
        first.write(SAMPLE)
        for other in OTHERS.values():
            with pytest.raises(ObjectExistsError, match=BUSY):
                other(place)
    check_only(place, "a.txt")


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_a_writer_and_a_job_of_another_plan_are_refused_while_a_job_runs(place: Place) -> None:
    source, refused = memory_place().put(some_files(3)), []

    def also_write(sample: dict[str, Any]) -> dict[str, Any]:
        for other in OTHERS.values():
            with pytest.raises(RemoteDataError, match=rf"{BUSY}|an unfinished job with another|exists already"):
                other(place)
            refused.append(other)
        return sample

    shard(source, place, transform=also_write)
    assert len(refused) >= 9
    check_only(place, *place.members())
    assert place.members() == some_files(3)


def test_a_job_that_was_overtaken_while_it_planned_changes_nothing(place: Place) -> None:
    before: dict[str, bytes] = {}

    def label(path: str) -> int:
        if not before:
            shard(memory_place().put(some_files(3)), place)
            before.update(place.files())
        return 7

    with pytest.raises(ObjectExistsError, match="exists already"):
        shard(memory_place().put(some_files(5, seed=2)), place, labels=label)
    assert place.files() == before


def test_one_that_overwrites_takes_the_folder_and_the_first_writer_changes_nothing_more(place: Place) -> None:
    first = writer_of(place)
    first.write({"__key__": "old", "txt": b""})
    write_one(place, "new")
    with pytest.raises(ObjectExistsError, match="another job"):
        first.close()
    check_only(place, "new.txt")
    assert listed(place)[0][:2] == ("000000.tar", 1)


def test_of_many_threads_that_begin_at_once_one_writes_and_the_others_are_refused(place: Place) -> None:
    count = 6
    barrier, done, settled = threading.Barrier(count), threading.Event(), threading.Semaphore(0)
    entered: list[int] = []
    refused: list[int] = []

    def write(number: int) -> None:
        barrier.wait(60)
        try:
            with writer_of(place, overwrite=False) as writer:
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
    check_only(place, *(f"{winner}-{index}.txt" for index in range(3)))


ENDS = ["empty", "refused", "raises", "aborted", "given up", "forgotten"]


@pytest.mark.parametrize(("place", "how"), [*(("local", how) for how in ENDS), ("s3", "raises")], indirect=["place"])
def test_however_a_writer_ends_the_next_one_need_not_wait(place: Place, how: str) -> None:
    writer = writer_of(place)
    if how == "empty":
        with pytest.raises(ShardWriteError, match="there are no samples to write"), writer:
            pass
    elif how == "refused":
        place.put({"000000.tar": b"old"})
        with pytest.raises(ObjectExistsError), writer_of(place, overwrite=False):
            pytest.fail("it was entered")
    elif how == "raises":
        with contextlib.suppress(KeyboardInterrupt), writer:
            writer.write(SAMPLE)
            raise KeyboardInterrupt
    elif how == "given up":
        samples = tdr.IterableWrapper([{"__key__": f"{index}", "txt": b""} for index in range(9)])
        pipe = samples.write_shards(place.template(), max_shard_samples=1, storage_options=place.options)
        for _ in pipe:
            break
        del pipe, _
    else:
        writer.write(SAMPLE)
        if how == "aborted":
            writer.abort()
    del writer
    gc.collect()
    write_one(place, "c")
    check_only(place, "c.txt")


def keys_of(place: Place) -> list[tuple[str]]:
    return list(tdr.stream_shards(place.url, shuffle=False, storage_options=place.options).to_tuple("__key__"))


def test_shards_that_a_stopped_writer_replaced_in_part_are_read_with_a_warning(place: Place) -> None:
    def write(prefix: str, count: int) -> None:
        template = place.template()
        with tdr.ShardWriter(template, max_shard_samples=1, overwrite=True, storage_options=place.options) as writer:
            for number in range(9):
                if number == count:
                    raise KeyboardInterrupt
                writer.write({"__key__": f"{prefix}{number}", "txt": b""})

    write("old", 9)
    with contextlib.suppress(KeyboardInterrupt):
        write("new", 3)
    with pytest.warns(RuntimeWarning, match=r"'_unfinished-job\.json': a writer is at work there, or was stopped"):
        assert {name[:3] for (name,) in keys_of(place)} == {"old", "new"}
    write("again", 9)
    assert {name[:5] for (name,) in keys_of(place)} == {"again"}


WRITER = """
import json, sys, torchdata_remote as tdr
template, options = sys.argv[1], json.loads(sys.argv[2])
writer = tdr.ShardWriter(template, max_shard_samples=2, overwrite=True, storage_options=options)
for number in range(5):
    writer.write({"__key__": f"child-{number}", "bin": bytes(10_000_000)})
print("writing", flush=True)
sys.stdin.read()
writer.close()
"""


def started(place: Place) -> subprocess.Popen[str]:
    """A process in the middle of its third shard."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, place.template(), json.dumps(place.options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    return child


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_a_writer_of_another_process_is_refused_until_that_one_has_ended(tmp_path: Path, how: str) -> None:
    place = Place(f"{tmp_path}/d/")
    with started(place) as child:
        with pytest.raises(ObjectExistsError), writer_of(place, overwrite=False):
            pytest.fail("it was entered")
        if how == "killed":
            child.kill()
        else:
            child.communicate("")
        child.wait()
    assert ("index.json" in place.files()) == (how == "closed")
    if how == "killed":
        before = place.files()
        assert [name for name in before if name.startswith(".")], "a partial shard"
        with pytest.raises(ObjectExistsError, match="exists already"):
            shard(memory_place().put(some_files(3)), place)
        assert {name: data for name, data in place.files().items() if ".tar" in name and name[0] != "."} == {
            name: data for name, data in before.items() if ".tar" in name and name[0] != "."
        }
    write_one(place, "a")
    check_only(place, "a.txt")


def test_uploads_of_a_killed_writer_are_removed_by_the_next_one_and_those_of_others_stay(moto: S3Server) -> None:
    bucket = moto.new_bucket()
    place, client = Place(f"s3://{bucket}/d/", moto), moto.client()
    others = ["d/deep/000003.tar", "d/000003.tar.gz", "d/x.tar", "d/0000003.tar", "000003.tar"]
    with started(place) as child:
        child.kill()
        child.wait()
    assert place.uploads(), "a partial shard"
    for key in [*others, "d/000007.tar", "d/000004.tar.idx", "d/000004.tar.keys", "d/index.json"]:
        client.create_multipart_upload(Bucket=bucket, Key=key)
    write_one(place, "a")
    check_only(place, "a.txt")
    left = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert sorted(upload["Key"] for upload in left) == sorted(others)


AT_EXIT = """
import sys, torchdata_remote as tdr
writer = tdr.ShardWriter(sys.argv[1], max_shard_samples=2, overwrite=True)
for number in range(int(sys.argv[2])):
    writer.write({"__key__": f"{number}", "bin": bytes(3_000_000)})
"""


def test_a_program_that_ends_without_closing_leaves_whole_shards(tmp_path: Path) -> None:
    place = Place(f"{tmp_path}/")
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, place.template(), "3"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(place.files()) == sorted([*with_beside("000000.tar"), "_unfinished-job.json"])
    write_one(place, "a")
    check_only(place, "a.txt")


def test_a_writer_whose_claim_has_gone_publishes_no_manifest(place: Place) -> None:
    writer = writer_of(place)
    writer.write(SAMPLE)
    place.delete("_unfinished-job.json")
    place.put({"index.json": b"another's"})
    with pytest.raises(ObjectExistsError, match="another job"):
        writer.close()
    assert place.files()["index.json"] == b"another's"


def test_a_writer_that_was_overtaken_leaves_the_manifest_of_the_other_one() -> None:
    place = memory_place()
    first = writer_of(place)
    first.__enter__()
    with writer_of(place) as second:
        second.write({"__key__": "b", "txt": b"", "cls": 1})
    with pytest.raises(ObjectExistsError):
        first.write(SAMPLE)
    first.abort()
    check_only(place, "b.cls", "b.txt")
    assert "index.json" in place.files()
