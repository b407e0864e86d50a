"""``datasets://`` in fsspec: its conformance tests, and further promises."""

from __future__ import annotations

import datetime as dt
import gc
import io
import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests import abstract
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.scripted import Response, scripted
from torchdata_remote.errors import AccessDeniedError, ObjectChangedError, ObjectExistsError, StorageError
from torchdata_remote.service.client import file as _datasets_file
from torchdata_remote.service.client.filesystem import DatasetsFileSystem
from torchdata_remote.storage import multipart as _multipart


@pytest.fixture(scope="session")
def host(served: str) -> str:
    """``host:port`` of a service."""
    return served


@pytest.fixture
def fs() -> DatasetsFileSystem:
    return DatasetsFileSystem()


@pytest.fixture
def root(host: str, fs: DatasetsFileSystem) -> str:
    """An empty dataset."""
    made = f"{host}/{uuid.uuid4().hex[:12]}"
    fs.mkdir(made)
    return made


# fsspec's own tests


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]  # fsspec carries no types
    @pytest.fixture
    def fs(self) -> DatasetsFileSystem:
        return DatasetsFileSystem()

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self, root: str) -> str:
        return root

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(Fixtures, abstract.AbstractCopyTests):  # type: ignore[misc]
    """Copies within the service."""


class TestGet(Fixtures, abstract.AbstractGetTests):  # type: ignore[misc]
    """Downloads."""


class TestPut(Fixtures, abstract.AbstractPutTests):  # type: ignore[misc]
    """Uploads."""


class TestOpen(Fixtures, getattr(abstract, "AbstractOpenTests", object)):  # type: ignore[misc]  # newer than 2023.12
    """Opening."""


class TestPipe(Fixtures, abstract.AbstractPipeTests):  # type: ignore[misc]
    """Writing in one call."""


# Reading


