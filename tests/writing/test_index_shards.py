"""``index_shards``: manifest, indexes and keys of shards that others wrote; and other tools that read ours."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import make_member
from tests.support.shard_places import Place, memory_place, some_files, tar_of
from tests.support.written import check_beside, listed, read, shard, told, with_beside, without_url
from torchdata_remote import labels
from torchdata_remote.errors import EmptyListingError, ObjectExistsError, ShardReadError
from torchdata_remote.testing import write_small_shards

KEYS = st.text("abcé01", min_size=1, max_size=4) | st.just("n" * 120) | st.just("p" * 160 + "/é")
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {"__key__": key, **members},
        KEYS,
        st.dictionaries(st.sampled_from(["jpg", "cls", "seg.png"]), st.binary(max_size=1500), min_size=1),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda sample: sample["__key__"],
)


def tars_of(place: Place) -> dict[str, bytes]:
    return {name: data for name, data in place.files().items() if name.endswith(".tar")}


def check_by_parts(place: Place) -> int:
    """Each sample is found alone, as the reader of whole shards finds it; returns how many there are."""
    dataset = tdr.ShardedDataset(place.url, storage_options=place.options)
    urls = tdr.IterableWrapper([f"{place.url}index.json"]).list_remote(storage_options=place.options)
    whole = without_url(urls.shard_tar_reader(storage_options=place.options))
    assert without_url(dataset[number] for number in range(len(dataset))) == whole
    return len(whole)


@given(samples=SAMPLES, max_shard_samples=st.integers(1, 4))
def test_it_writes_what_the_writer_of_the_shards_has_written(
    samples: list[dict[str, Any]], max_shard_samples: int
) -> None:
    ours, theirs = memory_place(), memory_place()
    with tdr.ShardWriter(f"{ours.url}{{shard:03d}}.tar", max_shard_samples=max_shard_samples) as writer:
        for sample in samples:
            writer.write(sample)
    theirs.put(tars_of(ours))
    reported: list[tdr.ShardInfo] = []
    shards = tdr.index_shards(theirs.url, on_shard=reported.append)
    assert theirs.files() == ours.files()
    assert shards == reported
    assert told(shards) == listed(theirs) == told(writer.shards)


@pytest.mark.parametrize("seed", [None, 3])
def test_it_writes_what_shard_dataset_has_written(seed: int | None) -> None:
    files = {**some_files(9), "a/" + "é" * 70 + ".txt": b"x", "n" * 130 + ".a": b"", "n" * 130 + ".seg.png": b"y" * 600}
    for source in ({"all.tar": tar_of(files)}, files):
        ours, theirs = memory_place(), memory_place()
        shard(memory_place().put(source), ours, seed=seed, max_shard_samples=4)
        theirs.put(tars_of(ours))
        tdr.index_shards(theirs.url, progress=False)
        found, expected = theirs.files(), ours.files()
        manifests = [json.loads(one.pop("index.json"))["shardlist"] for one in (found, expected)]
        assert found == expected
        assert manifests[0] == manifests[1]


def by_program(*command: str) -> Callable[[Path, Path], None]:
    def write(archive: Path, files: Path) -> None:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        names = sorted(os.listdir(files))
        subprocess.run(
            [*command, "-cf", archive, "-C", files, "--", *names], check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )

    return write


def by_python(form: int) -> Callable[[Path, Path], None]:
    def write(archive: Path, files: Path) -> None:
        with tarfile.open(archive, "w", format=form) as tar:
            for name in sorted(os.listdir(files)):
                tar.add(files / name, name, filter=lambda info: info.replace(uname="é" * 40, deep=False))

    return write


def by_webdataset(archive: Path, files: Path) -> None:
    with webdataset.TarWriter(str(archive)) as writer:
        for text in sorted(files.rglob("*.txt")):
            key = str(text.relative_to(files)).removesuffix(".txt")
            writer.write({"__key__": key, "txt": text.read_bytes(), "bin": text.with_suffix(".bin").read_bytes()})


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "GNU tar, gnu": by_program("tar", "--format=gnu", "--sort=name"),
    "GNU tar, posix": by_program("tar", "--format=posix", "--sort=name"),
    "bsdtar, gnutar": by_program("bsdtar", "--format=gnutar"),
    "bsdtar, pax": by_program("bsdtar", "--format=pax"),
    "python, gnu": by_python(tarfile.GNU_FORMAT),
    "python, pax": by_python(tarfile.PAX_FORMAT),
    "webdataset": by_webdataset,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_shards_of_any_writer_are_indexed_and_each_sample_is_found(
    tmp_path: Path, write: Callable[[Path, Path], None]
) -> None:
    """With directories before the samples, long names and pax records."""
    for number in range(5):
        folder = "long" * 40 + "/" + "é" * 80 if number % 2 else "d"
        file = tmp_path / "files" / f"{number}-dir" / folder / f"sample-{number}.txt"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"line\n" * 200 * number)
        file.with_suffix(".bin").write_bytes(bytes(number * 512))
    (tmp_path / "train").mkdir()
    write(tmp_path / "train" / "0.tar", tmp_path / "files")
    place = Place(f"{tmp_path}/train/")
    (info,) = tdr.index_shards(tmp_path / "train")
    data = place.files()["0.tar"]
    assert (info.num_samples, info.num_bytes) == (5, len(data))
    index = place.files()["0.tar.idx"]
    offsets = [int.from_bytes(index[at : at + 8], "little") for at in range(0, len(index), 8)]
    assert (len(offsets), offsets[0]) == (6, 0)
    assert not data[offsets[-1] :].strip(b"\0"), "the last entry is where the end-of-archive blocks begin"
    assert data[offsets[-1] - 512 : offsets[-1]].strip(b"\0") or offsets[-1] == len(data) - 1024
    assert check_by_parts(place) == 5
    assert sorted(sample["txt"] for sample in read(place)) == [b"line\n" * 200 * number for number in range(5)]
    urls = tdr.IterableWrapper([f"{place.url}index.json"]).list_remote()
    (chosen,) = urls.select(keys=[read(place)[3]["__key__"]]).shard_tar_reader()
    assert chosen["txt"] == read(place)[3]["txt"], "by the file of keys"


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_a_compressed_shard_is_counted_and_gets_neither_index_nor_keys(compress: Callable[[bytes], bytes]) -> None:
    place, tar = memory_place(), tar_of(some_files(4))
    place.put({"a.tgz": compress(tar), "b.tgz": tar})
    compressed, plain = tdr.index_shards(place.url, pattern="*.tgz")
    assert (compressed.num_samples, plain.num_samples) == (4, 4)
    assert (compressed.num_bytes, plain.num_bytes) == (len(compress(tar)), len(tar))
    assert sorted(place.files()) == ["a.tgz", "b.tgz", "b.tgz.idx", "b.tgz.keys", "index.json"]
    assert len(read(place)) == 8


def test_names_that_are_no_samples_take_no_part() -> None:
    """Directories, ``./`` and members named like ``__this__``: before, between and after samples."""
    place, data = memory_place(), make_member(b"./", b"", b"5") + make_member(b"./__meta__", b"{}")
    for number in range(3):
        data += make_member(b"./%d/" % number, b"", b"5") + make_member(b"./%d/a.txt" % number, b"x" * 600)
        data += make_member(b"__meta__", b"{}")
    place.put({"0.tar": data + bytes(1024)})
    (info,) = tdr.index_shards(place.url)
    assert info.num_samples == check_by_parts(place) == 3


def test_a_manifest_is_refused_before_anything_is_read() -> None:
    place = memory_place()
    place.put({"0.tar": b"not read, else this were an error", "index.json": b"{}"})
    before, reported = place.files(), list[tdr.ShardInfo]()
    with pytest.raises(ObjectExistsError, match=r"index\.json exists already.*--overwrite") as caught:
        tdr.index_shards(place.url, on_shard=reported.append)
    assert isinstance(caught.value, FileExistsError)
    assert (place.files(), reported) == (before, [])


@pytest.mark.parametrize("ending", ["idx", "keys"])
def test_an_index_or_keys_are_not_replaced_unless_asked_for(ending: str) -> None:
    place = memory_place()
    write_small_shards(place.url, num_shards=3, samples_per_shard=2)
    right = place.files()
    for name in right:
        if not name.endswith(".tar"):
            place.delete(name)
    foreign = {f"000001.tar.{ending}": b"of somebody else"}
    place.put(foreign)
    with pytest.raises(ObjectExistsError, match=rf"000001\.tar\.{ending}"):
        tdr.index_shards(place.url)
    assert foreign.items() <= place.files().items()
    assert "index.json" not in place.files()
    place.put({"index.json": b"damaged"})
    tdr.index_shards(place.url, overwrite=True)
    assert place.files() == right


SOUND = tar_of({f"{number}.txt": bytes([65 + number]) * 700 for number in range(3)})
DAMAGED = {
    "cut in a member": SOUND[:2000],
    "cut before its end": SOUND[:4608],
    "bit in a header": SOUND[:3] + bytes([SOUND[3] ^ 1]) + SOUND[4:],
    "zeros": bytes(20_480),
    "empty": b"",
    "no tar": b"<html>" * 500,
    "scattered sample": tar_of([("a.txt", b""), ("b.txt", b""), ("a.cls", b"")]),
    "cut compressed": gzip.compress(SOUND)[:-20],
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_shard_is_an_error_and_there_is_no_manifest(data: bytes) -> None:
    place = memory_place()
    place.put({"0.tar": SOUND, "1.tar": data})
    with pytest.raises(ShardReadError, match=r"1\.tar"):
        tdr.index_shards(place.url)
    assert not {"index.json", "1.tar.idx", "1.tar.keys"} & set(place.files())


def test_a_folder_without_shards_is_an_error() -> None:
    place = memory_place()
    files = {"0.zip": b"PK", "0.tar.idx": b"", "below/0.tar": SOUND}
    place.put(files)
    with pytest.raises(EmptyListingError, match="are tars"):
        tdr.index_shards(place.url)
    assert place.files() == files


def test_shards_are_in_the_order_of_their_names() -> None:
    place, reported = memory_place(), list[tdr.ShardInfo]()
    place.put(dict.fromkeys(("10.tar", "9.tar", "2.tar"), SOUND))
    shards = tdr.index_shards(place.url, on_shard=reported.append)
    assert [name for name, *_ in listed(place)] == ["10.tar", "2.tar", "9.tar"]
    assert (told(shards), reported) == (listed(place), shards)
    check_beside(place)


def test_a_folder_or_the_whole_bucket_is_indexed_on_s3(moto: S3Server) -> None:
    for below in ("a/train/", ""):
        place = Place(f"s3://{moto.new_bucket()}/{below}", moto)
        write_small_shards(place.url, num_shards=3, samples_per_shard=4, storage_options=place.options)
        right = place.files()
        for name in right:
            if not name.endswith(".tar"):
                place.delete(name)
        shards = tdr.index_shards(place.url.rstrip("/"), storage_options=place.options)
        assert [info.num_samples for info in shards] == [4, 4, 4]
        assert place.files() == right
        assert check_by_parts(place) == 12


# Other tools read ours


@pytest.fixture
def ours(tmp_path: Path) -> Place:
    to = Place(f"{tmp_path}/")
    shard(memory_place().put(some_files(30)), to, max_shard_samples=16, labels=labels.parent_directory())
    return to


def test_webdataset_reads_keys_members_and_order(ours: Place) -> None:
    urls = [f"{ours.url}{name}" for name in ours.shards()]
    theirs = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))
    assert [{"__key__": one["__key__"], "txt": one["txt"], "cls": one["cls"]} for one in theirs] == read(ours)


def test_the_tar_program_unpacks_a_shard(ours: Place, tmp_path: Path) -> None:
    (tmp_path / "unpacked").mkdir()
    for name in sorted(ours.shards()):
        subprocess.run(["tar", "-xf", f"{ours.url}{name}", "-C", tmp_path / "unpacked"], check=True)
    found = Place(f"{tmp_path}/unpacked/").files()
    assert {name: data for name, data in found.items() if name.endswith(".txt")} == some_files(30)
    assert sorted(ours.files().keys() & {*with_beside(*ours.shards())}) == with_beside(*ours.shards())
