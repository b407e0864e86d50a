"""Archives of many writers, read by several readers: names and data are the same."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import webdataset
from torch.utils.data.datapipes.iter import IterableWrapper
from webdataset.tariterators import group_by_keys, tar_file_iterator

from tests.support.archive_bytes import make_header, make_member, pack_tar
from tests.support.tar_members import read_members
from torchdata_remote import ShardTarReader, ShardWriter, ShardZipReader, WriteShards
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.grouping import samples_of
from torchdata_remote.formats.tar import END_OF_ARCHIVE

Members = list[tuple[str, bytes]]

SHORT = ["a.x", "é漢.x", "d/empty.x", "d/e/b.seg.x", "with blank.x", "d.e/-dash.x"]
FITS_USTAR = ["p" * 60 + "/" + "q" * 60 + "/" + "n" * 90 + ".x", "d/" + "n" * 98 + ".x", "d/" + "n" * 95 + ".x"]
LONG = ["r" * 200 + "/" + "s" * 200 + ".x", "u/" * 150 + "v.x", "é" * 120 + ".x", "n" * 101 + ".x", "o" * 253 + ".x"]
ALL = SHORT + FITS_USTAR + LONG
FILES = {name: b"" if "empty" in name else bytes([65 + i]) * (511 + i) for i, name in enumerate(ALL)}


def _run(*command: str | Path, **options: Any) -> bytes:
    """What a program prints, with UTF-8 names in any environment."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, env=environment, **options)
    return bytes(done.stdout)


def _is(program: str, text: bytes) -> bool:
    return shutil.which(program) is not None and text in _run(program, "--version")


HAS_GNU_TAR, HAS_BSDTAR = _is("tar", b"GNU"), _is("bsdtar", b"libarchive")
WRITERS = [("tar", form) for form in ("v7", "oldgnu", "gnu", "ustar", "pax", "posix")]
WRITERS += [("bsdtar", form) for form in ("v7tar", "ustar", "gnutar", "paxr", "pax")]


def _skip_without(program: str) -> None:
    if not {"tar": HAS_GNU_TAR, "bsdtar": HAS_BSDTAR, "python": True}[program]:
        pytest.skip("GNU tar is not installed" if program == "tar" else "bsdtar is not installed: libarchive-tools")


def _names(form: str) -> list[str]:
    """Those that a format can hold."""
    return SHORT if form.startswith("v7") else SHORT + FITS_USTAR if form == "ustar" else ALL


def _folder(tmp_path: Path, names: list[str]) -> Path:
    """The files on disk."""
    folder = tmp_path / "files"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(FILES[name])
    return folder


def _ours(archive: Path) -> Members:
    return list(read_members([archive.read_bytes()], url=str(archive)))


def _by_tarfile(archive: Path) -> Members:
    with tarfile.open(archive) as tar:
        return [(info.name, file.read()) for info in tar if info.isreg() and (file := tar.extractfile(info))]


def _by_webdataset(archive: Path) -> Members:
    with archive.open("rb") as file:
        return [(member["fname"], member["data"]) for member in tar_file_iterator(file)]


def _extracted(archive: Path, *command: str | Path) -> Members:
    """What a program extracts: files that are neither links nor hard links, by name."""
    (folder := archive.parent / f"{archive.stem}-by-{command[0]}").mkdir()
    _run(*command, archive, cwd=folder)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted((str(path.relative_to(folder)), path.read_bytes()) for path in files)


def _assert_all_agree(archive: Path, expected: Members) -> None:
    """Every reader that is here finds these members, ours in the order of the others."""
    ours = _ours(archive)
    assert sorted(ours) == sorted(expected)
    assert _by_tarfile(archive) == ours
    assert _by_webdataset(archive) == ours
    if HAS_GNU_TAR:
        assert _extracted(archive, "tar", "-xf") == sorted(ours)
        assert _run("tar", "-xOf", archive) == b"".join(data for _, data in ours)
    if HAS_BSDTAR:
        assert _extracted(archive, "bsdtar", "-xf") == sorted(ours)


