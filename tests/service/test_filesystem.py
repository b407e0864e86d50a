"""``datasets://`` in fsspec: its conformance tests, reading, writing as a whole, listings, and what is never shown."""

from __future__ import annotations

import datetime as dt
import gc
import io
import json
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests import abstract
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

import torchdata_remote  # noqa: F401  # registers the scheme
from tests.servers.scripted import Response, scripted
from tests.support.service_clients import Dataset, ask
from torchdata_remote.errors import AccessDeniedError, ObjectChangedError, ObjectExistsError, StorageError

LARGE = bytes(range(250)) * 140_000  # 35 MB: more than one request


@pytest.fixture
def fs() -> Any:
    return fsspec.filesystem("datasets")


@pytest.fixture
def root(served: str, fs: Any) -> str:
    """An empty dataset."""
    made = f"{served}/{uuid.uuid4().hex[:12]}"
    fs.mkdir(made)
    return made


# fsspec's own tests


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]  # fsspec carries no types
    @pytest.fixture
    def fs(self) -> Any:
        return fsspec.filesystem("datasets")

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self, root: str) -> str:
        return root

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


@pytest.mark.slow  # they copy 35 trees by hundreds of requests
class TestGet(Fixtures, abstract.AbstractGetTests):  # type: ignore[misc]
    """Downloads."""


@pytest.mark.slow
class TestPut(Fixtures, abstract.AbstractPutTests):  # type: ignore[misc]
    """Uploads."""


class TestOpen(Fixtures, getattr(abstract, "AbstractOpenTests", object)):  # type: ignore[misc]  # newer than 2023.12
    """Opening."""


class TestPipe(Fixtures, abstract.AbstractPipeTests):  # type: ignore[misc]
    """Writing in one call."""


def test_trees_are_copied_up_and_down(fs: Any, root: str, tmp_path: Path) -> None:
    tree = {"cat/1.bin": b"1" * 1000, "dog/2 %20 å.bin": b"2" * 1000, "top": b"3"}
    for name, data in tree.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    fs.put(f"{tmp_path}/in/", f"{root}/a/", recursive=True)
    fs.get(f"{root}/a/", f"{tmp_path}/out/", recursive=True)
    found = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == tree


@pytest.mark.parametrize("path", ["../evil", "/evil", "a/../../evil", "a//b", ""])
def test_a_listing_copies_no_file_out_of_the_folder(path: str, tmp_path: Path, fs: Any) -> None:
    files = [{"path": path, "size": 1, "etag": '"1"', "modified": None}]

    def respond(request: Any) -> Response:
        if "/files/" in request.target:
            return Response.of_object(request, b"x")
        return Response(200, json.dumps({"files": files, "folders": [], "next": None}).encode())

    with scripted(respond) as server, pytest.raises(StorageError):
        fs.get(f"{server.url.removeprefix('http://')}/d/", str(tmp_path / "t"), recursive=True)
    assert not [found for found in tmp_path.rglob("*") if found.is_file()]


# Reading


@given(data=st.binary(max_size=50), start=st.none() | st.integers(-60, 60), end=st.none() | st.integers(-60, 60))
def test_cat_file_returns_a_slice(served: str, data: bytes, start: int | None, end: int | None) -> None:
    fs, path = fsspec.filesystem("datasets"), f"{served}/slices/a"
    fs.pipe_file(path, data)
    assert fs.cat_file(path, start, end) == data[start:end]


def test_a_file_of_several_requests_is_read_and_written_as_it_is(fs: Any, root: str) -> None:
    fs.pipe_file(f"{root}/a", LARGE)
    for start, end in [(None, None), (33_000_000, 34_000_000), (None, 33_554_433), (-5, None)]:
        assert fs.cat_file(f"{root}/a", start, end) == LARGE[start:end]
    with fs.open(f"{root}/a", "rb") as file:
        file.seek(33_554_000)
        assert file.read(1000) == LARGE[33_554_000:33_555_000]


