"""Names in datasets as users have them: endings of shards, dots in names, files of macOS, upper case."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import torchdata_remote as tdr
from tests.support.shard_places import compressed_by_zstd, tar_of
from torchdata_remote import errors, labels
from torchdata_remote.cli import main

FILES = {"1.txt": b"one", "1.cls": b"1"}
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".tar": bytes,
    ".TAR": bytes,
    ".tar.gz": gzip.compress,
    ".tgz": gzip.compress,
    ".tar.bz2": bz2.compress,
    ".tz2": bz2.compress,
    ".TB2": bz2.compress,
    ".taz": gzip.compress,
    ".Tar.Xz": lzma.compress,
    ".tar.zst": compressed_by_zstd,
}


def put(folder: str, files: Mapping[str, bytes]) -> None:
    memory = fsspec.filesystem("memory")
    if memory.exists(folder):
        memory.rm(folder, recursive=True)
    memory.pipe({f"{folder}/{name}": data for name, data in files.items()})


def shard(key: str, ending: str = ".tar") -> bytes:
    return COMPRESSED[ending](tar_of([(f"{key}.txt", key.encode())]))


def zip_of(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def keys_of(samples: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(sample["__key__"] for sample in samples)


# Shards of a folder


@given(endings=st.lists(st.sampled_from(list(COMPRESSED)), min_size=1, max_size=8))
def test_by_default_all_tars_of_a_folder_are_read(endings: list[str]) -> None:
    """In any case and compression; other objects beside them are none."""
    folder = "memory://names-tars"
    names = [f"s{number}{ending}" for number, ending in enumerate(endings)]
    put(folder, {**{name: shard(name[:2], name[2:]) for name in names}, "README.md": b"", "index.txt": b""})
    expected = sorted(name[:2] for name in names)
    assert keys_of(tdr.stream_shards(folder)) == expected
    assert sorted(found.url for found in tdr.index_shards(folder)) == sorted(f"{folder}/{name}" for name in names)


def test_zips_beside_tars_are_named_once(memory_folder: str) -> None:
    """With the reader that reads them; where there is nothing else, by the error."""
    put(memory_folder, {"a.tar": shard("a"), "x.zip": zip_of(FILES), "y.ZIP": zip_of(FILES)})
    with pytest.warns(RuntimeWarning, match=r"'x\.zip'.*shard_zip_reader") as seen:
        assert keys_of(tdr.stream_shards(memory_folder)) == ["a"]
    assert len(seen) == 1
    fsspec.filesystem("memory").rm(f"{memory_folder}/a.tar")
    with pytest.raises(errors.EmptyListingError, match=r"x\.zip.*shard_zip_reader"):
        list(tdr.stream_shards(memory_folder))
    zips = tdr.IterableWrapper([memory_folder]).list_remote(pattern="*.zip")
    assert keys_of(zips.sharding_filter_rank().shard_zip_reader()) == ["1"]


@pytest.mark.parametrize("ending", ["Z", "lz4", "lz", "lzma", "LZO", "br"])
def test_tars_in_compressions_that_are_not_read_are_named_once(ending: str, memory_folder: str) -> None:
    """Beside others by a warning, alone by the error; companions are none."""
    left_out = [f"b.tar.{ending}", f"c.tar.{ending}"]
    beside = ["a.tar.idx", "a.tar.keys", "a.tar.tmp", "a.tar.md5"]
    put(memory_folder, {"a.tar": shard("a"), **dict.fromkeys(beside, b"")})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert keys_of(tdr.stream_shards(memory_folder)) == ["a"]
    put(memory_folder, {"a.tar": shard("a"), **dict.fromkeys(left_out, b"")})
    with pytest.warns(RuntimeWarning, match=rf"'b\.tar\.{ending}'.*gzip or zstd") as seen:
        assert keys_of(tdr.stream_shards(memory_folder)) == ["a"]
    assert len(seen) == 1
    put(memory_folder, dict.fromkeys(left_out, b""))
    with pytest.raises(errors.EmptyListingError, match=rf"b\.tar\.{ending}.*gz, bz2, xz, zst"):
        list(tdr.stream_shards(memory_folder))


@pytest.mark.parametrize(
    "read",
    [
        lambda url, **options: list(tdr.stream_shards(url, **options)),
        lambda url, **options: list(tdr.join({"a": url, "b": url}, **options)),
        lambda url, **options: tdr.index_shards(url, **options),
        lambda url, **options: tdr.shard_dataset(url, "memory://names-out/{shard}.tar", overwrite=True, **options),
    ],
    ids=["stream_shards", "join", "index_shards", "shard_dataset"],
)
def test_shards_that_differ_by_their_ending_only_are_an_error(read: Callable[..., Any], memory_folder: str) -> None:
    """It names both; a pattern chooses."""
    put(memory_folder, {"a.tar": shard("a"), "a.tar.gz": shard("a", ".tar.gz"), "b.tar": shard("b")})
    with pytest.raises(errors.ShardReadError, match=r"'a\.tar' and 'a\.tar\.gz'.*pattern="):
        read(memory_folder)
    put(memory_folder, {"a.tar": shard("a"), "a.TAR": shard("a")})
    with pytest.raises(errors.ShardReadError, match=r"'a\.TAR' and 'a\.tar', which differ by their ending only"):
        read(memory_folder)
    put(memory_folder, {"a.tar": shard("a"), "sub/a.tar.gz": shard("b", ".tar.gz"), "b.tar": shard("c")})
    assert keys_of(tdr.stream_shards(memory_folder)) == ["a", "b", "c"]
    assert keys_of(tdr.stream_shards(memory_folder, pattern="*.gz")) == ["b"]


# Dots in names of loose files

PRICES = {"cat/22.05.png": b"2205", "cat/22.06.png": b"2206"}


def sharded(folder: str, **options: Any) -> dict[str, dict[str, bytes]]:
    """The samples of the folder after ``shard_dataset``."""
    tdr.shard_dataset(folder, "memory://names-out/{shard}.tar", overwrite=True, **options)
    samples = tdr.stream_shards("memory://names-out/", shuffle=False)
    return {one["__key__"]: {name: one[name] for name in one if name[:2] != "__"} for one in samples}


def streamed(folder: str, **options: Any) -> list[tuple[str, dict[str, bytes]]]:
    """Keys below the folder, and members, of ``stream_files``."""
    start = folder.removeprefix("memory://") + "/"
    return [
        (one["__key__"].removeprefix(start), {name: one[name] for name in one if name[:2] != "__"})
        for one in tdr.stream_files(folder, shuffle=False, **options)
    ]


def number_first(name: str) -> tuple[str, str]:
    stem, _, extension = name.rpartition(".")
    return "n" + stem.replace(".", "-"), extension


def test_two_files_that_share_a_key_by_a_dot_in_their_names_are_named(memory_folder: str) -> None:
    """Merged by ``shard_dataset``, two samples of ``stream_files``: both say so, with the option; once."""
    put(memory_folder, {**PRICES, "cat/22.07.png": b""})
    for read in (sharded, streamed):
        with pytest.warns(RuntimeWarning, match=r"cat/22\.05\.png.*cat/22\.06\.png.*split_name='last'") as seen:
            read(memory_folder)
        assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sharded(memory_folder, split_name="first").keys() == {"cat/22"}
        assert [key for key, _ in streamed(memory_folder, split_name="first")] == ["cat/22"] * 3


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["scan 1.5.png", "scan 1.6.jpg"], ["scan 1.5.png", "scan 1.6.jpg"]),
        (["22.05.png", "22.06.jpg"], ["22.05.png", "22.06.jpg"]),
        (["1.2.3.png.gz", "1.json"], ["1.2.3.png.gz", "1.json"]),
        (["s_0.95 cat.png", "s_0.97 dog.png"], ["s_0.95 cat.png", "s_0.97 dog.png"]),
        (["v1.final.png", "v1.png", "v2.png"], ["v1.final.png", "v1.png"]),
        ([f"{key}{n}.{ending}" for n in range(302) for key in "ab" for ending in ("json", f"w{n}.png")], ["json"]),
    ],
    ids=["other extension", "number", "compressed", "one key", "one of several", "many different"],
)
def test_files_merged_by_a_dot_of_a_name_are_named(names: list[str], named: list[str], memory_folder: str) -> None:
    """Numbers, and endings that do not repeat as those of a layout do; both split at the last dot are right."""
    put(memory_folder, dict.fromkeys(names, b""))
    with pytest.warns(RuntimeWarning, match="one sample.*split_name='last'") as seen:
        sharded(memory_folder)
    assert len(seen) == 1
    assert all(name in str(seen[0].message) for name in named)


@pytest.mark.parametrize(
    "names",
    [
        ["a.jpg", "a.json", "b.jpg", "b.json"],
        ["a.png", "a.seg.png", "b.png", "b.seg.png"],
        ["a.png", "a.Seg.PNG"],
        ["a.left.png", "a.right.png", "b.left.png", "b.right.png", "c.png"],
        ["1.2x.png", "1.png", "2.2x.png", "2.png"],
        ["84/1/84-1-0000.flac", "84/1/84-1-0001.flac", "84/1/84-1.trans.txt"],
        ["images/000139.jpg", "annotations/instances_val2017.json"],
        ["x.nii.gz", "x.json", "participants.tsv"],
        ["22.05.png", "23.06.png", "v1.final.png"],
    ],
    ids="/".join,
)
def test_layouts_of_samples_are_merged_without_a_warning(names: list[str], memory_folder: str) -> None:
    """As WebDataset, LibriSpeech, COCO and BIDS name files; and a dot in a name that is alone."""
    put(memory_folder, dict.fromkeys(names, b""))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sharded(memory_folder)


@pytest.mark.parametrize(
    ("split_name", "keys"),
    [
        ("last", ["cat/22_05", "cat/22_06"]),
        (os.path.splitext, ["cat/22_05", "cat/22_06"]),
        (number_first, ["cat/n22-05", "cat/n22-06"]),
    ],
    ids=["last", "splitext", "function"],
)
def test_names_are_split_by_one_option_for_shards_and_loose_files(
    split_name: Any, keys: list[str], memory_folder: str
) -> None:
    """The samples are the same; labels and provenance have the names of the source.

    Dots that a function returns are dropped before the extension, and underscores in the key.
    """
    put(memory_folder, PRICES)
    expected = dict(zip(keys, [{"png": b"2205"}, {"png": b"2206"}], strict=True))
    assert dict(streamed(memory_folder, split_name=split_name)) == expected
    found = sharded(memory_folder, split_name=split_name, labels=labels.from_pattern("([^/]+)$"), provenance=True)
    assert {key: {"png": one["png"]} for key, one in found.items()} == expected
    origins = fsspec.filesystem("memory").cat("memory://names-out/provenance.json").decode()
    assert all(name in origins for name in PRICES)
    urls = tdr.IterableWrapper([f"{memory_folder}/cat/"]).list_remote().sharding_filter_rank()
    start = memory_folder.removeprefix("memory://") + "/"
    assert keys_of(urls.file_reader(split_name=split_name)) == [start + key for key in keys]


NAMES = st.lists(
    st.builds(
        "{}{}{}.{}".format,
        st.sampled_from(["", "a.d/", "22/"]),
        st.sampled_from(["22", "a", "22_05"]),
        st.sampled_from(["", ".05", ".06", ".left", ".2x"]),
        st.sampled_from(["png", "PNG", "cls"]),
    ),
    min_size=1,
    max_size=8,
    unique_by=str.lower,
)


@given(names=NAMES)
def test_loose_files_that_share_a_key_are_named(names: list[str]) -> None:
    """Once, and both; each is a sample of its own, and nothing is said of others."""
    folder = "memory://names-shared"
    put(folder, dict.fromkeys(names, b""))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        keys = [key for key, _ in streamed(folder)]
    assert len(keys) == len(names)
    assert len(seen) == (len(set(keys)) < len(keys))
    assert all(sum(name in str(one.message) for name in names) >= 2 for one in seen)


@given(names=NAMES)
def test_split_at_the_last_dot_no_byte_is_lost(names: list[str]) -> None:
    """Unless two names become one member, which is an error that names both."""
    folder = "memory://names-dots"
    put(folder, {name: name.encode() for name in names})
    made = {name: (name.rpartition("/")[2].rpartition(".")[0].replace(".", "_"), name.lower()[-3:]) for name in names}
    full = {name: (name[: name.rfind("/") + 1] + key, extension) for name, (key, extension) in made.items()}
    stems = {name.rpartition(".")[0] for name in names}
    if len(set(full.values())) < len(names) or len({key for key, _ in full.values()}) < len(stems):
        with pytest.raises(errors.RemoteDataError, match=r"twice, before as|have the key"):
            sharded(folder, split_name="last")
        return
    found = sharded(folder, split_name="last")
    assert {(key, name): data for key, one in found.items() for name, data in one.items()} == {
        full[name]: name.encode() for name in names
    }


def test_options_that_split_no_names_are_refused(memory_folder: str) -> None:
    """Another word, a function that returns something else, and archives, whose names are no samples."""
    put(memory_folder, PRICES)
    wrong: Any = "middle"
    with pytest.raises(TypeError, match=r"split_name must be .* 'first' or 'last', got 'middle'"):
        tdr.stream_files(memory_folder, split_name=wrong)
    wrong = str.upper
    for read in (streamed, sharded):
        with pytest.raises(TypeError, match=r"split_name must return \(key, extension\) for '22\.05\.png'"):
            read(memory_folder, split_name=wrong)
    put(memory_folder, {"a.0.tar": shard("a"), "a.1.tar": shard("b")})
    assert sharded(memory_folder).keys() == {"a", "b"}
    with pytest.raises(ValueError, match=r"split_name is for loose files.*a\.0\.tar"):
        sharded(memory_folder, split_name="last")


# Files of macOS


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (2, 2)).save(file, "PNG")
    return file.getvalue()


MACOS = {"cat/._1.png": b"\0\5\26\7", ".DS_Store": b"\0\0\0\1Bud1", "__MACOSX/cat/._1.png": b"", "__MACOSX/x.png": b""}


def test_files_of_macos_are_left_out_of_folders_and_counted(memory_folder: str) -> None:
    """Of images, of files, of an index of their names, of samples, of shards beside others."""
    image = png()
    put(memory_folder, {**MACOS, "cat/1.png": image})
    index = [f"{memory_folder}/{name}" for name in [*MACOS, "cat/1.png"]]
    for images in (tdr.RemoteImageFolder(memory_folder), tdr.RemoteImageFolder(memory_folder, index=index)):
        assert (len(images), images.classes, images.skipped.members) == (1, ["cat"], {"macos": 4})
    files = tdr.RemoteFiles(memory_folder)
    assert ([files[0][0]], files.skipped.members) == (
        [f"{memory_folder}/cat/1.png"],
        {"macos": 4},
    )
    for samples in (tdr.stream_files(memory_folder), tdr.stream_files(memory_folder, pattern="*.png")):
        assert len(list(samples)) == 1
        assert samples.skipped.members == {"macos": 4}
    assert sharded(memory_folder, labels=labels.parent_directory()).keys() == {"cat/1"}
    put(memory_folder, {"._0.tar": b"\0\5\26\7", "0.tar": shard("a")})
    shards = tdr.stream_shards(memory_folder)
    assert (keys_of(shards), shards.skipped.members) == (["a"], {"macos": 1})
    assert len(tdr.index_shards(memory_folder)) == 1
    assert main(["verify", "--quiet", memory_folder]) == 0


def test_a_folder_of_files_of_macos_only_says_so(memory_folder: str) -> None:
    """They are named as others; one that is named itself is listed."""
    put(memory_folder, {"._1.png": b""})
    with pytest.raises(errors.EmptyListingError, match=r"has '\._1\.png'"):
        tdr.RemoteImageFolder(memory_folder)
    assert list(tdr.IterableWrapper([f"{memory_folder}/._1.png"]).list_remote()) == [f"{memory_folder}/._1.png"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_files_of_macos_are_left_out_of_archives_and_counted(kind: str, memory_folder: str) -> None:
    """As bsdtar and Finder write them: before and behind the members that they describe."""
    members = {"._cat": b"1", "cat/._1.txt": b"2", "cat/1.txt": b"one", "cat/._1.cls": b"3", "cat/1.cls": b"1"}
    members |= {"cat/.DS_Store": b"4", "__MACOSX/cat/._1.txt": b"5", "cat/2.txt": b"two"}
    put(memory_folder, {f"0.{kind}": tar_of(list(members.items())) if kind == "tar" else zip_of(members)})
    urls = tdr.IterableWrapper([memory_folder]).list_remote().sharding_filter_rank()
    samples = urls.shard_tar_reader() if kind == "tar" else urls.shard_zip_reader()
    found = [(one["__key__"], one["txt"], one.get("cls")) for one in samples]
    assert found == [("cat/1", b"one", b"1"), ("cat/2", b"two", None)]
    assert (samples.skipped.members, samples.skipped.bad_members) == ({"macos": 5}, {})
    if kind == "tar":
        assert main(["inspect", f"{memory_folder}/0.tar"]) == 0
        assert sharded(f"{memory_folder}/0.tar").keys() == {"cat/1", "cat/2"}
        tdr.index_shards(memory_folder)
        assert main(["verify", "--quiet", memory_folder]) == 0
        dataset = tdr.ShardedDataset(memory_folder)
        assert [dataset[number]["txt"] for number in range(2)] == [b"one", b"two"]
        assert dataset.skipped.members["macos"] > 0


# Members in upper case


@pytest.mark.parametrize(
    "pick",
    [
        lambda urls: urls.shard_tar_reader().to_tuple("Left.JPG"),
        lambda urls: urls.shard_tar_reader().to_tuple("png;LEFT.jpg"),
        lambda urls: urls.select(members=["Left.Jpg"]).shard_tar_reader().to_tuple("left.jpg"),
        lambda urls: urls.shard_tar_reader(lazy={"Left.JPG"}).to_tuple("left.jpg").map(lambda item: (bytes(item[0]),)),
        lambda urls: urls.shard_tar_reader(lazy={"JPG"}).to_tuple("left.jpg").map(lambda item: (bytes(item[0]),)),
        lambda urls: urls.shard_tar_reader().decode_sample({"LEFT.jpg": bytes}).to_tuple("Left.jpg"),
        lambda urls: urls.shard_tar_reader().decode_sample({"JPG": bytes}).to_tuple("Left.jpg"),
        lambda urls: tdr.join({"a": urls, "b": urls}, members={"a": "LEFT.jpg", "b": "CLS"}).to_tuple("Left.jpg"),
    ],
    ids=["to_tuple", "alternatives", "select", "lazy", "lazy part", "decode", "decode part", "join"],
)
def test_members_are_named_in_any_case(pick: Callable[[Any], Any], memory_folder: str) -> None:
    """Wherever an option names one."""
    put(memory_folder, {"0.tar": tar_of([("1.Left.JPG", b"left"), ("1.cls", b"1")])})
    tdr.index_shards(memory_folder)
    assert list(pick(tdr.IterableWrapper([f"{memory_folder}/index.json"]).list_remote())) == [(b"left",)]


def test_names_of_columns_and_of_own_members_are_found_in_any_case() -> None:
    """Those of tables and of ``map`` keep their case; the exact name goes first."""
    image = png()
    samples = tdr.IterableWrapper([{"__key__": "1", "Image": image, "Text": b"hi", "text": b"ho", "Tokens": [1, 2]}])
    assert list(tdr.pipes.ToTuple(samples, "IMAGE", "Text", "text")) == [(image, b"hi", b"ho")]
    (decoded,) = tdr.pipes.DecodeSample(samples, {"image": len})
    assert decoded["Image"] == len(image)
    (tensors,) = tdr.pipes.DecodeImage(samples, 2, members="IMAGE")
    assert tuple(tensors["Image"].shape) == (3, 2, 2)
    with pytest.raises(errors.LabelError, match="has 'CLS' already"):
        list(tdr.pipes.LabelFromPath(tdr.IterableWrapper([{"__key__": "cat/1", "CLS": 1}]), classes=["cat"]))


def test_two_members_that_differ_in_case_only_are_an_error_that_shows_both(memory_folder: str) -> None:
    """In a tar, among loose files, in a sample, among decoders."""
    put(memory_folder, {"0.tar": tar_of([("1.Left.jpg", b"a"), ("1.cls", b"1"), ("1.left.JPG", b"b")])})
    with pytest.raises(errors.BadMemberError, match=r"'1\.left\.JPG'.*'1\.Left\.jpg'"):
        list(tdr.stream_shards(memory_folder))
    put(memory_folder, {"a.d/1.Left.jpg": b"a", "a.d/1.left.JPG": b"b"})
    with pytest.raises(errors.BadMemberError, match=r"1\.left\.JPG.*'a\.d/1\.Left\.jpg'"):
        sharded(memory_folder)
    put(memory_folder, {"0.tar": tar_of([("a.d/1.Left.jpg", b"a"), ("a.d/1.left.JPG", b"b")])})
    with pytest.raises(errors.BadMemberError, match=r"'a\.d/1\.left\.JPG'.*'a\.d/1\.Left\.jpg'"):
        list(tdr.stream_shards(memory_folder))
    samples = tdr.IterableWrapper([{"__key__": "1", "Text": b"hi", "text": b"ho"}])
    with pytest.raises(errors.SampleError, match="'Text' and 'text'"):
        list(tdr.pipes.ToTuple(samples, "TEXT"))
    with pytest.raises(ValueError, match="differ in case only: 'JPG' and 'jpg'"):
        tdr.pipes.DecodeSample(samples, {"JPG": bytes, "jpg": bytes})