@pytest.mark.parametrize(("program", "form"), [*WRITERS, ("python", "ustar"), ("python", "gnu"), ("python", "pax")])
def test_all_readers_agree_on_what_others_write(tmp_path: Path, program: str, form: str) -> None:
    """Short, long, deep and UTF-8 names, empty files, directories; times and owners in pax."""
    _skip_without(program)
    names, archive = _names(form), tmp_path / "a.tar"
    folder = _folder(tmp_path, names)
    if program == "python":
        with tarfile.open(archive, "w", format=["ustar", "gnu", "pax"].index(form)) as tar:
            for top in sorted(os.listdir(folder)):
                tar.add(folder / top, top, filter=lambda info: info.replace(uname="é", deep=False))
    else:
        _run(program, f"--format={form}", "-cf", archive, "-C", folder, "--", *sorted(os.listdir(folder)))
    _assert_all_agree(archive, [(name, FILES[name]) for name in names])


@pytest.mark.parametrize(("program", "form"), WRITERS)
def test_links_are_skipped_and_other_members_match_other_readers(tmp_path: Path, program: str, form: str) -> None:
    """Hard and symbolic ones, to short and to long targets, under short and under long names."""
    _skip_without(program)
    names, archive, is_small = _names(form), tmp_path / "a.tar", form[:2] in ("v7", "us")
    folder = _folder(tmp_path, names)
    for target in names[:1] if is_small else (names[0], names[-1]):
        os.link(folder / target, folder / f"{target[:3]}-hard")
        (folder / f"{target[:3]}-soft").symlink_to(target)
    (folder / ("l" * (99 if is_small else 200))).symlink_to("a.x")
    links = [path.name for path in folder.iterdir() if path.name.endswith(("-hard", "-soft", "l"))]
    tops = sorted({name.split("/")[0] for name in names})
    _run(program, f"--format={form}", "-cf", archive, "-C", folder, "--", *tops, *links)
    assert _ours(archive) == _by_webdataset(archive) == _by_tarfile(archive)
    assert len(links) >= 3
    assert sorted(_ours(archive)) == sorted((name, FILES[name]) for name in names)


def _clean(samples: Any) -> list[dict[str, Any]]:
    """Samples without ``__url__``."""
    return [{k: v for k, v in sample.items() if k == "__key__" or not k.startswith("__")} for sample in samples]


def _samples(archive: Path, **options: Any) -> list[dict[str, Any]]:
    return _clean(ShardTarReader(IterableWrapper([str(archive)]), **options))


def _webdataset_samples(archive: Path) -> list[dict[str, Any]]:
    with archive.open("rb") as file:
        return _clean(group_by_keys({**member, "__url__": "u"} for member in tar_file_iterator(file)))


SAMPLES = [
    {"__key__": f"{folder}{i:03}", "jpg": b"\xff\xd8" + bytes(i * 37), "cls": b"%d" % i, "seg.png": b"p" * (i % 3)}
    for folder in ("", "train/", "é/", "p" * 200 + "/")
    for i in range(12)
]


def _members(samples: list[dict[str, Any]]) -> Members:
    """In the order in which we write them."""
    return [(f"{s['__key__']}.{k}", s[k]) for s in samples for k in ("cls", "jpg", "seg.png")]


@pytest.mark.parametrize("compress", [False, True])
def test_samples_of_webdatasets_writer_are_read_unchanged(tmp_path: Path, compress: bool) -> None:
    """By its ShardWriter, plain and as .tar.gz: our samples are its own."""
    ending = ".tar.gz" if compress else ".tar"
    with webdataset.ShardWriter(str(tmp_path / f"%03d{ending}"), maxcount=20, verbose=0) as writer:
        for sample in SAMPLES:
            writer.write(sample)
    assert len(archives := sorted(tmp_path.glob(f"*{ending}"))) == 3
    assert [sample for archive in archives for sample in _samples(archive)] == SAMPLES
    assert all(_samples(archive) == _webdataset_samples(archive) for archive in archives)


@pytest.mark.parametrize("by_pipe", [False, True])
def test_shards_of_this_package_are_read_by_all_readers(tmp_path: Path, by_pipe: bool) -> None:
    """By ShardWriter and by write_shards: the same members for everyone, the same samples for webdataset."""
    template = str(tmp_path / "out" / "{shard:03d}.tar")
    if by_pipe:
        list(WriteShards(IterableWrapper(SAMPLES), template, max_shard_samples=30))
    else:
        with ShardWriter(template, max_shard_samples=30) as writer:
            for sample in SAMPLES:
                writer.write(sample)
    archives = sorted((tmp_path / "out").glob("*.tar"))
    assert [sample for archive in archives for sample in _samples(archive)] == SAMPLES
    for archive in archives:
        assert _samples(archive) == _webdataset_samples(archive)
        _assert_all_agree(archive, _members(_samples(archive)))


