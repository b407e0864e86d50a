"""``shard_dataset`` beside what is there already: added, replaced or refused, and never a mixture."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import make_member
from tests.support.shard_places import Place, memory_place, some_files, tar_of
from tests.support.written import Items, check_beside, listed, shard, told, with_beside
from torchdata_remote import labels
from torchdata_remote.errors import (
    BadMemberError,
    EmptyListingError,
    ObjectChangedError,
    ObjectExistsError,
    RemoteDataError,
    ShardReadError,
    ShardWriteError,
    StorageError,
)
from torchdata_remote.testing import Faults

FILES = some_files(30)


# Append


def test_append_adds_shards_and_classes_and_changes_nothing_that_is_there(place: Place) -> None:
    first, second, to = place.below("first"), place.below("second"), place.below("shards")
    first.put({"cat/1.x": b"1", "dog/2.x": b"2"})
    second.put({"ant/3.x": b"3", "dog/4.x": b"4"})
    given: dict[str, Any] = {"labels": labels.parent_directory(), "provenance": True, "max_shard_samples": 1}
    old = shard(first.url, to, append=True, **given)
    before = to.files()
    new = shard(second.url, to, append=True, **given)
    after = to.files()
    assert all(after[name] == data for name, data in before.items() if ".tar" in name or "provenance" in name)
    assert listed(to) == told([*old, *new])
    assert [name for name, *_ in told(new)] == ["000002.tar", "000003.tar"]
    table = json.loads(after["classes.json"])
    assert {key: entry["id"] for key, entry in table.items()} == {"cat": 0, "dog": 1, "ant": 2}
    members = to.members()
    assert [members[f"{name}.cls"] for name in ("cat/1", "dog/2", "ant/3", "dog/4")] == [b"0", b"1", b"2", b"1"]
    check_beside(to)
    assert shard(second.url, to, append=True, **given) == new, "the same job is not done twice"
    assert to.files() == after
    shard(second.url, to, append=True, resume=False, **given)
    assert len(listed(to)) == 6, "unless resume=False"


def test_provenance_of_several_jobs_with_the_same_paths_is_kept_apart() -> None:
    to = memory_place()
    for text in (b"one", b"two"):
        shard(memory_place().put({"1.x": text}), to, provenance=True, append=True)
    files = to.files()
    found = [json.loads(files[name])["1.x"]["targetFile"] for name in ("provenance.json", "provenance-000001.json")]
    assert found == ["000000.tar", "000001.tar"]


def test_append_never_renumbers_the_classes_of_a_dataset() -> None:
    to = memory_place()
    shard(memory_place().put({"dog/1.x": b"", "emu/2.x": b""}), to, labels=labels.parent_directory())
    before = to.files()
    with pytest.raises(RemoteDataError, match="cat"):
        shard(Items([(b"x", 0)]), to, append=True)
    assert to.files() == before


def test_append_beside_shards_that_the_manifest_does_not_name_is_refused() -> None:
    to = memory_place()
    shard(memory_place().put({"1.x": b""}), to)
    to.put({"000007.tar": b"precious"})
    with pytest.raises(ObjectExistsError, match=r"000007\.tar"):
        shard(memory_place().put({"2.x": b""}), to, append=True)
    assert to.files()["000007.tar"] == b"precious"


# Replaced, or left alone


def test_existing_shards_are_an_error_and_stay_as_they_are(place: Place) -> None:
    source, to, bare = place.below("source"), place.below("shards"), place.below("bare")
    other = place.below("other")
    other.put({"1.x": b"1"})
    shard(source.put(FILES), to)
    bare.put({"000000.tar": b"precious"})
    for destination in (to, bare):
        before = destination.files()
        for _ in range(2):
            with pytest.raises(ObjectExistsError, match="overwrite=True"):
                shard(other.url, destination)
            assert destination.files() == before


@pytest.mark.parametrize("given", [{}, {"ending": ".tar.gz"}, {"append": True, "provenance": True}], ids=str)
def test_a_finished_job_is_not_done_again(tmp_path: Path, given: dict[str, Any]) -> None:
    source, to = memory_place(), Place(f"{tmp_path}/")
    source.put({"all.tar.gz": gzip.compress(tar_of(FILES))})
    infos = shard(source.url, to, max_shard_samples=9, **given)
    files, times = to.files(), {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert shard(source.url, to, max_shard_samples=9, **given) == infos
    assert to.files() == files
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times


@pytest.mark.parametrize(
    "other",
    [{"seed": 1}, {"max_shard_samples": 3}, {"max_shard_bytes": 5000}, {"resume": False}, {"provenance": True}],
    ids=str,
)
def test_a_finished_job_with_other_options_is_an_error_however_often_it_is_tried(other: dict[str, Any]) -> None:
    source, to = memory_place(), memory_place()
    shard(source.put(FILES), to)
    before = to.files()
    for _ in range(2):
        with pytest.raises(ObjectExistsError):
            shard(source.url, to, **other)
        assert to.files() == before


@pytest.mark.parametrize(
    "change", [{"9.x": b"new"}, {"class-0/00000.txt": b"of another size"}], ids=["more", "another"]
)
def test_a_job_is_another_one_if_its_source_has_changed(change: dict[str, bytes]) -> None:
    source, to = memory_place(), memory_place()
    shard(source.put(FILES), to)
    source.put(change)
    with pytest.raises(ObjectExistsError):
        shard(source.url, to)
    with pytest.raises(ObjectExistsError):
        shard(source.url, to, pattern="*.txt", labels=labels.parent_directory())


def test_shards_of_equal_size_with_other_contents_are_another_source() -> None:
    source, to = memory_place(), memory_place()
    shard([{"txt": "one"}], source)
    shard(f"{source.url}index.json", to)
    shard([{"txt": "two"}], source, overwrite=True)
    with pytest.raises(ObjectExistsError):
        shard(f"{source.url}index.json", to)


def test_a_finished_job_of_a_dataset_or_with_a_transform_is_not_taken_for_the_same() -> None:
    to, other, source = memory_place(), memory_place(), memory_place()
    shard(Items([("a", 1)] * 3), to)
    with pytest.raises(ObjectExistsError):
        shard(Items([("b", 1)] * 3), to)
    shard(Items([("b", 1)] * 3), to, append=True)
    assert sum(count for _, count, _, _ in listed(to)) == 6
    shard(source.put({"1.x": b"1"}), other, transform=lambda sample: {**sample, "x": b"2"})
    with pytest.raises(ObjectExistsError):
        shard(source.url, other, transform=lambda sample: {**sample, "x": b"3"})


def test_overwrite_removes_all_old_shards_and_descriptions(place: Place) -> None:
    source, to = place.below("in"), place.below("out")
    source.put(FILES)
    shard(source.url, to, max_shard_samples=3, labels=labels.parent_directory(), provenance=True)
    shard(memory_place().put({"2.x": b"2"}), to, provenance=True, append=True, source_options={})
    to.put({"000099.tar.keys": b"old", "notes.txt": b"kept"})
    shard(source.url, to, max_shard_samples=20, overwrite=True)
    assert sorted(to.files()) == [*with_beside("000000.tar", "000001.tar"), "index.json", "notes.txt"]
    assert to.members() == FILES


def test_a_folder_of_another_template_is_refused() -> None:
    source, to = memory_place(), memory_place()
    shard(source.put(FILES), to)
    before = to.files()
    with pytest.raises(ObjectExistsError, match="other shards"):
        tdr.shard_dataset(source.url, f"{to.url}val-{{shard}}.tar", progress=False, overwrite=True)
    assert to.files() == before


@pytest.mark.parametrize("source", ["", "*.tar", "{000000..000001}.tar", "000000.tar", "index.json"])
def test_shards_are_not_written_over_their_source(tmp_path: Path, source: str) -> None:
    to = Place(f"{tmp_path}/")
    shard(memory_place().put(FILES), to, max_shard_samples=15)
    before = to.files()
    with pytest.raises(RemoteDataError):
        shard(to.url + source, to, max_shard_samples=4, overwrite=True)
    assert to.files() == before


def test_shards_are_not_written_into_the_source_folder(place: Place) -> None:
    place.put(FILES)
    for to in (place, place.below("shards")):
        with pytest.raises(ShardWriteError, match="is inside the source"):
            shard(place.url, to)
    assert place.files() == FILES


# What is refused


def test_a_source_without_samples_is_an_error_and_changes_nothing() -> None:
    source, to, empty = memory_place(), memory_place(), memory_place()
    shard(source.put(FILES), to)
    before = to.files()
    with pytest.raises(EmptyListingError):
        shard(empty.url, to, overwrite=True)
    for data in (tar_of({}), tar_of({"a.tar": tar_of({})})):
        empty.put({"empty.tar": data})
        with pytest.warns(RuntimeWarning, match=r"empty\.tar.*without a single sample"):  # noqa: SIM117
            with pytest.raises(RemoteDataError):
                shard(f"{empty.url}empty.tar", to, overwrite=True)
    with pytest.raises(RemoteDataError):
        shard(Items([]), to, overwrite=True)
    assert to.files() == before


@pytest.mark.parametrize("name", ["b.jpg", "provenance-x.json"])
def test_archives_beside_files_are_an_error_that_names_both_and_a_pattern_chooses(name: str) -> None:
    source, to = memory_place(), memory_place()
    source.put({"a.tar": tar_of({"1.x": b"1"}), name: b"2"})
    with pytest.raises(ShardReadError, match=rf"a\.tar.*{name}.*pattern="):
        shard(source.url, memory_place())
    shard(source.url, to, pattern="*.tar")
    assert to.members() == {"1.x": b"1"}


def test_a_manifest_of_other_shards_than_there_are_is_an_error() -> None:
    source, to = memory_place(), memory_place()
    shard(memory_place().put(FILES), source, max_shard_samples=16)
    files = source.files()
    source.put({"000002.tar": files["000001.tar"]})
    with pytest.raises(ShardReadError, match=r"000002\.tar is not named by"):
        shard(source.url, to)
    shard(f"{source.url}index.json", to)
    assert to.members() == FILES
    source.delete("000002.tar")
    source.put({"000001.tar": files["000001.tar"] + bytes(512)})
    with pytest.raises(ShardReadError, match=r"000001\.tar has .* bytes, and its manifest says"):
        shard(source.url, memory_place())
    source.put({**files, "index.json": files["index.json"].replace(b'"nsamples": 14', b'"nsamples": 15')})
    with pytest.raises(ShardReadError, match="has 14 samples, and its manifest says 15"):
        shard(source.url, memory_place())


@pytest.mark.parametrize("name", [".hidden", "README", "a/.backup", "a/__meta__.json__", "a.__key__", "d/.jpg"])
def test_a_file_that_cannot_be_a_member_is_named_with_advice(name: str) -> None:
    with pytest.raises(BadMemberError, match=re.escape(name) + r" cannot be part of a sample.*pattern="):
        shard(memory_place().put({"a/1.jpg": b"", name: b""}), memory_place())


INNER = tar_of({"00.txt": b"0" * 700, "01.txt": b"1"})
DAMAGED: dict[str, tuple[bytes, str]] = {
    "truncated": (tar_of(FILES)[:9_000], ""),
    "without its end": (tar_of(FILES)[:-10_240], ""),
    "header flipped": (tar_of(FILES)[:1030] + b"\xff" + tar_of(FILES)[1031:], ""),
    "no tar": (b"hello" * 300, ""),
    "empty": (b"", ""),
    "inner archive cut": (tar_of({"cat.tar": INNER, "dog.tar": INNER[:700]}), r".*dog\.tar"),
    "file beside inner archives": (tar_of({"1.tar": INNER, "2.x": b"2"}), r".*2\.x"),
    "member twice": (tar_of([("1.x", b"1"), ("2.x", b"2"), ("1.x", b"3")]), ".*1"),
    "key comes back": (tar_of([("1.x", b"1"), ("2.x", b"2"), ("1.y", b"3")]), ".*1"),
    "one name in two spellings": (tar_of([("1.x", b"1"), ("./1.x", b"2")]), ".*1"),
    "case": (tar_of([("1.x", b"1"), ("1.X", b"2")]), ".*1"),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_archive_is_named_before_anything_is_written(what: str, compressed: bool) -> None:
    source, to = memory_place(), memory_place()
    data, more = DAMAGED[what]
    source.put({"bad.tar.gz" if compressed else "bad.tar": gzip.compress(data) if compressed else data})
    with pytest.raises(ShardReadError, match=rf"bad\.tar{more}"):
        shard(source.url, to)
    assert not [name for name in to.files() if ".tar" in name or name == "index.json"]


def test_two_samples_with_one_key_are_an_error() -> None:
    source = memory_place()
    source.put({f"{name}.tar": tar_of({"x/1.a": b"", "x/1.b" if name == "t" else "1.b": b""}) for name in "st"})
    shard(source.url, memory_place())
    source.put({"t.tar.gz": gzip.compress(tar_of({"x/1.c": b""}))})
    with pytest.raises(ShardReadError):
        shard(source.url, memory_place())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("caf\udce9.jpg", "surrogate"),
        ("large.jpg", "max_member_bytes=1,000"),
    ],
)
def test_members_that_readers_would_refuse_are_found_before_anything_is_written(name: str, says: str) -> None:
    source, to = memory_place(), memory_place()
    files = {"good.jpg": b"x" * 1000, name: b"x" * 1001 if name == "large.jpg" else b""}
    source.put({"a.tar": tar_of(files, tar_format=tarfile.GNU_FORMAT)})
    with pytest.raises(ShardWriteError, match=says):
        shard(f"{source.url}a.tar", to, max_member_bytes=1000)
    assert not [found for found in to.files() if ".tar" in found]


@pytest.mark.parametrize(
    ("length", "labelled", "fits"), [(4_094, False, True), (4_093, True, False), (4_092, True, True)]
)
def test_the_longest_names_fit_with_their_labels(length: int, labelled: bool, fits: bool) -> None:
    source, to = memory_place(), memory_place()
    source.put({"a.tar": tar_of({"x" * length + ".c": b"1"})})
    given: dict[str, Any] = {"labels": lambda path: 7} if labelled else {}
    if not fits:
        with pytest.raises(ShardWriteError, match="4,097 characters"):
            shard(f"{source.url}a.tar", to, **given)
        return
    shard(f"{source.url}a.tar", to, **given)
    assert to.members()["x" * length + ".c"] == b"1"


@pytest.mark.parametrize("name", ["../up.x", "/absolute.x", "a/../../b.x"])
def test_names_that_leave_their_folder_are_refused(name: str) -> None:
    source = memory_place()
    source.put({"a.tar": make_member(name.encode(), b"x") + bytes(1024)})
    with pytest.raises(RemoteDataError, match=re.escape(name)):
        shard(f"{source.url}a.tar", memory_place())


def test_a_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    Path(tmp_path, os.fsdecode(b"\xff.txt")).write_bytes(b"")
    with pytest.raises(RemoteDataError, match="udcff"):
        shard(tmp_path, memory_place())


@pytest.mark.parametrize(
    ("source", "given", "error", "what"),
    [
        ("files", {"max_shard_bytes": 0}, ValueError, "max_shard_bytes"),
        ("files", {"max_shard_samples": 0}, ValueError, "max_shard_samples"),
        ("files", {"num_workers": -1}, ValueError, "num_workers"),
        ("files", {"num_workers": 1}, ValueError, "memory:// exists in one process only"),
        ("files", {"append": True, "overwrite": True}, ValueError, "choose one"),
        (3, {}, TypeError, "map-style"),
        (iter([]), {}, TypeError, "map-style"),
        ({1, 2}, {}, TypeError, "map-style"),
        ([(b"x", 1)], {"labels": labels.parent_directory()}, TypeError, "for files"),
        ([(b"x", 1)], {"pattern": "*.x"}, TypeError, "for files"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_is_written(
    source: Any, given: dict[str, Any], error: type[Exception], what: str
) -> None:
    to = memory_place()
    with pytest.raises(error, match=what):
        shard(memory_place().put(FILES) if source == "files" else source, to, **given)
    assert to.files() == {}


# Faults of the store


@pytest.mark.parametrize(
    "faults",
    [
        {"slow_down": 0.2, "internal_error": 0.1},
        {"reset": 0.1, "early_end": 0.1, "reset_in_body": 0.1},
        {"cut_body": 0.1, "short_range": 0.1, "ignored_range": 0.1, "shifted_range": 0.1},
    ],
    ids=["busy", "resets", "short"],
)
def test_faults_while_reading_do_not_change_the_shards(moto: S3Server, faults: dict[str, Any]) -> None:
    source = Place(f"s3://{moto.new_bucket()}/", moto)
    source.put({"train.tar": tar_of({"a.tar": tar_of(FILES)})})
    source.below("files").put(FILES)
    for what in ("train.tar", "files/"):
        well, to = memory_place(), memory_place()
        shard(source.url + what, well, max_shard_samples=9, source_options=moto.storage_options)
        with faulty(moto, Faults(**faults), seed=1) as (server, store):
            shard(source.url + what, to, max_shard_samples=9, source_options=server.storage_options)
            assert sum(store.counts.values()) > store.counts["well"]
        assert to.files() == well.files()


def test_faults_while_writing_do_not_change_the_shards(moto: S3Server) -> None:
    source, well, to = memory_place(), memory_place(), Place(f"s3://{moto.new_bucket()}/", moto)
    shard(source.put(FILES), well, max_shard_samples=9)
    faults = Faults(slow_down=0.1, internal_error=0.05, methods=frozenset({"GET", "PUT", "POST", "DELETE"}))
    with faulty(moto, faults, seed=3) as (server, store):
        shard(source.url, to, max_shard_samples=9, storage_options=server.storage_options)
        assert store.counts["slow_down"] > 0
    assert to.files() == well.files()
    assert to.uploads() == []


def test_a_shard_that_cannot_be_stored_prevents_the_manifest_and_the_same_call_goes_on(tmp_path: Path) -> None:
    source, well, to = memory_place(), memory_place(), Place(f"{tmp_path}/")
    shard(source.put(FILES), well, max_shard_samples=9, provenance=True)
    (tmp_path / "000001.tar").mkdir()
    (tmp_path / "000001.tar" / "in the way").touch()
    with pytest.raises(StorageError, match=r"000001\.tar"):
        shard(source.url, to, max_shard_samples=9, provenance=True)
    assert "index.json" not in to.files()
    shutil.rmtree(tmp_path / "000001.tar")
    before = (tmp_path / "000000.tar").stat().st_mtime_ns
    shard(source.url, to, max_shard_samples=9, provenance=True)
    assert to.files() == well.files()
    assert (tmp_path / "000000.tar").stat().st_mtime_ns == before, "it was finished"


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        *(("local", chosen) for chosen in ("", "{000000..000000}.tar", "index.json")),
        *(("s3", chosen) for chosen in ("*.tar", "000000.tar", "{000000..000000}.tar")),
    ],
)
def test_a_source_replaced_after_it_was_indexed_is_an_error_and_never_a_mixture(
    chosen: str, where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source, to = Place(f"{tmp_path}/in/"), memory_place()
    if where == "s3":
        server: S3Server = request.getfixturevalue("moto")
        source = Place(f"s3://{server.new_bucket()}/in/", server)
    shard([{"txt": "old" * 30}] * 20, source)
    after = source.files()["000000.tar"].replace(b"old", b"new")
    replaced: list[str] = []

    def label(path: str) -> int:
        if not replaced:
            replaced.append(path)
            if where == "local":
                Path(source.url, "000000.tar").rename(Path(source.url, "old"))
            source.put({"000000.tar": after})
        return 0

    with pytest.raises(ObjectChangedError):
        shard(source.url + chosen, to, labels=label, source_options=source.options)
    assert "index.json" not in to.files()
