"""Stores that fsspec reaches, by the example of ``memory://``, beyond what ``tests/conformance`` shows."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.servers.file_servers import ftp_places, sftp_places
from tests.servers.scripted import Response, scripted
from tests.support.read_once import read_once
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.storage import Store, open_store
from torchdata_remote.storage.fsspec_store import FsspecStore


def opened(url: str, **options: Any) -> tuple[Store, str]:
    return open_store(url, StorageOptions(options))


def write(store: Store, path: str, data: bytes, *, overwrite: bool = False) -> None:
    writer = store.create(path, overwrite=overwrite)
    writer.write(data)
    writer.commit()


class PickyFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Raises a chosen error, and has etags."""

    protocol = "picky"
    cachable = False
    fault: BaseException | None = None
    etag = "1"

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        if self.fault is not None:
            raise self.fault
        info: dict[str, Any] = {**super().info(path, **kwargs), "ETag": self.etag}
        return info

    def find(self, path: str, *args: Any, **kwargs: Any) -> Any:
        if self.fault is not None:
            raise self.fault
        return super().find(path, *args, **kwargs)


@pytest.fixture
def picky() -> tuple[FsspecStore, PickyFileSystem]:
    fsspec.register_implementation("picky", PickyFileSystem, clobber=True)
    store = FsspecStore("picky", "bucket", StorageOptions(), 30.0)
    filesystem = store._filesystem
    assert isinstance(filesystem, PickyFileSystem)
    return store, filesystem


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (PermissionError("no"), AccessDeniedError),
        (FileNotFoundError("no"), ObjectNotFoundError),
        (TimeoutError("late"), TransientStorageError),
        (ConnectionResetError("reset"), TransientStorageError),
        (OSError(5, "input/output"), TransientStorageError),
        (ZeroDivisionError("bug"), StorageError),
    ],
)
def test_errors_of_the_filesystem_are_converted(
    picky: tuple[FsspecStore, PickyFileSystem], fault: Exception, expected: type[Exception]
) -> None:
    """With the URL and the cause."""
    store, filesystem = picky
    filesystem.fault = fault
    with pytest.raises(expected) as caught:
        store.stat("a")
    assert "picky://bucket/a" in str(caught.value)
    assert caught.value.__cause__ is fault
    if expected is not ObjectNotFoundError:
        with pytest.raises(expected):
            store.list_page("", recursive=True, token=None)


def test_a_replaced_version_is_refused(picky: tuple[FsspecStore, PickyFileSystem]) -> None:
    """If the filesystem has etags."""
    store, filesystem = picky
    write(store, "a", b"12")
    assert store.stat("a").etag == "1"
    assert store.read("a", 0, 1, "1").whole() == b"1"
    filesystem.etag = "2"
    with pytest.raises(ObjectChangedError, match="etag 2, where it had an unknown size, etag 1"):
        read_once(store, "a", 0, 1, "1")


def test_an_unknown_scheme_is_an_error_that_names_the_known_ones() -> None:
    """It is a UrlError."""
    with pytest.raises(UrlError, match=r"no transport for the scheme 'nope'.*Known are s3, http"):
        opened("nope://bucket/a")


def test_a_scheme_without_its_package_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation(
        "absent", "no_such_package_at_all.FileSystem", clobber=True, errtxt="Install no_such_package_at_all"
    )
    with pytest.raises(UrlError, match="no_such_package_at_all"):
        opened("absent://bucket/a")


