"""``shard_dataset`` that was stopped anywhere: the same call again brings the same bytes."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.killed_jobs import Done, Jobs, running_jobs
from tests.support.shard_places import Place, memory_place, some_files, tar_of
from tests.support.written import shard
from torchdata_remote.errors import RemoteDataError, ShardWriteError

FILES = some_files(17)
LIMIT = 4  # samples in a shard
NUM_SHARDS = 5
SHARDS = {f"{number:06d}.tar" for number in range(NUM_SHARDS)}
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
            old = memory_place()
            old.put({f"old/{name}": data for name, data in FILES.items()} if kind == "append" else FILES)
            shard(old.url, self.begin, max_shard_samples=2, provenance=kind == "append")
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

    def check_again(self, name: str) -> Done:
        """A further run brings what an undisturbed one does."""
        done = self.run(name)
        assert done.error is None, done.error
        assert self.place(name).files() == self.expected
        return done

    def interrupted(self, name: str) -> Path:
        """A folder in which the job was interrupted between its last shard and its manifest."""
        folder = Path(self.place(name).url)
        for step in range(self.num_steps + 3, 0, -1):  # threads vary
            shutil.rmtree(folder, ignore_errors=True)
            self.run(name, stop_at=step, how="raise")
            if {*os.listdir(folder)} >= SHARDS and not (folder / "index.json").exists():
                return folder
        raise AssertionError("it never ended between the last shard and the manifest")


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path, jobs: Jobs) -> Case:
    return Case(tmp_path, request.param, jobs)


EVERY = pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])  # odd: steps come in pairs


def chosen_steps(case: Case, every: int) -> range:
    """Every so many steps; each kind begins at another one, so that together the kinds are stopped everywhere."""
    return range(1 + 4 * list(KINDS).index(case.kind) % every, case.num_steps + 1, every)


@EVERY
@pytest.mark.parametrize("case", KINDS, indirect=True)
def test_a_job_killed_before_any_step_is_continued_to_the_same_bytes(case: Case, every: int) -> None:
    for step in chosen_steps(case, every):
        done = case.run(f"{step}", stop_at=step)
        if done.status == -signal.SIGKILL:
            case.check_again(f"{step}")
        else:  # threads vary, so that it may end in fewer steps
            assert (done.error, step > case.num_steps // 2) == (None, True)
            assert case.place(f"{step}").files() == case.expected


@EVERY
@pytest.mark.parametrize("how", ["interrupt", "raise"])
@pytest.mark.parametrize("case", ["files", "gz"], indirect=True)
def test_a_job_interrupted_before_any_step_leaves_no_partial_file_and_is_continued(
    case: Case, how: str, every: int
) -> None:
    for step in chosen_steps(case, every):
        done = case.run(f"{step}", stop_at=step, how=how)
        assert done.status == 0
        assert not [name for name in case.place(f"{step}").files() if name.startswith(".")]
        case.check_again(f"{step}")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gz", "append"], indirect=True)
def test_continued_jobs_are_killed_again_and_again(case: Case) -> None:
    chance = random.Random(5)
    for attempt in range(12):
        for _ in range(5):
            done = case.run(f"{attempt}", stop_at=chance.randint(1, case.num_steps))
            if done.status == 0:
                break
        case.check_again(f"{attempt}")


@pytest.mark.parametrize("case", ["files", "tar", "gz"], indirect=True)
def test_a_continued_job_neither_reads_archives_nor_reads_or_writes_finished_shards_again(case: Case) -> None:
    case.interrupted("run")
    done = case.check_again("run")
    assert not SHARDS & {path.rpartition("/")[2] for path in done.opened}
    assert not SHARDS & done.written()
    assert not [path for path in done.opened if path.startswith(f"{case.source}all.tar")]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_unseen(path: Path) -> None:
    """With the times set back, as a faulty tool or a restored backup does it."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a file system has ticks
        flip(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": flip_unseen,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-512]),
    "removed": Path.unlink,
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(512)),
    "index removed": lambda path: Path(f"{path}.idx").unlink(),
    "index truncated": lambda path: Path(f"{path}.idx").write_bytes(b""),
    "index flipped": lambda path: flip(Path(f"{path}.idx")),
    "keys removed": lambda path: Path(f"{path}.keys").unlink(),
    "keys flipped": lambda path: flip_unseen(Path(f"{path}.keys")),
}


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_only_finished_shards_that_are_as_they_were_are_kept(case: Case) -> None:
    """Whatever happened to one, to its index or to its keys, it is written again, and no other one is."""
    for run, damages in enumerate(([*DAMAGE.values()][:4], [*DAMAGE.values()][4:8], [*DAMAGE.values()][8:])):
        folder, victims = case.interrupted(f"{run}"), [f"{number:06d}.tar" for number in range(len(damages))]
        for victim, damage in zip(victims, damages, strict=True):
            damage(folder / victim)
        assert case.check_again(f"{run}").written() & SHARDS == {*victims}