@pytest.mark.parametrize("name", ["a.__key__", "a.__url__", "d/a.__KEY__"])
def test_a_member_cannot_take_the_place_of_the_key(name: str) -> None:
    """webdataset calls it a duplicate; the docstring promises text under ``__key__`` and ``__url__``."""
    with pytest.raises(ValueError, match="duplicate"):
        list(group_by_keys([{"fname": name.lower(), "data": b"", "__url__": "u"}]))
    with pytest.raises(ShardReadError):
        list(samples_of([([name, "b.x"], [b"evil", b""])], url="u"))


SPARSE = ["tar -S --format=gnu", "tar -S --format=oldgnu", "tar -S --format=pax", "bsdtar --format=pax"]
SPARSE += [f"tar -S --format=pax --sparse-version={version}" for version in ("0.0", "0.1", "1.0")]


@pytest.mark.parametrize("command", SPARSE)
def test_sparse_files_are_refused_by_name(tmp_path: Path, command: str) -> None:
    """Written in each way: the error says "sparse", and which option of tar made it so."""
    program, *options = command.split()
    _skip_without(program)
    with (tmp_path / "a.x").open("wb") as file:
        file.write(b"x")
        file.seek(1 << 20)
        file.write(b"y")
    archive = tmp_path / "a.tar"
    _run(program, *options, "-cf", archive, "-C", tmp_path, "a.x")
    if archive.stat().st_size > 1 << 20:
        pytest.skip("this file system keeps no holes")
    with pytest.raises(ShardReadError, match=r"sparse.*--sparse"):
        _ours(archive)


def _zstd(data: bytes) -> bytes:
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    return _run("zstd", "-c", input=data)


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}
COMPRESSORS["zstd"] = _zstd


TAR = pack_tar(_members(SAMPLES))


@pytest.mark.parametrize("program", ["tar", "bsdtar"])
@pytest.mark.parametrize("option", ["-z", "-j", "-J", "--zstd"])
def test_compressed_shards_hold_the_same_samples(tmp_path: Path, program: str, option: str) -> None:
    """By tar's own options, recognised by content: the file is named plain .tar."""
    _skip_without(program)
    compressor = {"-z": "gzip", "-j": "bzip2", "-J": "xz", "--zstd": "zstd"}[option]
    if program == "tar" and shutil.which(compressor) is None:
        pytest.skip(f"{compressor} is not installed")
    with tarfile.open(fileobj=io.BytesIO(TAR)) as tar:
        tar.extractall(tmp_path / "files", filter="data")
    names = [name for name, _ in _members(SAMPLES)]
    _run(program, option, "-cf", tmp_path / "packed.tar", "-C", tmp_path / "files", *names)
    assert (tmp_path / "packed.tar").read_bytes()[257:262] != b"ustar"
    assert _samples(tmp_path / "packed.tar") == SAMPLES


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("piece_bytes", [5_000, 20_000])
def test_concatenated_compressed_streams_are_one_archive(tmp_path: Path, compressor: str, piece_bytes: int) -> None:
    """As pigz, pbzip2, pixz and pzstd write them, each piece of the archive compressed by itself."""
    compress = COMPRESSORS[compressor]
    pieces = [compress(TAR[start : start + piece_bytes]) for start in range(0, len(TAR), piece_bytes)]
    (tmp_path / "packed.tar").write_bytes(b"".join(pieces))
    assert _samples(tmp_path / "packed.tar") == SAMPLES


@pytest.mark.parametrize("outer", [None, *COMPRESSORS])
@pytest.mark.parametrize("inner", [None, *COMPRESSORS])
def test_archives_of_archives_are_read_as_one(tmp_path: Path, outer: str | None, inner: str | None) -> None:
    """As ImageNet's, compressed inside or outside: the inner archive's name precedes the key."""
    classes = {c: {f"{c}_{i}": b"\xff\xd8" * i for i in (10026, 10027, 9)} for c in ("n01440764", "n01443537")}
    pack_inner, pack_outer = ((lambda data: data) if name is None else COMPRESSORS[name] for name in (inner, outer))
    packed = {c: pack_tar([(f"{key}.JPEG", image) for key, image in images.items()]) for c, images in classes.items()}
    (tmp_path / "ILSVRC.tar").write_bytes(pack_outer(pack_tar([(f"{c}.tar", pack_inner(packed[c])) for c in packed])))
    samples = _samples(tmp_path / "ILSVRC.tar", nested=True)
    assert samples[0]["__key__"] == "n01440764/n01440764_10026"
    assert samples == [{"__key__": f"{c}/{k}", "jpeg": d} for c in classes for k, d in classes[c].items()]