@settings(max_examples=40)
@given(
    data=st.binary(max_size=50),
    start=st.none() | st.integers(-60, 60),
    end=st.none() | st.integers(-60, 60),
    read_bytes=st.integers(1, 60),
)
def test_cat_file_returns_a_slice(host: str, data: bytes, start: int | None, end: int | None, read_bytes: int) -> None:
    """In any number of requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_datasets_file, "READ_BYTES", read_bytes)
        fs, path = DatasetsFileSystem(), f"{host}/slices/a"
        fs.pipe_file(path, data)
        assert fs.cat_file(path, start, end) == data[start:end]


@settings(max_examples=20)
@given(
    data=st.binary(max_size=200),
    block_size=st.integers(1, 50),
    steps=st.lists(st.tuples(st.integers(0, 220), st.integers(0, 80)), max_size=5),
)
def test_seek_and_read_are_those_of_a_file(
    host: str, data: bytes, block_size: int, steps: list[tuple[int, int]]
) -> None:
    """Also after pickling."""
    fs, path, memory = DatasetsFileSystem(), f"{host}/seeks/a", io.BytesIO(data)
    fs.pipe_file(path, data)
    with fs.open(path, block_size=block_size) as file:
        for position, length in steps:
            assert (file.seek(position), file.read(length)) == (memory.seek(position), memory.read(length))
            with pickle.loads(pickle.dumps(file)) as again:
                assert again.tell() == file.tell()


def test_cat_ranges_keeps_the_order(fs: DatasetsFileSystem, root: str) -> None:
    """Errors are returned at their index, or raised."""
    fs.pipe({f"{root}/{number}": b"%d" % number * 10 for number in range(10)})
    paths = [f"{root}/{number}" for number in range(10)]
    assert fs.cat_ranges(paths, 0, list(range(1, 11))) == [b"%d" % number * (number + 1) for number in range(10)]
    found = fs.cat_ranges([*paths, f"{root}/none"], 2, 4)
    assert found[:10] == [b"%d" % number * 2 for number in range(10)]
    assert isinstance(found[10], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{root}/none"], 2, 4, on_error="raise")


def test_an_open_file_is_of_one_version(fs: DatasetsFileSystem, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"0" * 100)
    with fs.open(f"{root}/a", block_size=10) as file:
        assert file.read(10) == b"0" * 10
        fs.pipe_file(f"{root}/a", b"1" * 100)
        with pytest.raises(ObjectChangedError):
            file.read(50)


# What is there


def test_info_and_ls(fs: DatasetsFileSystem, host: str, root: str) -> None:
    """Datasets are folders, also empty ones; files have size, etag and time; others are an error."""
    for path in ("cat/1.txt", "cat/2.txt", "dog/deep/3.txt", "all.txt"):
        fs.pipe_file(f"{root}/{path}", path.encode())
    empty = root + "-empty"
    fs.mkdir(empty)
    assert {root, empty} <= set(fs.ls(host, detail=False))
    assert (fs.ls(empty), fs.isdir(empty), fs.exists(empty)) == ([], True, True)
    assert fs.ls(root, detail=False) == [f"{root}/all.txt", f"{root}/cat", f"{root}/dog"]
    assert fs.ls(f"{root}/all.txt", detail=False) == [f"{root}/all.txt"]
    info = fs.info(f"datasets://{root}/cat/1.txt")
    assert (info["name"], info["size"], info["type"]) == (f"{root}/cat/1.txt", 9, "file")
    assert abs(fs.modified(info["name"]) - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(minutes=5)
    assert fs.created(info["name"]) == fs.modified(info["name"])
    assert (fs.isfile(f"{root}/cat"), fs.isdir(f"{root}/cat"), fs.isdir(host)) == (False, True, True)
    assert fs.glob(f"{root}/*/*.txt") == [f"{root}/cat/1.txt", f"{root}/cat/2.txt"]
    assert fs.glob(f"{root}/**") == [root, *fs.find(root, withdirs=True)[1:]]
    assert fs.du(root) == sum(map(len, ("cat/1.txt", "cat/2.txt", "dog/deep/3.txt", "all.txt")))
    for attempt in (fs.info, fs.ls, fs.cat_file, fs.open, fs.rm_file, fs.rm, fs.modified):
        for path in (f"{root}/none", f"{root}/none/none", f"{host}/no-such-dataset"):
            with pytest.raises(FileNotFoundError):
                attempt(path)
    assert not fs.exists(f"{root}/none")
    with pytest.raises(IsADirectoryError):
        fs.open(f"{root}/cat")


@settings(max_examples=20)
@given(
    paths=st.sets(st.lists(st.sampled_from(["a", "b", "a.b"]), min_size=1, max_size=3).map("/".join), max_size=6),
    below=st.sampled_from(["", "/a", "/a/b"]),
    maxdepth=st.none() | st.integers(1, 3),
    withdirs=st.booleans(),
)
def test_find_equals_that_of_fsspecs_memory_filesystem(
    host: str, paths: set[str], below: str, maxdepth: int | None, withdirs: bool
) -> None:
    """To any depth."""
    paths = {path for path in paths if not any(other.startswith(path + "/") for other in paths)}
    fs, memory, name = DatasetsFileSystem(), fsspec.filesystem("memory"), uuid.uuid4().hex[:12]
    fs.mkdir(f"{host}/{name}")
    memory.mkdir(f"/{host}/{name}")
    for path in paths:
        fs.pipe_file(f"{host}/{name}/{path}", b"x")
        memory.pipe_file(f"/{host}/{name}/{path}", b"x")
    expected = [path[1:] for path in memory.find(f"/{host}/{name}{below}", maxdepth=maxdepth, withdirs=withdirs)]
    found = fs.find(f"{host}/{name}{below}", maxdepth=maxdepth, withdirs=withdirs, detail=True)
    assert list(found) == expected
    assert all(info["name"] == path for path, info in found.items())
    walked = sorted(path[1:] for path, _, _ in memory.walk(f"/{host}/{name}"))
    assert sorted(path for path, _, _ in fs.walk(f"{host}/{name}")) == walked


def test_a_refusal_is_an_error_and_not_a_missing_file(fs: DatasetsFileSystem) -> None:
    """Nor an empty folder."""
    with scripted(lambda request: Response(403, b"")) as server:
        path = f"{server.url.removeprefix('http://')}/photos/cat"
        for attempt in (fs.exists, fs.isfile, fs.isdir, fs.ls, fs.find, fs.info, lambda path: list(fs.walk(path))):
            with pytest.raises(AccessDeniedError):
                attempt(path)


# Writing


def test_a_block_left_by_an_exception_publishes_nothing(
    fs: DatasetsFileSystem, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However the file was opened."""
    url = f"datasets://{root}/a"
    opened: list[Callable[[], Any]] = [
        lambda: fs.open(url, "wb"),
        lambda: fs.open(url, "w"),
        lambda: fsspec.open(url, "wb"),
        lambda: fsspec.open(url, "wt"),
        lambda: fsspec.open(url, "wb", compression="gzip"),
    ]

    def interrupted(opening: Callable[[], Any], data: str | bytes) -> None:
        with opening() as file:
            file.write(data)
            raise ZeroDivisionError

    for number, opening in enumerate(opened):
        with pytest.raises(ZeroDivisionError):
            interrupted(opening, "torn" if number in (1, 3) else b"torn")
        assert not fs.exists(url), number
        try:
            raise KeyError  # an error that is being handled already is no reason
        except KeyError:
            with opening() as file:
                file.write("whole" if number in (1, 3) else b"whole")
        assert fs.size(url) >= 5, number
        fs.rm(url)
    assert "is not published: it was closed while a ZeroDivisionError was handled" in caplog.text


def test_a_file_that_is_never_closed_is_not_published(fs: DatasetsFileSystem, root: str) -> None:
    """It may be incomplete."""
    file = fs.open(f"{root}/a", "wb")
    file.write(b"torn")
    del file
    gc.collect()
    assert not fs.exists(f"{root}/a")