@pytest.mark.parametrize("case", ["tar", "gz"], indirect=True)
@pytest.mark.parametrize("damage", ["flipped", "truncated", "removed"])
def test_damage_of_what_a_stopped_job_left_for_itself_never_changes_the_result(case: Case, damage: str) -> None:
    folder = case.interrupted("run")
    for path in folder.glob("_unfinished-index-*"):
        DAMAGE[damage](path)
    for name in SHARDS:  # all are written again
        (folder / name).unlink()
    case.check_again("run")


@pytest.mark.parametrize("case", ["tar"], indirect=True)
def test_an_archive_that_changed_is_another_source_and_no_shard_is_touched(case: Case) -> None:
    folder = case.interrupted("run")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "_unfinished-job.json"}
    archive = Path(f"{case.source}all.tar")
    for data in (archive.read_bytes(), archive.read_bytes().replace(b"0.5 0.5", b"9.9 9.9", 1)):
        archive.write_bytes(data)
        assert "unfinished job with another source" in (case.run("run").error or "")
        assert before.items() <= case.place("run").files().items()


OTHER_PLANS: list[dict[str, Any]] = [
    {"seed": 1},
    {"max_shard_samples": 2},
    {"max_shard_samples": 9},
    {"max_shard_bytes": 3000},
    {"labels": False},
    {"transform": "odd"},
]


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_a_job_of_another_plan_or_source_is_refused_while_one_is_unfinished(case: Case) -> None:
    case.interrupted("run")
    for other in OTHER_PLANS:
        done = case.run("run", **other)
        assert "unfinished job" in (done.error or ""), other
        assert not done.written() & SHARDS
    own_source, case.source = case.source, Place(f"{case.root}/other/").put(some_files(8, seed=2))
    assert "unfinished job" in (case.run("run").error or "")
    case.source = own_source
    assert not case.check_again("run").written() & SHARDS


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_overwrite_and_resume_false_keep_nothing_of_an_unfinished_job(case: Case) -> None:
    for number, other in enumerate(OTHER_PLANS[1:3]):  # more shards, and fewer
        case.interrupted(f"{number}")
        assert case.run(f"{number}", overwrite=True, **other).error is None
        assert case.run(f"alone-{number}", **other).error is None
        assert case.place(f"{number}").files() == case.place(f"alone-{number}").files()
    case.interrupted("again")
    done = case.run("again", resume=False)
    assert (done.error, done.written() & SHARDS) == (None, SHARDS)
    assert case.place("again").files() == case.expected


@pytest.mark.parametrize("case", ["tar"], indirect=True)
def test_resume_false_reads_the_archives_again(case: Case) -> None:
    case.interrupted("run")
    assert f"{case.source}all.tar" in case.run("run", resume=False).opened
    assert case.place("run").files() == case.expected


@pytest.mark.parametrize("case", ["gz"], indirect=True)
def test_the_index_of_another_source_is_never_used(case: Case) -> None:
    other = Place(f"{case.root}/other/")
    other.put({"all.tar.gz": gzip.compress(tar_of(some_files(13, seed=9)))})
    own_source = case.source
    for step in (1, 15):  # the index is written in the first few steps
        for case.source, stop_at in ((other.url, step + 6), (own_source, step), (own_source, 0)):
            done = case.run(f"{step}", stop_at=stop_at, overwrite=True)
        assert done.error is None
        assert case.place(f"{step}").files() == case.expected