@settings(max_examples=10)
@given(
    data=st.binary(max_size=200),
    block_size=st.integers(1, 50),
    steps=st.lists(st.tuples(st.integers(0, 220), st.integers(0, 80)), max_size=5),
)
def test_seek_and_read_are_those_of_a_file_and_survive_pickling(
    served: str, data: bytes, block_size: int, steps: list[tuple[int, int]]
) -> None:
    fs, path, memory = fsspec.filesystem("datasets"), f"{served}/seeks/a", io.BytesIO(data)
    fs.pipe_file(path, data)
    with fs.open(path, block_size=block_size) as file:
        for position, length in steps:
            assert (file.seek(position), file.read(length)) == (memory.seek(position), memory.read(length))
            with pickle.loads(pickle.dumps(file)) as again:
                assert (again.tell(), again.read(5)) == (file.tell(), data[file.tell() : file.tell() + 5])


def test_an_open_file_is_of_one_version(fs: Any, root: str) -> None:
    fs.pipe_file(f"{root}/a", b"0" * 100)
    with fs.open(f"{root}/a", block_size=10) as file:
        assert file.read(10) == b"0" * 10
        fs.pipe_file(f"{root}/a", b"1" * 100)
        with pytest.raises(ObjectChangedError):
            file.read(50)


# What is there


