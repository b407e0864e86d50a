"""``shard_dataset``: any source into shards, every sample once, with its bytes, key and label."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import make_header, make_member
from tests.support.audited import audited
from tests.support.shard_places import Place, compressed_by_zstd, members_of, memory_place, some_files, tar_of
from tests.support.written import Items, check_beside, listed, members_at, read, shard, split_name, told, with_beside
from torchdata_remote import labels
from torchdata_remote.errors import EncodeError, LabelError, ObjectNotFoundError, ShardWriteError

FILES = some_files(30)
LONG = "a" * 90 + "/" + "b" * 120
# Samples with several members, empty ones, names that need extended headers
PHOTOS = {
    "cat/1.jpg": b"\xff\xd8 a cat",
    "cat/1.json": b"{}",
    "cat/1.seg.png": b"a mask" * 200,
    "cat/2.jpg": b"",
    f"cat/{LONG}.jpg": b"a name too long for a header",
    "dog/1.jpg": b"x" * 512,
    "dog/häuser/ΩΩ-雪.jpg": b"not ASCII",
    "dog/" + "é" * 60 + ".jpg": b"long and not ASCII",
}


def first_members(files: Mapping[str, bytes]) -> set[str]:
    """The first member of each sample."""
    made: dict[str, str] = {}
    for name in sorted(files):
        made.setdefault(split_name(name)[0], name)
    return set(made.values())


def provenance(to: Place) -> dict[str, Any]:
    """Of all jobs of a folder, once each entry is where it says."""
    found: dict[str, Any] = {}
    for name, data in to.files().items():
        if name.startswith("provenance"):
            found |= json.loads(data)
    files = to.files()
    for entry in found.values():
        begins = {members[0][1].offset: dict(members) for members in members_at(files[entry["targetFile"]]).values()}
        member = begins[entry["position"]].get("cls")
        if entry["class"] is not None:
            assert member is not None
            data = files[entry["targetFile"]][member.offset_data : member.offset_data + member.size]
            assert data == b"%d" % entry["class"]
    return found


# Sources


def test_files_whose_paths_differ_in_the_extension_only_are_one_sample(place: Place) -> None:
    source, to = place.below("photos"), place.below("shards")
    infos = shard(source.put(PHOTOS), to, max_shard_bytes=5_000)
    assert to.members() == PHOTOS
    assert sum(info.num_samples for info in infos) == 6
    assert told(infos) == listed(to)
    assert sorted(sample["__key__"] for sample in read(to)) == sorted({split_name(name)[0] for name in PHOTOS})
    check_beside(to)


def test_from_bucket_to_bucket_no_local_file_is_written(moto: S3Server, tmp_path: Path) -> None:
    source, to = (Place(f"s3://{moto.new_bucket()}/", moto) for _ in range(2))
    source.below("files").put(FILES)
    source.put({"all.tar": tar_of(FILES), "all.tar.gz": gzip.compress(tar_of(FILES))})
    opened: list[str] = []

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            opened.append(str(args[0]))

    with audited(note):
        for name in ("files/", "all.tar", "all.tar.gz"):
            shard(source.url + name, to.below(name.strip("/")), max_shard_samples=8)
        assert opened == []
        Path(tmp_path, "seen").write_bytes(b"")
    assert len(opened) == 1
    for name in ("files/", "all.tar", "all.tar.gz"):
        assert to.below(name.strip("/")).members() == FILES


def test_source_options_are_for_the_source_and_storage_options_for_the_shards(moto: S3Server) -> None:
    source, to = Place(f"s3://{moto.new_bucket()}/", moto), memory_place()
    source.put(FILES)
    shard(source.url, to, storage_options=None, source_options=moto.storage_options)
    assert to.members() == FILES


COMPRESSED: dict[str, Any] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": compressed_by_zstd}


def inner_tars(inner: str | None = None) -> dict[str, bytes]:
    """A tar for each class."""
    made = {}
    for name in sorted({path.partition("/")[0] for path in FILES}):
        data = tar_of({path.partition("/")[2]: data for path, data in FILES.items() if path.startswith(f"{name}/")})
        made[f"{name}.tar{'.' * bool(inner)}{inner or ''}"] = COMPRESSED[inner](data) if inner else data
    return made


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_a_tar_with_unusual_names_is_sharded(place: Place, tar_format: int) -> None:
    source, to = place.below("source"), place.below("shards")
    source.put({"photos.tar": tar_of(PHOTOS, tar_format=tar_format)})
    shard(f"{source.url}photos.tar", to, max_shard_bytes=4_000)
    assert to.members() == PHOTOS


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_compressed_tar_is_sharded_and_what_was_unpacked_meanwhile_is_removed(kind: str) -> None:
    source, to = memory_place(), memory_place()
    source.put({f"photos.tar.{kind}": COMPRESSED[kind](tar_of(PHOTOS))})
    shard(f"{source.url}photos.tar.{kind}", to, max_shard_bytes=4_000)
    assert to.members() == PHOTOS
    assert sorted(to.files()) == [*with_beside(*to.shards()), "index.json"]


@pytest.mark.parametrize("outer", [None, "gz", "zst"])
@pytest.mark.parametrize("inner", [None, "gz", "xz"])
def test_the_names_of_inner_archives_are_folders_of_the_keys(outer: str | None, inner: str | None) -> None:
    source, to = memory_place(), memory_place()
    name, data = "train.tar", tar_of(inner_tars(inner))
    source.put({f"{name}.{outer}": COMPRESSED[outer](data)} if outer else {name: data})
    shard(
        f"{source.url}{name}{'.' * bool(outer)}{outer or ''}", to, max_shard_samples=7, labels=labels.parent_directory()
    )
    members = to.members()
    assert {path: data for path, data in members.items() if path.endswith(".txt")} == FILES
    assert all(members[path.replace(".txt", ".cls")] == path[6:7].encode() for path in FILES)


def test_archives_of_archives_may_be_mixed_and_each_name_is_a_folder() -> None:
    source, to = memory_place(), memory_place()
    tars = {**inner_tars(), "class-9.tgz": gzip.compress(tar_of({"00099.txt": b"99"})), "__meta__": b"x"}
    source.put({"train.tar": tar_of(tars)})
    shard(f"{source.url}train.tar", to)
    assert to.members() == {**FILES, "class-9/00099.txt": b"99"}
    several, to = memory_place(), memory_place()
    several.put({f"{part}.tar": tar_of({"cat.tar": tar_of({"1.jpg": part.encode()})}) for part in ("a", "b")})
    shard(several.url, to, provenance=True)
    assert to.members() == {"a/cat/1.jpg": b"a", "b/cat/1.jpg": b"b"}


def test_several_archives_are_folders_in_labels_and_provenance_and_keys_stay_as_they_are(place: Place) -> None:
    source, to = place.below("source"), place.below("shards")
    source.put(inner_tars())
    shard(source.url, to, labels=labels.parent_directory(), provenance=True)
    assert {name for name in to.members() if name.endswith(".txt")} == {path.partition("/")[2] for path in FILES}
    assert provenance(to).keys() == FILES.keys()
    assert list(json.loads(to.files()["classes.json"])) == ["class-0", "class-1", "class-2"]


def test_keys_that_restart_in_each_archive_get_its_name() -> None:
    source, to = memory_place(), memory_place()
    source.put({f"s-{number}.tar": tar_of({f"{i}.txt": b"%d %d" % (number, i) for i in range(3)}) for number in (0, 1)})
    shard(source.url, to)
    assert to.members() == {f"s-{number}/{i}.txt": b"%d %d" % (number, i) for number in (0, 1) for i in range(3)}


@pytest.mark.parametrize("choice", ["", "index.json", "*.tar", "{000000..000003}.tar", "pattern"])
@pytest.mark.parametrize("place", ["local", "memory"], indirect=True)
def test_existing_shards_are_a_source_and_their_companions_are_ignored(place: Place, choice: str) -> None:
    source, middle, to = place.below("files"), place.below("first"), place.below("second")
    shard(source.put(FILES), middle, max_shard_samples=8, labels=labels.parent_directory(), provenance=True)
    shard(memory_place().put({"late/x.txt": b"x"}), middle, provenance=True, append=True)
    chosen: dict[str, Any] = {"pattern": "*.tar"} if choice == "pattern" else {}
    infos = shard(middle.url + ("" if choice == "pattern" else choice), to, max_shard_samples=11, seed=1, **chosen)
    assert [info.num_samples for info in infos] == ([11, 11, 8] if choice.startswith("{") else [11, 11, 9])
    assert to.members().items() <= middle.members().items()
    assert ("late/x.txt" in to.members()) == (not choice.startswith("{"))
    assert [sample["__key__"] for sample in read(middle)] != [sample["__key__"] for sample in read(to)]


@pytest.mark.parametrize(
    ("source", "pattern", "expected"),
    [
        ("", None, ["a/1.jpg", "a/2.jpg", "b/1.jpg", "c.jpg"]),
        ("a/", None, ["1.jpg", "2.jpg"]),
        ("a", None, ["1.jpg", "2.jpg"]),
        ("?/*.jpg", None, ["a/1.jpg", "a/2.jpg", "b/1.jpg"]),
        ("a/*.jpg", None, ["1.jpg", "2.jpg"]),
        ("c.jpg", None, ["c.jpg"]),
        ("a/{1..2}.jpg", None, ["1.jpg", "2.jpg"]),
        ("", "1.*", ["a/1.jpg", "b/1.jpg"]),
        ("", "a/*", ["a/1.jpg", "a/2.jpg"]),
    ],
)
def test_keys_begin_where_the_source_or_the_fixed_part_of_a_glob_ends(
    source: str, pattern: str | None, expected: list[str]
) -> None:
    place, to = memory_place(), memory_place()
    place.put(dict.fromkeys(["a/1.jpg", "a/2.jpg", "b/1.jpg", "c.jpg"], b"x"))
    shard(place.url + source, to, pattern=pattern)
    assert to.members() == dict.fromkeys(expected, b"x")


def test_local_paths_are_a_source_as_text_path_or_url(tmp_path: Path) -> None:
    Place(f"{tmp_path}/").put({"1.txt": b"1"})
    for source in (tmp_path, str(tmp_path), f"{tmp_path}/", tmp_path.as_uri()):
        to = memory_place()
        shard(source, to)
        assert to.members() == {"1.txt": b"1"}


def test_an_archive_of_a_web_server_is_a_source(moto: S3Server) -> None:
    source, to = Place(f"s3://{moto.new_bucket()}/", moto), memory_place()
    source.put({"all.tar": tar_of(FILES)})
    bucket = source.url.removeprefix("s3://").rstrip("/")
    moto.client().put_bucket_acl(Bucket=bucket, ACL="public-read")
    moto.client().put_object_acl(Bucket=bucket, Key="all.tar", ACL="public-read")
    shard(f"{moto.endpoint_url}/{bucket}/all.tar", to)
    assert to.members() == FILES


def test_samples_are_the_same_however_many_windows_of_memory_they_take() -> None:
    chance, source = np.random.default_rng(0), memory_place()
    sizes = [0, 300_000, 1_100_000, 1, 600_000, 600_000, 400_000, 2_000_000, 0, 500]
    files = {f"{index}.{ending}": chance.bytes(size) for index, size in enumerate(sizes) for ending in ("a", "b")}
    source.put({"all.tar": tar_of(files), **{f"files/{name}": data for name, data in files.items()}})
    for what in ("all.tar", "files/"):
        to = memory_place()
        shard(source.url + what, to, max_shard_bytes=4 << 20)
        assert to.members() == files
        check_beside(to)


def test_links_and_folders_in_archives_are_no_members() -> None:
    source, to = memory_place(), memory_place()
    source.put({"a.tar": make_header(b"a/", kind=b"5") + make_member(b"a/1.x", b"one") + bytes(1024)})
    shard(f"{source.url}a.tar", to)
    assert to.members() == {"a/1.x": b"one"}


def test_names_of_companions_are_members_where_there_are_no_archives() -> None:
    source, to = memory_place(), memory_place()
    files = {"a.idx": b"1", "a.jpg": b"2", "b/index.json": b"{}", "b/index.txt": b"3", "classes.json": b"{}"}
    shard(source.put(files), to)
    assert to.members() == files


@given(
    st.sets(
        st.builds(
            "{}{}".format,
            st.lists(st.text("ab-.", min_size=1, max_size=2).map("x{}".format), min_size=1, max_size=3).map("/".join),
            st.sampled_from([".jpg", ".txt", ".a.jpg", ".d/x.jpg"]),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_files_are_grouped_by_key_also_if_others_are_listed_between_them(names: set[str]) -> None:
    names = {name for name in names if all(not part.endswith(".") and ".." not in part for part in name.split("/"))}
    source, to = memory_place(), memory_place()
    files = {name: name.encode() for name in {*names, "a.cls", "a.d/x.jpg", "a.jpg"}}
    infos = shard(source.put(files), to)
    assert to.members() == files
    assert sum(info.num_samples for info in infos) == len(first_members(files)) == len(read(to))


def test_the_same_files_give_the_same_shards_from_each_store(moto: S3Server, tmp_path: Path) -> None:
    names = ["a/1.x", "a-b/1.x", "a.b/1.x", "a0.x", "A.x", "é.x", "\uffee.x", "\U0001f600.x", "z/z/z.x", "z/z.x"]
    made = []
    for place in (Place(f"{tmp_path}/"), memory_place(), Place(f"s3://{moto.new_bucket()}/in/", moto)):
        place.put({name: name.encode() for name in names})
        to = memory_place()
        shard(place.url, to, source_options=place.options)
        made.append({name: data for name, data in to.files().items() if name != "index.json"})
    assert made[0] == made[1] == made[2]


# Datasets


def test_a_dataset_of_pairs_keeps_values_labels_and_names_of_classes() -> None:
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    items = [(picture, 0), (array, 1), (torch.ones(2), torch.tensor(1)), (b"raw", np.int64(0)), ["text", np.array(1)]]
    to = memory_place()
    with pytest.warns(RuntimeWarning, match="encoded as png"):
        (info,) = shard(Items(items), to, seed=None)
    assert info.num_samples == 5
    samples = list(tdr.stream_shards(to.url, shuffle=False).decode_sample())
    assert [sample["__key__"] for sample in samples] == [f"{index:09d}" for index in range(5)]
    assert [int(sample["cls"]) for sample in samples] == [0, 1, 1, 0, 1]
    assert np.array_equal(np.asarray(samples[0]["png"]), np.asarray(picture))
    assert np.array_equal(samples[1]["npy"], array)
    assert samples[1]["npy"].dtype == np.int16
    assert np.array_equal(samples[2]["npy"], np.ones(2))
    assert (samples[3]["bin"], samples[4]["txt"]) == (b"raw", "text")
    assert json.loads(to.files()["classes.json"]) == {"cat": {"id": 0, "name": "cat"}, "dog": {"id": 1, "name": "dog"}}


def test_a_dataset_of_dicts_has_numbers_as_keys_or_its_own() -> None:
    to = memory_place()
    shard(
        [{"txt": "a", "cls": torch.tensor(3)}, {"__key__": "mine/1", "json": {"x": [1]}}, (bytearray(b"b"), "dog")], to
    )
    assert to.members() == {
        "000000000.txt": b"a",
        "000000000.cls": b"3",
        "mine/1.json": b'{"x": [1]}',
        "000000002.bin": b"b",
        "000000002.cls": b"dog",
    }
    assert "classes.json" not in to.files()


@pytest.mark.parametrize("item", [3, "ab", b"ab", (b"x",), (b"x", 1, 2), (object(), 1), None, {1, 2}])
def test_an_item_that_is_no_sample_is_named(item: Any) -> None:
    with pytest.raises(ShardWriteError, match=r"Item 1 of the dataset .*expected"):
        shard([(b"x", 0), item], memory_place())


def test_a_value_that_cannot_be_encoded_is_named() -> None:
    with pytest.raises(EncodeError, match=r"'000000000'.*'jpg'"):
        shard([{"jpg": object()}], memory_place())


@given(
    sizes=st.lists(st.sampled_from([0, 10, 3_000, 20_000]), min_size=1, max_size=40),
    max_shard_bytes=st.integers(2_000, 30_000),
    max_shard_samples=st.integers(1, 10),
)
def test_limits_are_kept_where_sizes_are_not_known_before(
    sizes: list[int], max_shard_bytes: int, max_shard_samples: int
) -> None:
    dataset, to, again = [{"bin": bytes(size)} for size in sizes], memory_place(), memory_place()
    limits: dict[str, Any] = {"max_shard_bytes": max_shard_bytes, "max_shard_samples": max_shard_samples}
    infos = shard(dataset, to, provenance=True, **limits)
    shard(dataset, again, provenance=True, **limits)
    assert to.files() == again.files()
    assert sum(info.num_samples for info in infos) == len(sizes) == len(to.members())
    for info in infos:
        assert info.num_samples <= max_shard_samples
        assert info.num_bytes <= max_shard_bytes or info.num_samples == 1
    check_beside(to)
    assert provenance(to).keys() == set(map(str, range(len(sizes))))
    assert [info.url for info in infos] == sorted({info.url for info in infos})


@pytest.mark.parametrize(
    ("count", "bytes_a_shard", "most", "expected"), [(100, 92_000, 99, [50, 50]), (9, 1 << 20, 4, [3, 3, 3])]
)
def test_a_dataset_is_cut_into_few_even_shards(count: int, bytes_a_shard: int, most: int, expected: list[int]) -> None:
    infos = shard([{"bin": bytes(1000)}] * count, memory_place(), max_shard_bytes=bytes_a_shard, max_shard_samples=most)
    assert [info.num_samples for info in infos] == expected


# Labels


TABLE = {"n1": {"id": 2, "name": "fox"}, "n0": {"id": 1, "name": "dog"}, "n9": {"id": 3, "name": "none"}}
LABEL_FORMS: dict[str, tuple[Any, list[str], list[int], list[str]]] = {
    "parent_directory": (labels.parent_directory(), ["b/1.x", "a/2.x", "c/b/3.x"], [1, 0, 1], ["a", "b"]),
    "from_pattern": (labels.from_pattern(r"_(\w+)\."), ["1_dog.x", "2_cat.x"], [1, 0], ["cat", "dog"]),
    "classes_json": (labels.classes_json(TABLE, id_base=1), ["n0_1.x", "n1/2.x"], [0, 1], ["n0", "n1", "n9"]),
    "your own": (len, ["a.x", "bb.x"], [3, 4], ["3", "4"]),
}


@pytest.mark.parametrize("form", LABEL_FORMS)
def test_a_label_is_the_member_cls_and_the_table_of_classes_lies_beside_the_shards(form: str) -> None:
    labeller, names, expected, keys = LABEL_FORMS[form]
    source, to = memory_place(), memory_place()
    shard(source.put(dict.fromkeys(names, b"")), to, labels=labeller)
    members = to.members()
    assert [members[re.sub(r"\.\w+$", ".cls", name)] for name in names] == [b"%d" % label for label in expected]
    table = json.loads(to.files()["classes.json"])
    assert list(table) == keys
    assert [entry["id"] for entry in table.values()] == sorted(entry["id"] for entry in table.values())


@pytest.mark.parametrize("form", [name for name in LABEL_FORMS if name != "your own"])
def test_a_file_without_a_label_is_named_before_anything_is_written(form: str) -> None:
    labeller, names, _, _ = LABEL_FORMS[form]
    source, to = memory_place(), memory_place()
    with pytest.raises(LabelError, match=r"stranger\.x"):
        shard(source.put(dict.fromkeys([*names, "stranger.x"], b"")), to, labels=labeller)
    assert to.files() == {}


def test_labels_replace_those_of_the_samples_and_without_labels_these_stay() -> None:
    source, to, plain = memory_place(), memory_place(), memory_place()
    files = {"a/1.cls": b"77", "a/1.txt": b"t", "a/2.cls": b"5"}
    shard(source.put(files), to, labels=labels.parent_directory())
    assert to.members() == {"a/1.cls": b"0", "a/1.txt": b"t", "a/2.cls": b"0"}
    shard(source.url, plain)
    assert plain.members() == files


# Order and limits


def test_without_a_seed_the_order_is_that_of_the_source() -> None:
    source, to = memory_place(), memory_place()
    unsorted = [("b.x", b"1"), ("a.x", b"2"), ("c.x", b"3")]
    source.put({"some.tar": tar_of(unsorted)})
    shard(f"{source.url}some.tar", to, seed=None)
    assert next(iter(to.shards().values())) == unsorted


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar.zst"])
def test_compressed_shards_hold_the_same_samples_without_indexes(ending: str) -> None:
    source, plain, to = memory_place(), memory_place(), memory_place()
    source.put(FILES)
    shard(source.url, plain, max_shard_bytes=8_000)
    shard(source.url, to, ending=ending, max_shard_bytes=8_000, provenance=True)
    names = [name for name in sorted(to.files()) if name.endswith(ending)]
    assert [members_of(f"{name}.gz" if ending == ".tgz" else name, to.files()[name]) for name in names] == [
        *plain.shards().values()
    ]
    check_beside(to)
    assert sorted(to.files()) == [*names, "index.json", "provenance.json"]


NAMES = st.builds(
    lambda folder, base: f"{folder}{base}",
    st.sampled_from(["", "a/", "p" * 90 + "/", "p" * 99 + "/", "p" * 160 + "/", "é/"]),
    st.text("abcé01-", min_size=1, max_size=5),
)
SOURCES = st.dictionaries(
    st.builds("{}.{}".format, NAMES, st.sampled_from(["jpg", "cls", "seg.png"])),
    st.sampled_from([0, 1, 511, 512, 513, 3000]).map(lambda size: b"x" * size),
    min_size=1,
    max_size=14,
)


@given(
    files=SOURCES,
    max_shard_bytes=st.integers(1, 12_000),
    max_shard_samples=st.integers(1, 6),
    seed=st.none() | st.integers(0, 3),
    labelled=st.booleans(),
    how=st.sampled_from(["files", "archive", "archives"]),
)
def test_shards_are_filled_exactly_to_their_limits(
    files: dict[str, bytes], max_shard_bytes: int, max_shard_samples: int, seed: int | None, labelled: bool, how: str
) -> None:
    source, to = memory_place(), memory_place()
    archived = {"all.tar": tar_of(sorted(files.items())), "more.tar": tar_of({"another/one.jpg": b"x" * 600})}
    if how != "files":
        source.put(archived if how == "archives" else {"all.tar": archived["all.tar"]})
    shard(
        source.put(files if how == "files" else {}) + ("all.tar" if how == "archive" else ""),
        to,
        seed=seed,
        max_shard_bytes=max_shard_bytes,
        max_shard_samples=max_shard_samples,
        labels=(lambda path: len(path) ** 4 % (1 << 31)) if labelled else None,
        provenance=True,
    )
    expected = {**files, **({"another/one.jpg": b"x" * 600} if how == "archives" else {})}
    members = to.members()
    assert {name: data for name, data in members.items() if not (labelled and name.endswith(".cls"))} == {
        name: data for name, data in expected.items() if not (labelled and name.endswith(".cls"))
    }
    check_beside(to)
    prefixes = {name: "more/" if name == "another/one.jpg" else "all/" for name in expected}
    prefix = prefixes.__getitem__ if how == "archives" else lambda name: ""
    assert set(provenance(to)) == {prefix(name) + name for name in first_members(expected)}
    contents = to.files()
    sizes = [np.diff(np.frombuffer(contents[f"{name}.idx"], "<u8")).tolist() for name in to.shards()]
    for at, samples in enumerate(sizes):
        assert len(samples) <= max_shard_samples
        assert sum(samples) + 1024 <= max_shard_bytes or len(samples) == 1
        if at + 1 < len(sizes) and len(samples) < max_shard_samples:
            assert sum(samples) + sizes[at + 1][0] + 1024 > max_shard_bytes


# Transforms


def without_odd(sample: dict[str, Any]) -> dict[str, Any] | None:
    return None if int(sample["__key__"][-1]) % 2 else sample


def upper(sample: dict[str, Any]) -> dict[str, Any]:
    assert {type(value) for value in sample.values()} == {bytes, str, int}
    return {"__key__": sample["__key__"], "up": sample["txt"].upper(), "cls": sample["cls"] + 5}


def test_a_transform_that_returns_none_leaves_a_sample_out(place: Place) -> None:
    source, middle, to = place.below("files"), place.below("middle"), place.below("shards")
    kept = {name: data for name, data in FILES.items() if int(name[-5]) % 2 == 0}
    shard(source.put(FILES), middle, max_shard_samples=7)
    for url in (source.url, middle.url):
        shard(url, to, transform=without_odd, max_shard_samples=4, provenance=True, overwrite=True)
        assert to.members() == kept
        check_beside(to)
        assert {re.sub("^[0-9]{6}/", "", name) for name in provenance(to)} == set(kept)


def test_a_transform_gets_bytes_and_the_label_as_an_int_and_what_it_returns_is_written() -> None:
    source, to = memory_place(), memory_place()
    files = {"a/1.txt": b"one", "b/2.txt": b"two"}
    shard(source.put(files), to, transform=upper, labels=labels.parent_directory(), provenance=True)
    assert to.members() == {"a/1.up": b"ONE", "a/1.cls": b"5", "b/2.up": b"TWO", "b/2.cls": b"6"}
    assert {name: entry["class"] for name, entry in provenance(to).items()} == {"a/1.txt": 5, "b/2.txt": 6}


def test_a_transform_that_leaves_nothing_is_an_error() -> None:
    to = memory_place()
    with pytest.raises(ShardWriteError, match="left out all"):
        shard(memory_place().put(FILES), to, transform=lambda sample: None)
    assert "index.json" not in to.files()


def test_a_transform_that_fails_names_the_sample_and_errors_of_this_package_stay_as_they_are() -> None:
    source, to = memory_place(), memory_place()
    source.put({"class-0/00000.txt": b""})
    with pytest.raises(ShardWriteError, match=r"class-0/00000\.txt': KeyError: 'nothing'") as caught:
        shard(source.url, to, transform=lambda sample: sample["nothing"])
    assert isinstance(caught.value.__cause__, KeyError)
    assert not [name for name in to.files() if ".tar" in name]

    def gone(sample: Any) -> Any:
        raise ObjectNotFoundError("gone")

    with pytest.raises(ObjectNotFoundError, match="gone"):
        shard(source.url, memory_place(), transform=gone)


@pytest.mark.parametrize(
    ("label", "expected"),
    [(np.int64(3), 3), (torch.tensor(3), 3), (b"3", 3), ("3", 3), ("three", None), (b"\xff", None), ("²", None)],
    ids=str,
)
def test_provenance_has_the_class_number_whatever_kind_of_label_it_is(label: Any, expected: int | None) -> None:
    to = memory_place()
    shard([{"txt": "a", "cls": label}, {"txt": "b"}], to, provenance=True, seed=None)
    assert {name: entry["class"] for name, entry in provenance(to).items()} == {"0": expected, "1": None}
