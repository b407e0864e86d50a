"""ftp, sftp, WebDAV and memory by fsspec: no listing goes short, and a reply is that of its request."""

from __future__ import annotations

import ftplib
import hashlib
import importlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import fsspec
import pytest
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from pyftpdlib.handlers import FTPHandler

import torchdata_remote as tdr
from tests.servers.file_servers import sftp_places
from tests.servers.ftp import Ftp, ftp_server
from tests.support import objects
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)

QUICK = tdr.RetryPolicy(first_wait_s=0, max_attempts=5)
PARTIAL_SUFFIX = ".torchdata_remote-partial"


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[Ftp]:
    with ftp_server(tmp_path) as server:
        yield server


def test_requests_of_many_threads_get_their_own_bytes(ftp: Ftp, tmp_path: Path) -> None:
    """By the one connection of fsspec."""
    files = {f"{number:02d}.bin": bytes([number]) * (20_000 + number) for number in range(30)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    pipe = tdr.IterableWrapper([f"{ftp.url}/"]).list_remote().async_prefetch(max_in_flight=16, retry=QUICK)
    assert {url.rpartition("/")[2]: stream.read() for url, stream in pipe} == files


def test_a_silent_server_is_an_error_in_time_and_its_connection_is_replaced(ftp: Ftp, tmp_path: Path) -> None:
    """Requests end at the progress time-out, and the next ones do not get the replies of the earlier ones."""
    (tmp_path / "a.bin").write_bytes(b"12345")
    policy = tdr.RetryPolicy(first_wait_s=0, max_attempts=2, progress_timeout_s=0.5)
    url = objects.found(f"{ftp.url}/a.bin", retry=policy)
    ftp.silent.set()
    with pytest.raises(StorageError):
        objects.read(url, retry=policy)
    ftp.silent.clear()
    assert objects.read(url, retry=policy) == b"12345"
    with pytest.raises(ObjectNotFoundError):
        objects.read(f"{ftp.url}/none.bin", retry=policy)


def test_a_refused_listing_of_a_folder_is_repeated(ftp: Ftp, tmp_path: Path) -> None:
    """fsspec itself takes it for an empty folder."""
    for folder in ("a", "b", "c"):
        (tmp_path / "d" / folder).mkdir(parents=True)
        (tmp_path / "d" / folder / "1.bin").write_bytes(b"1")
    for num_refused in range(4):
        ftp.num_refused = num_refused
        urls = objects.listed(f"{ftp.url}/d/", retry=QUICK)
        assert [url.removeprefix(f"{ftp.url}/d/") for url in urls] == ["a/1.bin", "b/1.bin", "c/1.bin"]
        assert ftp.num_refused == 0


def refusing(method: Any, name: str) -> Any:
    def answer(handler: FTPHandler, path: str) -> Any:
        return handler.respond("550 Permission denied.") if path.endswith(name) else method(handler, path)

    return answer


def test_a_folder_or_file_that_the_server_refuses_is_neither_empty_nor_missing(
    ftp: Ftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ftp has one code for both, so the text of the reply decides."""
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.tar").write_bytes(b"x" * 1000)
    assert len(objects.listed(f"{ftp.url}/")) == 3
    for command in ("ftp_MLSD", "ftp_LIST"):
        monkeypatch.setattr(FTPHandler, command, refusing(getattr(FTPHandler, command), "b"))
    monkeypatch.setattr(FTPHandler, "ftp_RETR", refusing(FTPHandler.ftp_RETR, "c/1.tar"))
    with pytest.raises(AccessDeniedError, match=r"/b/: .*Permission denied"):
        objects.listed(f"{ftp.url}/")
    assert objects.listed(f"{ftp.url}/a/") == [f"{ftp.url}/a/1.tar"]
    with pytest.raises(AccessDeniedError, match="Permission denied"):
        objects.read(f"{ftp.url}/c/1.tar")


def test_an_interrupted_write_leaves_the_shard_of_before_and_is_cleaned_up(
    ftp: Ftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are sent under a hidden name, and renamed."""
    objects.write(f"{ftp.url}/")
    before = (tmp_path / "0.tar").read_bytes()
    hidden: list[str] = []

    def interrupted(filesystem: object, old: str, new: str) -> None:
        hidden.extend(path.name for path in tmp_path.iterdir() if path.name.endswith(PARTIAL_SUFFIX))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FTPFileSystem, "mv", interrupted)
        with pytest.raises(BaseException):  # noqa: B017, PT011  # wherever it is noticed
            objects.write(f"{ftp.url}/", num_bytes=20, overwrite=True)
    assert hidden
    assert (tmp_path / "0.tar").read_bytes() == before

    objects.write(f"{ftp.url}/", num_bytes=2000, overwrite=True)
    assert (tmp_path / "0.tar").stat().st_size > len(before)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".tar") == ["0.tar"]