@pytest.mark.parametrize(
    "kind", ["gz", pytest.param("tar", marks=pytest.mark.slow), pytest.param("parts", marks=pytest.mark.slow)]
)
def test_a_job_killed_on_s3_is_continued_and_leaves_no_upload(
    moto: S3Server, tmp_path: Path, jobs: Jobs, kind: str
) -> None:
    chance = np.random.default_rng(0)
    files = {f"{index}.bin": chance.bytes(12 << 20) for index in range(4)} if kind == "parts" else FILES
    source = Place(f"{tmp_path}/in/")
    data = tar_of(files)
    source.put({"all.tar.gz": gzip.compress(data, 1)} if kind != "tar" else {"all.tar": data})
    limit = 2 if kind == "parts" else LIMIT

    def run(place: Place, **more: Any) -> Done:
        options = {"max_shard_samples": limit, "provenance": True, "storage_options": moto.storage_options}
        return jobs.run(source.url, place.template(), folder="", **options, **more)

    well = Place(f"s3://{moto.new_bucket()}/", moto)
    num_steps = len(run(well).steps)
    expected = well.files()
    assert not [name for name in expected if name.startswith("_")]
    for step in range(3, num_steps + 1, 2 if kind == "parts" else 23):
        to = Place(f"s3://{moto.new_bucket()}/set/", moto)
        killed = run(to, stop_at=step)
        if killed.status != -signal.SIGKILL:  # threads vary, so that it may end in fewer steps
            assert (killed.error, step > num_steps // 2) == (None, True)
        else:
            assert run(to).error is None
        assert to.files() == expected
        assert to.uploads() == []


# Two jobs at one place


@pytest.mark.parametrize("case", ["files"], indirect=True)
def test_a_job_of_another_plan_is_refused_while_one_runs_and_the_same_one_takes_over(case: Case) -> None:
    place = case.place("run")
    with case.jobs.stopped(
        case.source, place.template(), folder=place.url, stop_at="000002.tar", **case.options
    ) as pid:
        before = place.files()
        with pytest.raises(ShardWriteError, match="unfinished job"):
            shard(case.source, place, seed=5)
        assert place.files() == before
        assert shard(case.source, place, provenance=True, labels=tdr.labels.parent_directory(), max_shard_samples=LIMIT)
        assert place.files() == case.expected
        os.kill(pid, signal.SIGCONT)
        assert "ObjectExistsError" in (case.jobs.wait().error or "")
    assert place.files() == case.expected


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b'{"__kind__": "other"}', b"\xff", b"[" * 100_000],
    ids=["empty", "list", "object", "another kind", "no text", "deep"],
)
def test_an_invalid_record_of_an_unfinished_job_is_an_error_with_advice_and_stays(text: bytes) -> None:
    source, to = memory_place(), memory_place()
    to.put({"_unfinished-job.json": text})
    with pytest.raises(RemoteDataError, match="Remove it"):
        shard(source.put(FILES), to)
    assert to.files() == {"_unfinished-job.json": text}


@pytest.mark.parametrize("error", [ValueError("not this one"), KeyboardInterrupt()], ids=repr)
def test_shards_finished_before_an_exception_of_a_transform_are_kept(tmp_path: Path, error: BaseException) -> None:
    source, well = memory_place(), memory_place()
    source.put(FILES)
    calls: list[str] = []
    fails_at = 0

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append(sample["__key__"])
        if len(calls) == fails_at:
            raise error
        return sample

    shard(source.url, well, transform=transform, max_shard_samples=LIMIT)
    for fails_at in (3, len(FILES) + 1, len(FILES) + LIMIT + 1, 2 * len(FILES) - 1):
        to = Place(f"{tmp_path}/{fails_at}/")
        calls.clear()
        with pytest.raises((ShardWriteError, KeyboardInterrupt)):
            shard(source.url, to, transform=transform, max_shard_samples=LIMIT)
        assert "index.json" not in to.files()
        num_before, fails_at = fails_at - len(FILES), 0  # all of them are measured first
        calls.clear()
        shard(source.url, to, transform=transform, max_shard_samples=LIMIT)
        assert len(calls) - len(FILES) <= len(FILES) - max(0, num_before // LIMIT - 1) * LIMIT
        assert to.files() == well.files()


def test_the_index_that_an_unfinished_job_leaves_has_no_url_of_its_source(tmp_path: Path) -> None:
    """One may have a signature."""
    source, to = Place(f"{tmp_path}/in/"), Place(f"{tmp_path}/out/")
    source.put({"all.tar": tar_of(FILES)})

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(sample["__key__"])

    with pytest.raises(ShardWriteError, match="transform failed"):
        shard(f"{source.url}all.tar", to, transform=fail)
    (index,) = (data for name, data in to.files().items() if name.startswith("_unfinished-index"))
    assert b"names.data" in zlib.decompress(index)
    assert b"all.tar" not in index + zlib.decompress(index)