def test_a_file_is_published_when_it_is_closed(
    fs: DatasetsFileSystem, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a large one; mode ``x`` replaces none; there is no append."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", 5)
    with fs.open(f"{root}/new/a", "wb") as file:
        assert file.write(b"0123456789") == 10
        assert file.write(memoryview(b"ab")) == 2
        assert file.tell() == 12
        assert not fs.exists(f"{root}/new/a")
    assert fs.cat_file(f"{root}/new/a") == b"0123456789ab"
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")
    with pytest.raises(FileExistsError), fs.open(f"{root}/new/a", "xb") as file:
        file.write(b"other")
    with pytest.raises(ObjectExistsError):
        fs.pipe_file(f"{root}/new/a", b"other", mode="create")
    with pytest.raises(ValueError, match=r"use fsspec\.open"):
        fs.open(f"{root}/new/a", "wb", compression="gzip")
    with pytest.raises(ValueError, match="mode 'ab'"):
        fs.open(f"{root}/new/a", "ab")
    assert fs.cat_file(f"{root}/new/a") == b"0123456789ab"


def test_a_transaction_publishes_all_files_at_its_end(fs: DatasetsFileSystem, root: str) -> None:
    with fs.transaction:
        fs.pipe_file(f"{root}/a", b"1")
        fs.pipe_file(f"{root}/b", b"2")
        assert fs.find(root) == []
    assert fs.cat(fs.find(root)) == {f"{root}/a": b"1", f"{root}/b": b"2"}


def test_a_failed_transaction_publishes_nothing(fs: DatasetsFileSystem, root: str) -> None:

    def interrupted() -> None:
        with fs.transaction:
            fs.pipe_file(f"{root}/c", b"3")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert not fs.exists(f"{root}/c")


def test_datasets_are_created_and_removed_as_folders(fs: DatasetsFileSystem, host: str, root: str) -> None:
    """Non-empty ones only with ``recursive``."""
    with pytest.raises(FileExistsError):
        fs.mkdir(root)
    with pytest.raises(FileExistsError):
        fs.makedirs(root)
    fs.makedirs(root, exist_ok=True)
    fs.makedirs(f"{root}-2/deep/er")
    assert fs.isdir(f"{root}-2")
    fs.rmdir(f"{root}-2")
    assert not fs.exists(f"{root}-2")
    fs.pipe({f"{root}/cat/{number}": b"x" for number in range(5)} | {f"{root}/dog/1": b"x"})
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(root)
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{root}/cat")
    fs.rm(f"{root}/cat/[12]")
    fs.rm(f"{root}/cat", recursive=True)
    assert fs.find(root) == [f"{root}/dog/1"]
    fs.mv(f"{root}/dog/1", f"{root}/dog/2")
    fs.cp_file(f"{root}/dog/2", f"{root}/copy")
    assert fs.find(root) == [f"{root}/copy", f"{root}/dog/2"]
    fs.rm(root, recursive=True)
    assert not fs.exists(root)
    with pytest.raises(StorageError):
        fs.mkdir(f"{host}/-no name-")


# Who uses it


def test_the_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """``repr`` and JSON never contain it; pickles only one that was passed."""
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", "canary-of-the-environment")
    passed, plain = DatasetsFileSystem(token="canary-passed", secure=True), DatasetsFileSystem()
    for fs in (passed, plain):
        opened = fsspec.core.OpenFile(fs, "h:1/a/b")
        for text in (
            repr(fs),
            str(fs),
            fs.to_json(),
            json.dumps(fs.to_dict()),
            repr(opened),
        ):
            assert "canary" not in text
    assert "canary" not in repr(pickle.dumps(plain))
    assert "canary-of" not in repr(pickle.dumps(passed))
    assert pickle.loads(pickle.dumps(passed)).storage_options["token"] == "canary-passed"
    again = fsspec.AbstractFileSystem.from_json(passed.to_json())
    assert isinstance(again, DatasetsFileSystem)
    assert again.storage_options == {"secure": True}


def test_importing_the_package_registers_the_filesystem(host: str, fs: DatasetsFileSystem, root: str) -> None:
    """Which is imported on first use."""
    fs.pipe_file(f"{root}/a.txt", b"hello")
    program = (
        "import sys, torchdata_remote, fsspec\n"
        "assert 'torchdata_remote.service.client.filesystem' not in sys.modules\n"
        f"with fsspec.open('datasets://{root}/a.txt', 'rt') as file: print(file.read())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "hello\n"


def test_a_filesystem_serves_many_threads(fs: DatasetsFileSystem, root: str) -> None:
    fs.pipe({f"{root}/{number}": b"%d" % number for number in range(40)})
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: fs.cat_file(f"{root}/{number}"), range(40))) == [
            b"%d" % number for number in range(40)
        ]


def test_folders_are_uploaded_and_downloaded(fs: DatasetsFileSystem, root: str, tmp_path: Path) -> None:
    for name in ("cat/1.bin", "dog/2 %20 å.bin"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(name.encode() * 1000)
    fs.put(f"{tmp_path}/in/", f"{root}/", recursive=True)
    fs.get(f"{root}/", f"{tmp_path}/out/", recursive=True)
    for name in ("cat/1.bin", "dog/2 %20 å.bin"):
        assert (tmp_path / "out" / name).read_bytes() == name.encode() * 1000