@pytest.mark.parametrize("call", ["list_page", "list_after", "find", "has_folder"])
def test_memory_is_listed_while_other_threads_write(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a finalizer. fsspec iterates over a dict that they change; a listing is made again until none did."""
    store, path = opened(f"memory://listed-{call}/a")
    assert isinstance(store, FsspecStore)
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/listed-{call}/a/{number}": b"" for number in range(3)})
    real, faults = MemoryFileSystem.store, [3]

    class Changing(dict[str, Any]):
        def __iter__(self) -> Iterator[str]:
            if faults[0]:
                faults[0] -= 1
                raise RuntimeError("dictionary changed size during iteration")
            return super().__iter__()

        def items(self) -> Any:
            return [(name, self[name]) for name in self]

    monkeypatch.setattr(MemoryFileSystem, "store", Changing(real))
    if call == "list_page":
        found: Any = [entry.path for entry in store.list_page(f"{path}/", recursive=True, token=None).entries]
    elif call == "list_after":
        found = [entry.path for entry in store.list_after(f"{path}/", recursive=False, after="", limit=9).entries]
    else:
        found = getattr(store, call)(path)
    assert faults == [0]
    assert bool(found) == (call != "find"), "a folder is no object"


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("ftp://127.0.0.1:99999/a", {}, "Check host, port"),
        ("ftp://127.0.0.1:abc/a", {}, "Check host, port"),
        ("ftp://127.0.0.1:9/a", {"timeout": 0}, r"in storage_options \(timeout\)"),
        ("sftp://[bad/a", {}, "Check host, port"),
        ("webdav://a/b", {}, "Pass 'base_url' by storage_options"),
    ],
)
def test_a_wrong_host_or_option_is_not_an_unknown_scheme(url: str, options: dict[str, Any], says: str) -> None:
    """The scheme is known; what is wrong is named."""
    with pytest.raises(UrlError, match=says) as caught:
        opened(url, **options)
    assert "no transport" not in str(caught.value)


@pytest.mark.parametrize("auth", ["secret-canary", ["me", "secret-canary", 5]])
def test_values_of_options_are_not_in_errors_of_their_kind(auth: object) -> None:
    """A library shows what it does not expect."""
    with pytest.raises(UrlError, match="Check the kinds of the values") as caught:
        opened("webdav://a/b", base_url="http://127.0.0.1:9", auth=auth)
    assert "secret-canary" not in "".join(traceback.format_exception(caught.value))


def test_the_target_of_a_redirect_is_in_no_error() -> None:
    """It may be signed."""
    with scripted(lambda request: Response(302, b"", {"Location": "http://127.0.0.1:9/a?sig=secret-canary"})) as server:
        store, path = opened("webdav://a/b", base_url=server.url)
        with pytest.raises(StorageError) as caught:
            store.read(path, 0, 10, None)
    assert "secret-canary" not in "".join(traceback.format_exception(caught.value))


def test_a_missing_private_key_is_not_a_missing_object(tmp_path: Path) -> None:
    """Its file is named. A login without any method is no fault that is repeated."""
    with sftp_places(tmp_path) as place:
        given = {**place.storage_options, "key_filename": str(tmp_path / "no_key")}
        with pytest.raises(UrlError, match="no_key"):
            opened(place.start + "a", **given)
        store, path = opened(place.start + "a", look_for_keys=False, allow_agent=False)
        with pytest.raises(AccessDeniedError, match="No authentication methods"):
            store.stat(path)


def test_a_folder_that_another_writer_has_made_is_written_to(tmp_path: Path) -> None:
    """fsspec's ftp looks folders up in a listing of before, and then makes one that exists."""
    with ftp_places(tmp_path) as place:
        store, path = opened(f"{place.new_place()}/a")
        write(store, path, b"first")
        store.list_page(path.rpartition("/")[0] + "/", recursive=True, token=None)
        [folder] = tmp_path.iterdir()
        (folder / "made").mkdir()
        write(store, f"{path.rpartition('/')[0]}/made/below/b", b"second")
        assert (folder / "made" / "below" / "b").read_bytes() == b"second"


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """A file has its name."""
    with ftp_places(tmp_path) as place:
        store, path = opened(f"{place.new_place()}/a")
        write(store, path, b"file")
        with pytest.raises(StorageError):
            write(store, f"{path}/b", b"below a file")