def test_a_missing_private_key_or_login_is_not_a_missing_object(tmp_path: Path) -> None:
    with sftp_places(tmp_path) as place:
        options = {**place.storage_options, "key_filename": str(tmp_path / "no_key")}
        with pytest.raises(UrlError, match="no_key"):
            objects.read(f"{place.start}a", options)
        with pytest.raises(AccessDeniedError, match="No authentication methods"):
            objects.read(f"{place.start}a", {"look_for_keys": False, "allow_agent": False})


# What a file system of fsspec raises

FAULTS: list[tuple[Exception, type[StorageError]]] = [
    (PermissionError("no"), AccessDeniedError),
    (FileNotFoundError("no"), ObjectNotFoundError),
    (TimeoutError("late"), TransientStorageError),
    (ConnectionResetError("reset"), TransientStorageError),
    (EOFError(), TransientStorageError),
    (ftplib.error_temp("421 Too many connections."), TransientStorageError),
    (ftplib.error_perm("550 No such file."), ObjectNotFoundError),
    (ftplib.error_perm("530 Login incorrect."), AccessDeniedError),
    (aiohttp.ClientPayloadError("cut"), TransientStorageError),
    (KeyError("ContentLength"), StorageError),
    (ZeroDivisionError("a mistake"), StorageError),
]


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """Raises one error for every call."""

    protocol, cachable = "failing", False
    fault: Exception | None = None

    def __getattribute__(self, name: str) -> Any:
        found, fault = object.__getattribute__(self, name), type(self).fault
        if fault is not None and name in ("ls", "find", "info", "isdir", "exists", "cat_file", "pipe_file", "makedirs"):
            return _raising(fault)
        return found


def _raising(fault: Exception) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        raise fault

    return call


@pytest.mark.parametrize(("fault", "expected"), FAULTS, ids=[repr(fault)[:30] for fault, _ in FAULTS])
def test_an_error_of_a_library_becomes_one_of_this_package(
    fault: Exception, expected: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the URL, keeps its cause, and is repeated only if that may help; a missing file's cause decides."""
    fsspec.register_implementation("failing", Failing, clobber=True)
    missing = FileNotFoundError("d/a")
    missing.__cause__ = fault
    for raised in (fault, missing):
        monkeypatch.setattr(Failing, "fault", raised)
        kind = ObjectNotFoundError if raised is missing and isinstance(fault, KeyError) else expected
        with pytest.raises(StorageError) as caught:
            objects.read("failing://bucket/d/a")
        assert isinstance(caught.value, kind)
        assert isinstance(caught.value, TransientStorageError) == (kind is TransientStorageError)
        assert "failing://bucket/d/a" in str(caught.value)
    monkeypatch.setattr(Failing, "fault", fault)
    if expected is not ObjectNotFoundError:
        with pytest.raises(expected, match="failing://bucket/d"):
            objects.listed("failing://bucket/d/")
        if expected is not TransientStorageError:  # which is repeated for minutes
            with pytest.raises(expected, match="failing://bucket/d"):
                objects.write("failing://bucket/d/")


class Google(MemoryFileSystem):  # type: ignore[misc]
    """Tells of an object what gcsfs does."""

    protocol, cachable = "gs", False
    known: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("gs:/")))

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {**super().info(path, **options), **self.known}


def test_an_object_of_google_has_the_etag_by_which_obstore_lists_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """gcsfs tells another one. Of objects that a key of the user encrypts it is no MD5.

    https://cloud.google.com/storage/docs/hashes-etags
    """
    monkeypatch.setitem(importlib.import_module("fsspec.registry")._registry, "gs", Google)
    fsspec.filesystem("memory").pipe({"/bucket/a": b"12345"})
    digest = hashlib.md5(b"12345")
    listed = tdr.RemoteUrl("gs://bucket/a", 5, f'"{digest.hexdigest()}"')
    for more in ({}, {"kmsKeyName": "k"}):
        monkeypatch.setattr(Google, "known", {"etag": "CAE=", "md5Hash": b64encode(digest.digest()).decode(), **more})
        assert objects.read(listed, backend=tdr.Backend.FSSPEC) == b"12345"
    monkeypatch.setattr(Google, "known", {"etag": "CAI=", "md5Hash": b64encode(bytes(16)).decode()})
    with pytest.raises(ObjectChangedError):
        objects.read(listed, backend=tdr.Backend.FSSPEC, retry=QUICK)
