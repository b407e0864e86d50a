"""Archives of other programs are read, and other programs read ours."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_iterator

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.archives import COMPRESS, Members, bare, grouped, read, reader, refusal
from tests.support.shard_places import memory_place, tar_of

SHORT = ["a.x", "é漢.x", "d/empty.x", "d/e/b.seg.x", "with blank.x", "d.e/-dash.x"]
# Around the limits of ustar's two fields: 100 bytes of name, 155 of prefix
FITS_USTAR = ["p" * 60 + "/" + "q" * 60 + "/" + "n" * 90 + ".x", "d/" + "n" * 98 + ".x", "d/" + "n" * 95 + ".x"]
LONG = ["r" * 200 + "/" + "s" * 200 + ".x", "u/" * 150 + "v.x", "é" * 120 + ".x", "n" * 101 + ".x", "o" * 253 + ".x"]
FILES = {
    name: b"" if "empty" in name else bytes([65 + i]) * (511 + i) for i, name in enumerate(SHORT + FITS_USTAR + LONG)
}
WRITERS = [("tar", form) for form in ("v7", "oldgnu", "gnu", "ustar", "pax")]
WRITERS += [("bsdtar", form) for form in ("v7tar", "ustar", "gnutar", "paxr", "pax")]
WRITERS += [("python", form) for form in ("ustar", "gnu", "pax")]


def run(*command: str | Path, **options: Any) -> bytes:
    """What a program prints, with UTF-8 names in any environment."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, env=environment, **options)
    return bytes(done.stdout)


def is_here(program: str) -> bool:
    version = {"tar": b"GNU", "bsdtar": b"libarchive"}.get(program)
    if program == "python" or shutil.which(program) is None:
        return program == "python"
    return version is None or version in run(program, "--version")


def need(program: str) -> None:
    if not is_here(program):
        pytest.skip(f"{program} is not installed")


def by_tarfile(data: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(info.name, file.read()) for info in tar if info.isreg() and (file := tar.extractfile(info))]


@pytest.mark.parametrize(("program", "form"), WRITERS)
def test_files_of_every_tar_program_are_read_and_links_are_left_out_with_a_warning(
    tmp_path: Path, program: str, form: str
) -> None:
    """Short, long, deep and UTF-8 names, empty files, directories; hard and symbolic links to short and long names."""
    need(program)
    is_small = form[:2] in ("v7", "us")
    names = SHORT if form.startswith("v7") else SHORT + FITS_USTAR if form == "ustar" else list(FILES)
    folder, archive = tmp_path / "files", tmp_path / "a.tar"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(FILES[name])
    links = ["l" * (99 if is_small else 200)]
    (folder / links[0]).symlink_to("a.x")
    for target in names[:1] if is_small else (names[0], names[-1]):
        links += [f"{target[:3]}-hard", f"{target[:3]}-soft"]
        os.link(folder / target, folder / links[-2])
        (folder / links[-1]).symlink_to(target)
    tops = [*sorted({name.split("/")[0] for name in names}), *links]
    if program == "python":
        with tarfile.open(archive, "w", format=["ustar", "gnu", "pax"].index(form)) as tar:
            for top in tops:
                tar.add(folder / top, top, filter=lambda info: info.replace(uname="é", deep=False))
    else:
        run(program, f"--format={form}", "-cf", archive, "-C", folder, "--", *tops)
    expected = by_tarfile(archive.read_bytes())
    assert dict(expected) == {name: FILES[name] for name in names}
    pipe = reader(archive.read_bytes())
    with pytest.warns(RuntimeWarning, match=rf"links are left out \({len(links)}, such as"):
        assert bare(pipe) == grouped(expected)
    assert pipe.skipped.members["link"] == len(links)


def test_names_of_another_encoding_are_kept() -> None:
    """Latin-1 is decoded with surrogates, as Python's file names are."""
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form, encoding="latin-1") as archive:
            archive.addfile(tarfile.TarInfo("ä.x"))
        assert read(buffer.getvalue()) == [{"__key__": "\udce4", "x": b""}]


SAMPLES: list[dict[str, Any]] = [
    {"__key__": f"{folder}{i:03}", "cls": b"%d" % i, "jpg": b"\xff\xd8" + bytes(i * 37), "seg.png": b"p" * (i % 3)}
    for folder in ("", "train/", "é/", "p" * 200 + "/", "q" * 120 + "/" + "n" * 60)
    for i in range(9)
]
MEMBERS = [(f"{sample['__key__']}.{name}", sample[name]) for sample in SAMPLES for name in list(sample)[1:]]
TAR = pack_tar(MEMBERS)


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_shards_of_webdataset_are_read_as_it_reads_them(tmp_path: Path, ending: str) -> None:
    with webdataset.ShardWriter(str(tmp_path / f"%03d{ending}"), maxcount=20, verbose=0) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    assert len(archives := sorted(tmp_path.glob(f"*{ending}"))) == 3
    assert [sample for archive in archives for sample in read(archive.read_bytes())] == SAMPLES


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.zst"])
def test_shards_of_this_package_are_read_by_every_program(tmp_path: Path, ending: str) -> None:
    with tdr.ShardWriter(f"{tmp_path}/{{shard}}{ending}") as writer:
        for sample in SAMPLES:
            writer.write(sample)
    archive = tmp_path / f"0{ending}"
    assert read(archive.read_bytes()) == SAMPLES
    if ending == ".tar":
        data = archive.read_bytes()
        assert data == TAR
        assert by_tarfile(data) == MEMBERS
        members = ({**member, "__url__": "u"} for member in tar_file_iterator(io.BytesIO(data)))
        assert bare(group_by_keys(members)) == SAMPLES
    for program in filter(is_here, ("tar", "bsdtar")):
        if ending.endswith("zst") and program == "tar" and not is_here("zstd"):
            continue
        (folder := tmp_path / program).mkdir()
        run(program, "-xf", archive, cwd=folder)
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert found == dict(MEMBERS)