def test_datasets_and_prefixes_are_folders_and_what_is_not_there_is_an_error(fs: Any, served: str, root: str) -> None:
    for path in ("cat/1.txt", "cat/2.txt", "dog/deep/3.txt", "all.txt"):
        fs.pipe_file(f"{root}/{path}", path.encode())
    empty = root + "-empty"
    fs.mkdir(empty)
    assert {root, empty} <= set(fs.ls(served, detail=False))
    assert (fs.ls(empty), fs.isdir(empty), fs.exists(empty)) == ([], True, True)
    assert fs.ls(root, detail=False) == [f"{root}/all.txt", f"{root}/cat", f"{root}/dog"]
    assert fs.ls(f"{root}/all.txt", detail=False) == [f"{root}/all.txt"]
    info = fs.info(f"datasets://{root}/cat/1.txt")
    assert (info["name"], info["size"], info["type"]) == (f"{root}/cat/1.txt", 9, "file")
    host, _, name = root.partition("/")
    assert info["etag"] == Dataset(host, name).head("cat/1.txt").headers["etag"]
    assert abs(info["mtime"] - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(hours=1)
    assert (fs.isfile(f"{root}/cat"), fs.isdir(f"{root}/cat"), fs.isdir(served)) == (False, True, True)
    assert fs.glob(f"{root}/*/*.txt") == [f"{root}/cat/1.txt", f"{root}/cat/2.txt"]
    assert fs.du(root) == sum(map(len, ("cat/1.txt", "cat/2.txt", "dog/deep/3.txt", "all.txt")))
    for attempt in (fs.info, fs.ls, fs.cat_file, fs.open, fs.rm_file, fs.rm):
        for path in (f"{root}/none", f"{root}/none/none", f"{served}/no-such-dataset"):
            with pytest.raises(FileNotFoundError):
                attempt(path)
    assert (fs.exists(f"{root}/none"), fs.find(f"{root}/none")) == (False, [])
    with pytest.raises(IsADirectoryError):
        fs.open(f"{root}/cat")
    with pytest.raises(ValueError, match="maxdepth"):
        fs.find(root, maxdepth=0)


def test_a_refusal_is_an_error_and_not_a_missing_file(fs: Any) -> None:
    with scripted(lambda request: Response(403, b"")) as server:
        path = f"{server.url.removeprefix('http://')}/photos/cat"
        for attempt in (fs.exists, fs.isfile, fs.isdir, fs.ls, fs.find, fs.info, lambda path: list(fs.walk(path))):
            with pytest.raises(AccessDeniedError):
                attempt(path)


# Writing


def test_a_block_left_by_an_exception_publishes_nothing(fs: Any, root: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"datasets://{root}/a"
    opened: list[Callable[[], Any]] = [
        lambda: fs.open(url, "wb"),
        lambda: fsspec.open(url, "wb"),
        lambda: fsspec.open(url, "wb", compression="gzip"),
    ]

    def interrupted(opening: Callable[[], Any]) -> None:
        with opening() as file:
            file.write(b"torn")
            raise ZeroDivisionError

    for opening in opened:
        with pytest.raises(ZeroDivisionError):
            interrupted(opening)
        assert not fs.exists(url)
        try:
            raise KeyError  # an error that is being handled already is no reason
        except KeyError:
            with opening() as file:
                file.write(b"whole")
        assert fs.size(url) >= 5
        fs.rm(url)
    assert "is not published: it was closed while a ZeroDivisionError was handled" in caplog.text
    file = fs.open(url, "wb")
    file.write(b"torn")
    del file  # without a close
    gc.collect()
    assert not fs.exists(url)


def test_a_file_is_published_as_a_whole_when_it_is_closed(fs: Any, root: str) -> None:
    data = LARGE
    host, _, name = root.partition("/")
    with fs.open(f"{root}/new/a", "wb") as file:
        assert (file.write(data), file.write(memoryview(b"ab")), file.tell()) == (len(data), 2, len(data) + 2)
        assert not fs.exists(f"{root}/new/a")
    assert fs.cat_file(f"{root}/new/a") == data + b"ab"
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")
    with pytest.raises(FileExistsError), fs.open(f"{root}/new/a", "xb") as file:
        file.write(b"other")
    with pytest.raises(ObjectExistsError):
        fs.pipe_file(f"{root}/new/a", b"other", mode="create")
    late = fs.open(f"{root}/late", "xb")
    late.write(data)
    Dataset(host, name).put("late", b"first one")
    with pytest.raises(FileExistsError, match="exists already"):
        late.close()
    assert fs.cat_file(f"{root}/late") == b"first one"
    with pytest.raises(ValueError, match=r"use fsspec\.open"):
        fs.open(f"{root}/new/a", "wb", compression="gzip")
    with pytest.raises(ValueError, match="mode 'ab'"):
        fs.open(f"{root}/new/a", "ab")
    assert fs.cat_file(f"{root}/new/a") == data + b"ab"
    fs.pipe_file(f"{root}/new/a", b"replaced")
    assert fs.cat_file(f"{root}/new/a") == b"replaced"


def test_a_transaction_publishes_all_files_at_its_end_or_none(fs: Any, root: str) -> None:
    with fs.transaction:
        fs.pipe_file(f"{root}/a", b"1")
        fs.pipe_file(f"{root}/b", b"2")
        assert fs.find(root) == []
    assert fs.cat(fs.find(root)) == {f"{root}/a": b"1", f"{root}/b": b"2"}

    def interrupted() -> None:
        with fs.transaction:
            fs.pipe_file(f"{root}/c", b"3")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert not fs.exists(f"{root}/c")


def test_datasets_are_created_and_removed_as_folders(fs: Any, served: str, root: str) -> None:
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
    assert fs.find(f"{root}/cat") == [f"{root}/cat/{number}" for number in (0, 3, 4)]
    fs.rm(f"{root}/cat", recursive=True)
    assert fs.find(root) == [f"{root}/dog/1"]
    fs.rm(root, recursive=True)
    assert not fs.exists(root)
    assert ask(served, "GET", f"/datasets/{root.rpartition('/')[2]}").status == 404
    with pytest.raises(StorageError):
        fs.mkdir(f"{served}/-no name-")


def test_the_token_is_in_no_repr_and_no_json_and_only_a_passed_one_in_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", "canary-of-the-environment")
    passed, plain = fsspec.filesystem("datasets", token="canary-passed", secure=True), fsspec.filesystem("datasets")
    for fs in (passed, plain):
        opened = fsspec.core.OpenFile(fs, "h:1/a/b")
        for text in (repr(fs), str(fs), fs.to_json(), json.dumps(fs.to_dict()), repr(opened)):
            assert "canary" not in text
    assert "canary" not in repr(pickle.dumps(plain))
    assert "canary-of" not in repr(pickle.dumps(passed))
    assert pickle.loads(pickle.dumps(passed)).storage_options["token"] == "canary-passed"
    again = fsspec.AbstractFileSystem.from_json(passed.to_json())
    assert (type(again), again.storage_options) == (type(passed), {"secure": True})