def test_a_key_that_comes_back_in_another_archive_inside_is_an_error(tmp_path: Path) -> None:
    """As in a plain shard: b/c of a.tar and c of a/b.tar would both be a/b/c."""
    inner = [("a.tar", pack_tar([("b/c.x", b"1")])), ("a/b.tar", pack_tar([("c.x", b"2")]))]
    (tmp_path / "a.tar").write_bytes(pack_tar(inner))
    with pytest.raises(ShardReadError):
        _samples(tmp_path / "a.tar", nested=True)


def _head(size: bytes, kind: bytes = b"0", magic: bytes = b"ustar\x0000") -> bytes:
    return make_header(b"a.x", size, kind, magic)


def _pax(record: bytes, kind: bytes = b"x") -> bytes:
    return make_member(b"a.x", record, kind)


def _by_python(form: int, name: str = "a.x") -> bytes:
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode="w", format=form) as tar:
        info = tarfile.TarInfo(name)
        info.size = 3
        tar.addfile(info, io.BytesIO(b"one"))
    return buffer.getvalue()


def _zip(method: int) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", method) as archive:
        archive.writestr("a.x", b"one")
    return buffer.getvalue()


DATA, THREE, NONE = b"one".ljust(512, b"\0") + END_OF_ARCHIVE, b"00000000003\0", b"00000000000\0"
SPARSE_PAX = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
USTAR = _by_python(tarfile.USTAR_FORMAT)
FORMATS: dict[str, tuple[Callable[[], bytes], str]] = {
    "v7": (lambda: _head(THREE, b"\0", magic=b"") + DATA, "a"),
    "ustar": (lambda: _by_python(tarfile.USTAR_FORMAT, "p/" * 70 + "a.x"), "p/" * 70 + "a"),
    "gnu-long-names": (lambda: _by_python(tarfile.GNU_FORMAT, "p/" * 200 + "a.x"), "p/" * 200 + "a"),
    "gnu-base-256-sizes": (lambda: _head(b"\x80" + (3).to_bytes(11, "big")) + DATA, "a"),
    "pax-path": (lambda: _by_python(tarfile.PAX_FORMAT, "é/" * 200 + "a.x"), "é/" * 200 + "a"),
    "pax-size": (lambda: _pax(b"10 size=3\n") + _head(NONE) + DATA, "a"),
    "pax-other-records-ignored": (lambda: _pax(b"13 mtime=1.5\n13 vendor.k=\n") + _head(THREE) + DATA, "a"),
    "pax-global-ignored": (lambda: _pax(b"15 comment=git\n", b"g") + _head(THREE) + DATA, "a"),
    "sparse-refused": (lambda: _pax(SPARSE_PAX) + _head(THREE) + DATA, ""),
    **{name: (partial(compress, USTAR), "a") for name, compress in COMPRESSORS.items()},
    "nested": (lambda: pack_tar([("n01440764.tar", USTAR)]), "n01440764/a"),
    "zip-stored": (lambda: _zip(zipfile.ZIP_STORED), "a"),
    "zip-deflated": (lambda: _zip(zipfile.ZIP_DEFLATED), "a"),
}


@pytest.mark.parametrize("row", FORMATS)  # a row of the README's table each
def test_each_format_of_the_readme_is_read_or_refused_with_the_reason(tmp_path: Path, row: str) -> None:
    """What the README says of each format: its one sample is read, or it is refused with the reason."""
    make, key = FORMATS[row]
    (archive := tmp_path / "a.archive").write_bytes(make())
    urls = IterableWrapper([str(archive)])
    pipe = ShardZipReader(urls) if row.startswith("zip") else ShardTarReader(urls, nested=row == "nested")
    if row.endswith("refused"):
        with pytest.raises(ShardReadError, match="sparse"):
            list(pipe)
    else:
        assert _clean(pipe) == [{"__key__": key, "x": b"one"}]
        if row not in ("nested", "zstd") and not row.startswith("zip"):
            assert _by_tarfile(archive) == [(f"{key}.x", b"one")], "the archive is what it should be"
