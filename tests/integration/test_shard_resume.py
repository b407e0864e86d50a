"""Jobs that stop anywhere and are started again; and two jobs at one place."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import queue
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.servers.s3 import S3Server
from tests.support.killed_jobs import Done, Jobs, running_jobs
from tests.support.shard_places import Place, memory_place, some_files, tar_of
from torchdata_remote.core.threads import worker
from torchdata_remote.errors import ObjectExistsError, RemoteDataError, ShardWriteError
from torchdata_remote.sharding.shard_dataset import shard_dataset
from torchdata_remote.writing.claim import CLAIM_NAME, LEASE_S

FILES = some_files(17)
LIMIT = 4  # samples in a shard
NUM_SHARDS = 5
KINDS: dict[str, dict[str, Any]] = {
    "files": {"provenance": True, "labels": True},
    "tar": {},
    "gz": {"provenance": True},
    "transform": {"transform": "odd", "provenance": True},
    "compressed": {"ending": ".tar.gz", "seed": None},
    "append": {"append": True, "provenance": True},
    "overwrite": {"overwrite": True},
}


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with running_jobs() as started:
        yield started


class Case:
    """A job, done once without a disturbance, and the state that each further run of it begins with.

    Args:
        root: a folder for all of it.
        kind: one of ``KINDS``.
        jobs: run it.
    """

    def __init__(self, root: Path, kind: str, jobs: Jobs) -> None:
        self.root, self.kind, self.jobs = root, kind, jobs
        options = dict(KINDS[kind])
        self.ending = options.pop("ending", ".tar")
        self.options = {"max_shard_samples": LIMIT, **options}
        source = Place(f"{root}/in/")
        source.put({"all.tar.gz": gzip.compress(tar_of(FILES))} if kind == "gz" else {})
        source.put({"all.tar": tar_of(FILES)} if kind == "tar" else {})
        self.source = source.url if kind in ("gz", "tar") else source.put(FILES)
        self.begin = Place(f"{root}/begin/")
        Path(self.begin.url).mkdir(parents=True)
        if kind in ("append", "overwrite"):
            old = Place(f"{root}/old/")
            old.put({f"old/{name}": data for name, data in FILES.items()} if kind == "append" else FILES)
            options = {"max_shard_samples": 2, "provenance": kind == "append"}
            assert jobs.run(old.url, self.begin.template(), folder="/nowhere/", **options).error is None
        done = self.run("undisturbed")
        assert done.error is None
        self.steps, self.num_steps = done.steps, len(done.steps)
        self.expected = self.place("undisturbed").files()

    def place(self, name: str) -> Place:
        return Place(f"{self.root}/{name}/")

    def run(self, name: str, **options: Any) -> Done:
        """Run the job in a folder of this name; a new one is a copy of the initial state."""
        place = self.place(name)
        if not Path(place.url).exists():
            shutil.copytree(self.begin.url, place.url)
        return self.jobs.run(self.source, place.template(self.ending), folder=place.url, **{**self.options, **options})

    def stopped(self, name: str, step: int) -> AbstractContextManager[int]:
        """The job in a new folder, stopped before a step: its process."""
        place = self.place(name)
        return self.jobs.stopped(
            self.source, place.template(self.ending), folder=place.url, stop_at=step, **self.options
        )

    def check_again(self, name: str) -> Done:
        """A further run brings what an undisturbed one does, and leaves finished shards alone."""
        finished = journal(self.place(name))
        done = self.run(name)
        assert done.error is None, done.error
        assert self.place(name).files() == self.expected
        assert not done.written() & {entry["url"] for entry in finished.get("shardlist", ())}
        return done


def journal(place: Place) -> dict[str, Any]:
    """The journal of an unfinished job; empty if there is none."""
    path = Path(place.url, CLAIM_NAME)
    return json.loads(path.read_bytes()) if path.exists() else {}


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, jobs: Jobs) -> Case:
    return Case(tmp_path, request.param, jobs)


EVERY = pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.slow)])  # odd: steps come in pairs


def chosen_steps(case: Case, every: int) -> range:
    """Every so many steps; each kind begins at another one, so that together the kinds are stopped everywhere."""
    return range(1 + 2 * list(KINDS).index(case.kind) % every, case.num_steps + 1, every)


@EVERY
@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_a_job_killed_before_any_step_resumes_to_the_same_bytes(case: Case, every: int) -> None:
    """A real SIGKILL before a change of the folder: the next run leaves the same bytes, and nothing else."""
    for step in chosen_steps(case, every):
        done = case.run(f"{step}", stop_at=step)
        if done.status == -signal.SIGKILL:
            case.check_again(f"{step}")
        else:  # threads and heartbeats vary, so that it may end in fewer steps
            assert (done.error, step > case.num_steps // 2) == (None, True)
            assert case.place(f"{step}").files() == case.expected


@EVERY
@pytest.mark.parametrize("how", ["interrupt", "raise"])
@pytest.mark.parametrize("case", ["files", "gz"], indirect=True)
def test_a_job_interrupted_before_any_step_leaves_no_partial_file_and_resumes(case: Case, how: str, every: int) -> None:
    """Ctrl-C, and a full disk: no partial file is left, the lock is released, and the next run resumes."""
    for step in chosen_steps(case, every):
        done = case.run(f"{step}", stop_at=step, how=how)
        assert done.status == 0
        names = case.place(f"{step}").files()
        assert not [name for name in names if name.startswith(".")], names.keys()
        case.check_again(f"{step}")


@pytest.mark.parametrize("num_attempts", [2, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ["gz", "append"], indirect=True)
def test_resumed_runs_are_killed_again_and_again(case: Case, num_attempts: int) -> None:
    """Runs that resume are killed too; each makes progress."""
    chance = random.Random(5)
    for attempt in range(num_attempts):
        for _ in range(5):
            done = case.run(f"{attempt}", stop_at=chance.randint(1, case.num_steps))
            if done.status == 0:
                break
        case.check_again(f"{attempt}")


@pytest.mark.parametrize("case", ["gz"], indirect=True)
def test_the_index_of_a_compressed_archive_is_made_once(case: Case) -> None:
    """Killed after the index pass, the next run reads temporary objects only."""
    archive = f"{case.source}all.tar.gz"
    num_indexed = 0
    for step in range(1, case.num_steps + 1, 7):
        done = case.run(f"{step}", stop_at=step)
        assert archive in done.opened or step < 6
        indexed = any(Path(case.place(f"{step}").url).glob("_unfinished-index-*"))
        again = case.check_again(f"{step}")
        if indexed:
            num_indexed += 1
            assert archive not in again.opened
    assert num_indexed >= 3


def interrupted_case(case: Case, name: str) -> dict[str, Any]:
    """A job that was interrupted before its manifest, whose journal then names all shards that are finished."""
    first_of_manifest = next(number for number, step in enumerate(case.steps, 1) if "index.json" in step)
    for step in range(first_of_manifest + 1, 0, -1):
        shutil.rmtree(case.place(name).url, ignore_errors=True)
        case.run(name, stop_at=step, how="raise")
        recorded = journal(case.place(name))
        if len(recorded.get("shardlist", ())) == NUM_SHARDS and not Path(case.place(name).url, "index.json").exists():
            return recorded
    raise AssertionError("the journal never named all shards")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Any] = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-512]),
    "removed": lambda path: path.unlink(),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(512)),
    "index removed": lambda path: Path(f"{path}.idx").unlink(),
    "index truncated": lambda path: Path(f"{path}.idx").write_bytes(b""),
    "index flipped": lambda path: flip(Path(f"{path}.idx")),
    "keys removed": lambda path: Path(f"{path}.keys").unlink(),
    "keys flipped": lambda path: flip(Path(f"{path}.keys")),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_damaged_shards_are_written_again(case: Case, damage: str) -> None:
    """What an earlier run wrote is kept if it is as it was, and only then; no other shard is touched."""
    recorded = interrupted_case(case, "run")
    names = [entry["url"] for entry in recorded["shardlist"]]
    DAMAGE[damage](Path(case.place("run").url, names[2]))
    done = case.run("run")
    assert done.error is None
    assert case.place("run").files() == case.expected
    assert done.written() & set(names) == {names[2]}


def opened_shards(done: Done, recorded: dict[str, Any]) -> set[str]:
    """Base names of the recorded shards that a job has opened."""
    return {path.rpartition("/")[2] for path in done.opened} & {entry["url"] for entry in recorded["shardlist"]}


@pytest.mark.parametrize("case", ["files", "tar"], indirect=True)
def test_a_resumed_job_reads_neither_archives_nor_finished_shards_again(case: Case) -> None:
    """The index is saved, and a listing shows that the shards are as they were."""
    recorded = interrupted_case(case, "run")
    done = case.check_again("run")
    assert opened_shards(done, recorded) == set()
    assert f"{case.source}all.tar" not in done.opened


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_shards_with_other_etags_are_read_and_kept_if_their_bytes_are_the_same(case: Case) -> None:
    """Those of a journal of an earlier version, which has no etags, and those that were copied or touched."""
    recorded = interrupted_case(case, "run")
    names = {entry["url"] for entry in recorded["shardlist"]}
    shutil.copytree(case.place("run").url, case.place("old").url)
    os.utime(Path(case.place("run").url, min(names)), ns=(0, 0))
    assert opened_shards(case.check_again("run"), recorded) == {min(names)}
    del recorded["etags"]
    Path(case.place("old").url, CLAIM_NAME).write_text(json.dumps(recorded))
    assert opened_shards(case.check_again("old"), recorded) == names


@pytest.mark.parametrize("case", ["tar"], indirect=True)
def test_a_damaged_index_is_made_again(case: Case) -> None:
    """Cut off, or with a flipped bit: the archive is read again, and the result is the same."""
    for name, damage in (("run", flip), ("cut", DAMAGE["truncated"])):
        interrupted_case(case, name)
        (index,) = Path(case.place(name).url).glob("_unfinished-index-*")
        damage(index)
        assert f"{case.source}all.tar" in case.check_again(name).opened


@pytest.mark.parametrize("case", ["tar"], indirect=True)
def test_an_archive_that_changed_is_noticed_although_an_index_is_saved(case: Case) -> None:
    """Written again with the same bytes, and with others: it is another source, and no shard is touched."""
    interrupted_case(case, "run")
    before = case.place("run").files()
    archive = Path(f"{case.source}all.tar")
    for data in (archive.read_bytes(), archive.read_bytes().replace(b"0.5 0.5", b"9.9 9.9", 1)):
        archive.write_bytes(data)
        done = case.run("run")
        assert "unfinished job with another source" in (done.error or "")
        after = case.place("run").files()
        assert {name: after[name] for name in before if name != CLAIM_NAME} == {
            name: before[name] for name in before if name != CLAIM_NAME
        }


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_resume_false_writes_all_shards_again(case: Case) -> None:
    """Nothing of an unfinished job is kept, and none of it is left."""
    names = {entry["url"] for entry in interrupted_case(case, "run")["shardlist"]}
    done = case.run("run", resume=False)
    assert done.error is None
    assert done.written() >= names
    assert case.place("run").files() == case.expected


OTHER_PLANS: list[dict[str, Any]] = [
    {"seed": 1},
    {"max_shard_samples": 2},
    {"max_shard_samples": 9},
    {"labels": False},
    {"transform": "odd"},
]


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_a_job_of_another_plan_is_refused_while_one_is_unfinished(case: Case) -> None:
    """Each time, after which the unfinished one can still be finished, without writing its shards again."""
    names = {entry["url"] for entry in interrupted_case(case, "run")["shardlist"]}
    for other in [*OTHER_PLANS, OTHER_PLANS[0]]:
        done = case.run("run", **other)
        assert "unfinished job" in (done.error or ""), other
        assert not done.written() & names
    assert not case.check_again("run").written() & names


@pytest.mark.parametrize("other", OTHER_PLANS[1:3], ids=str)  # more shards, and fewer
@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_overwrite_replaces_an_unfinished_job_of_another_plan(case: Case, other: dict[str, Any]) -> None:
    """Nothing of the unfinished one is left."""
    interrupted_case(case, "replaced")
    assert case.run("replaced", overwrite=True, **other).error is None
    assert case.run("alone", **other).error is None
    assert case.place("replaced").files() == case.place("alone").files()


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_a_job_of_another_source_is_refused_while_one_is_unfinished(case: Case) -> None:
    """It is an error each time, and the unfinished one can still be finished without writing its shards again."""
    interrupted_case(case, "run")
    own_source, case.source = case.source, Place(f"{case.root}/other/").put(some_files(8, seed=2))
    for _ in range(2):
        assert "unfinished job" in (case.run("run").error or "")
    case.source = own_source
    case.check_again("run")


@pytest.mark.parametrize("case", ["gz"], indirect=True)
def test_the_index_of_another_source_is_never_used(case: Case) -> None:
    """Two compressed archives alternate in one folder, both interrupted; then one job completes."""
    other = Place(f"{case.root}/other/")
    other.put({"all.tar.gz": gzip.compress(tar_of(some_files(13, seed=9)))})
    own_source = case.source
    for step in range(1, case.num_steps // 2, 7):  # the index is written in the first few steps
        name = f"{step}"
        case.source = other.url
        case.run(name, stop_at=step + 6, overwrite=True)
        case.source = own_source
        case.run(name, stop_at=step, overwrite=True)
        done = case.run(name, overwrite=True)
        assert done.error is None
        assert case.place(name).files() == case.expected, f"stopped at {step}"


@pytest.mark.parametrize("case", ["files", "gz", "compressed", "append"], indirect=True)
def test_a_finished_job_is_not_run_again(case: Case) -> None:
    """The same call gives the same result, and changes nothing."""
    done = case.run("undisturbed")
    assert done.error is None
    assert all(name.startswith("_unfinished-") for name in done.written())
    assert case.place("undisturbed").files() == case.expected


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_a_finished_job_with_other_options_is_an_error(case: Case) -> None:
    """Nothing changes, and no journal is left, however often it is tried."""
    for other in ({"seed": 1}, {"max_shard_samples": 3}, {"resume": False}):
        for _ in range(2):
            assert "ObjectExistsError" in (case.run("undisturbed", **other).error or "")
            assert case.place("undisturbed").files() == case.expected


# S3


def big_files() -> dict[str, bytes]:
    """Four samples of 12 MB, which make two shards of two parts each."""
    chance = np.random.default_rng(0)
    return {f"{index}.bin": chance.bytes(12 << 20) for index in range(4)}


@pytest.mark.parametrize("kind", ["tar", "gz", pytest.param("parts", marks=pytest.mark.slow)])
def test_a_job_killed_on_s3_resumes_and_leaves_no_upload(moto: S3Server, tmp_path: Path, jobs: Jobs, kind: str) -> None:
    """No object of an unfinished job and no upload in parts is left; finished shards stay as they are."""
    files = big_files() if kind == "parts" else FILES
    data = tar_of(files)
    source = Place(f"{tmp_path}/in/")
    source.put({"all.tar.gz": gzip.compress(data, 1)} if kind != "tar" else {"all.tar": data})
    options = {
        "max_shard_samples": 2 if kind == "parts" else LIMIT,
        "provenance": True,
        "storage_options": moto.storage_options,
    }

    def run(place: Place, **more: Any) -> Done:
        return jobs.run(source.url, place.template(), folder="", **options, **more)

    well = Place(f"s3://{moto.new_bucket()}/", moto)
    done = run(well)
    assert done.error is None
    expected, num_steps = well.files(), len(done.steps)
    assert not [name for name in expected if name.startswith("_")]
    for step in range(1, num_steps + 1, 2 if kind == "parts" else 17):
        to = Place(f"s3://{moto.new_bucket()}/set/", moto)
        killed = run(to, stop_at=step)
        if killed.status != -signal.SIGKILL:  # threads and heartbeats vary, so that it may end in fewer steps
            assert (killed.error, step > num_steps // 2) == (None, True)
            assert to.files() == expected
            continue
        remaining = to.files()
        finished = json.loads(remaining.get(CLAIM_NAME, b'{"shardlist": []}'))["shardlist"]
        again = run(to)
        assert again.error is None
        assert to.files() == expected
        assert to.uploads() == [], f"killed before {done.steps[step - 1]}"
        assert not again.written() & {entry["url"] for entry in finished}


# Two jobs at one place


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_a_second_job_is_refused_while_the_first_one_runs(case: Case) -> None:
    """The error names the other process; as soon as that one is dead, the job runs."""
    place = case.place("run")
    with case.stopped("run", case.num_steps // 2) as pid:
        before = place.files()
        with pytest.raises(ObjectExistsError, match=f"process {pid} on"):
            shard_dataset(case.source, place.template(), progress=False, overwrite=True)
        assert place.files() == before
        os.kill(pid, signal.SIGKILL)
        assert case.jobs.wait().status == -signal.SIGKILL
    begun = time.monotonic()
    case.check_again("run")
    assert time.monotonic() - begun < LEASE_S / 2


def writes_unseen(done: Done) -> bool:
    """Whether a thread had read the claim before the job stopped, and writes it afterwards: its journal, or a beat."""
    stops, continues = (done.events.index([kind, ""]) for kind in ("stops", "continues"))
    last_read = -1
    for number, (kind, what) in enumerate(done.events):
        if kind == "opened" and what.endswith(CLAIM_NAME):
            last_read = number
        elif kind == "steps" and what.endswith(CLAIM_NAME) and number > stops and last_read < continues:
            return True
    return False


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_a_suspended_job_whose_folder_was_taken_over_fails(case: Case) -> None:
    """Stopped for so long that another one took over, it raises when it wakes, and leaves the other's work alone."""
    writing = [number for number, step in enumerate(case.steps, 1) if ".tar" in step]
    for step in (writing[0], writing[len(writing) // 2], writing[-1]):
        place = case.place(f"{step}")
        with case.stopped(f"{step}", step) as pid:
            recorded = journal(place)
            recorded["owner"] = {**recorded["owner"], "token": "another's", "host": "elsewhere", "pid": 4711}
            Path(place.url, CLAIM_NAME).write_text(json.dumps(recorded))
            os.kill(pid, signal.SIGCONT)
            done = case.jobs.wait()
        if writes_unseen(done):
            continue  # then the other one notices, which is none here
        assert "ObjectExistsError" in (done.error or "")
        assert "process 4711 on elsewhere" in (done.error or "")
        assert "index.json" not in place.files()
        assert journal(place) == recorded


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_a_suspended_job_whose_folder_was_taken_over_and_completed_fails(case: Case) -> None:
    """The manifest and its shards are unchanged."""
    place = case.place("run")
    with case.stopped("run", 8) as pid:
        shutil.rmtree(place.url)
        shutil.copytree(case.place("undisturbed").url, place.url)
        os.kill(pid, signal.SIGCONT)
        done = case.jobs.wait()
    assert "ObjectExistsError" in (done.error or "")
    assert "process None" not in (done.error or "")
    assert {name: data for name, data in place.files().items() if name in case.expected} == case.expected


def test_ctrl_c_at_any_point_of_waiting_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at the moment in which a result arrives; the job can be resumed."""
    source, well = memory_place(), memory_place()
    source.put(FILES)
    shard_dataset(source.url, well.template(), max_shard_samples=LIMIT, progress=False)
    in_vain: list[int] = []
    for strike in range(1, 2 * NUM_SHARDS):
        to, num_calls = memory_place(), 0

        def interrupted(items: Any, strike: int = strike) -> Any:
            nonlocal num_calls
            num_calls += 1
            try:
                found = items.get(timeout=5)
            except queue.Empty:
                in_vain.append(strike)  # it would wait for ever
                raise
            if num_calls == strike:
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patch:
            patch.setattr(worker, "next_item", interrupted)
            with contextlib.suppress(KeyboardInterrupt):
                shard_dataset(source.url, to.template(), max_shard_samples=LIMIT, progress=False)
        assert not in_vain
        shard_dataset(source.url, to.template(), max_shard_samples=LIMIT, progress=False)
        assert to.files() == well.files()


def test_a_second_job_of_the_same_process_is_refused() -> None:
    """Also in threads: the error names the process."""
    source, to = memory_place(), memory_place()
    source.put(FILES)
    refused: list[str] = []

    def label(path: str) -> int:
        if not refused:
            refused.append(path)
            with pytest.raises(ObjectExistsError, match=f"process {os.getpid()} on"):
                shard_dataset(source.url, to.template(), progress=False)
        return 0

    shard_dataset(source.url, to.template(), labels=label, progress=False)
    assert len(refused) == 1
    assert len(to.members()) == 2 * len(FILES)


def test_an_invalid_journal_is_an_error_and_stays_unchanged() -> None:
    """A damaged one, or one of another version; the error gives advice."""
    source, to = memory_place(), memory_place()
    source.put(FILES)
    for text in (b"", b"[]", b"{}", b'{"__kind__": "other"}', b"\xff"):
        to.put({CLAIM_NAME: text})
        with pytest.raises(RemoteDataError, match="Remove it"):
            shard_dataset(source.url, to.template(), progress=False)
        assert to.files() == {CLAIM_NAME: text}


def test_finished_shards_are_kept_after_an_exception_in_transform() -> None:
    """The next run resumes with a working transform."""
    source, to, well = memory_place(), memory_place(), memory_place()
    source.put(FILES)
    calls: list[str] = []
    fails = True

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append(sample["__key__"])
        if fails and len(calls) == 2 * len(FILES) - 1:
            raise ValueError("not this one")
        return sample

    with pytest.raises(ShardWriteError, match="not this one"):
        shard_dataset(source.url, to.template(), transform=transform, max_shard_samples=LIMIT, progress=False)
    assert "index.json" not in to.files()
    fails, calls[:] = False, []
    shard_dataset(source.url, to.template(), transform=transform, max_shard_samples=LIMIT, progress=False)
    assert len(calls) - len(FILES) < LIMIT * 2
    with contextlib.suppress(FileNotFoundError):
        well.files()
    shard_dataset(source.url, well.template(), transform=transform, max_shard_samples=LIMIT, progress=False)
    assert to.files() == well.files()