KEYS = st.text(st.characters(exclude_characters="\0./", exclude_categories=["Cs"]), min_size=1, max_size=130)
FOLDERS = st.sampled_from(["", "d/", "p" * 154 + "/", "p" * 155 + "/", "é" * 40 + "/", "ab/" * 60])
SIZES = st.sampled_from([0, 1, 511, 512, 513, 1025])


@given(st.lists(st.tuples(FOLDERS, KEYS, SIZES), min_size=1, max_size=6, unique_by=lambda one: one[0] + one[1]))
def test_a_written_shard_is_a_plain_tar_of_these_bytes(keys: list[tuple[str, str, int]]) -> None:
    """Names of any script and length, data of any size: the same bytes always, and tarfile finds all in them."""
    members = [(f"{folder}k{key}.bin", bytes(i * 7 % 251 for i in range(size))) for folder, key, size in keys]
    place = memory_place()
    with tdr.ShardWriter(place.template()) as writer:
        for name, data in members:
            writer.write({"__key__": name[:-4], "bin": data})
    data = place.files()["000000.tar"]
    assert data == pack_tar(members)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        infos = archive.getmembers()
    assert [info.name for info in infos] == [name for name, _ in members]
    assert all(info.isreg() and (info.mode, info.uid, info.gid, info.mtime) == (0o644, 0, 0, 0) for info in infos)
    assert read(data) == grouped(members)


SPARSE = ["tar -S --format=gnu", "tar -S --format=oldgnu", "bsdtar --format=pax"]
SPARSE += [f"tar -S --format=pax --sparse-version={version}" for version in ("0.0", "0.1", "1.0")]


@pytest.mark.parametrize("command", SPARSE)
def test_sparse_files_are_refused_with_the_option_that_made_them(tmp_path: Path, command: str) -> None:
    program, *options = command.split()
    need(program)
    with (tmp_path / "a.x").open("wb") as file:
        file.write(b"x")
        file.seek(1 << 20)
        file.write(b"y")
    run(program, *options, "-cf", tmp_path / "a.tar", "-C", tmp_path, "a.x")
    data = (tmp_path / "a.tar").read_bytes()
    if len(data) > 1 << 20:
        pytest.skip("this file system keeps no holes")
    message = refusal(data)
    assert "sparse" in message
    assert "--sparse" in message


@pytest.mark.parametrize("outer", [None, *COMPRESS])
@pytest.mark.parametrize("inner", [None, *COMPRESS])
def test_an_archive_of_archives_is_read_as_one(outer: str | None, inner: str | None) -> None:
    """As ImageNet's, compressed inside or outside: the inner archive's name precedes the key."""
    classes = {c: {f"{c}_{i}": b"\xff\xd8" * i for i in (10026, 10027, 9)} for c in ("n01440764", "n01443537")}
    packed = {c: tar_of([(f"{key}.JPEG", image) for key, image in images.items()]) for c, images in classes.items()}
    if inner is not None:
        packed = {c: COMPRESS[inner](data) for c, data in packed.items()}
    data = pack_tar([("__meta__", b"x"), *((f"{c}.tar", packed[c]) for c in packed)])
    pipe = reader(data if outer is None else COMPRESS[outer](data), nested=True)
    assert bare(pipe) == [{"__key__": f"{c}/{k}", "jpeg": d} for c in classes for k, d in classes[c].items()]
    assert pipe.skipped.members == {"meta": 1}


def test_archives_are_opened_one_level_deep() -> None:
    """Those in an archive of archives are members."""
    inner = tar_of([("b.tar", TAR)])
    assert read(tar_of([("a.tar", inner)]), nested=True) == [{"__key__": "a/b", "tar": TAR}]


@pytest.mark.parametrize(
    "command",
    ["zip -qry ../a.zip %", "zip -qry0 ../a.zip %", "zip -qry - % >../a.zip", "bsdtar -acf ../a.zip %"],
)
def test_zips_of_other_programs_are_read(tmp_path: Path, command: str) -> None:
    """Files in folders, also piped; directories and links are left out; names are UTF-8 also without the flag."""
    need(command.split()[0])
    files = {"a.jpg": bytes(range(250)), "d/é.cls": b"1", "d/e/empty.x": b"", "d/zeros.x": bytes(100_000)}
    for name, content in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    (tmp_path / "in/link").symlink_to("a.jpg")
    subprocess.run(command.replace("%", "a.jpg d link"), shell=True, cwd=tmp_path / "in", check=True)
    pipe = reader((tmp_path / "a.zip").read_bytes(), "zip")
    with pytest.warns(RuntimeWarning, match=r"links are left out \(1, such as 'link'\).*zip without --symlinks"):
        found = bare(pipe)
    assert sorted(found, key=str) == sorted(grouped(files.items()), key=str)
    assert pipe.skipped.members["link"] == 1
    assert pipe.skipped.members["directory"] == 2
