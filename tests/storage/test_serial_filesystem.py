"""ftp by fsspec, which has one connection for all threads, against a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.ftp import FTPFileSystem
from pyftpdlib.handlers import FTPHandler
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.ftp import Ftp, ftp_server
from torchdata_remote import RetryPolicy, ShardWriter, stream_shards
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError, ObjectNotFoundError, StorageError, TransientStorageError
from torchdata_remote.storage import open_store, publish
from torchdata_remote.storage.listing.folder import list_folder

QUICK = RetryPolicy(first_wait_s=0, max_attempts=5)


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[Ftp]:
    with ftp_server(tmp_path) as server:
        yield server


def test_concurrent_requests_get_their_own_bytes(ftp: Ftp, tmp_path: Path) -> None:
    """Sixteen threads find and read each file."""
    (tmp_path / "d").mkdir()
    files = {f"{number:02d}.bin": bytes([number]) * (20_000 + number) for number in range(40)}
    for name, data in files.items():
        (tmp_path / "d" / name).write_bytes(data)
    pipe = IterableWrapper([f"{ftp.url}/d/"]).list_remote().async_prefetch(max_in_flight=16, retry=QUICK)
    read = {url.rpartition("/")[2]: stream.read() for url, stream in pipe}
    assert read == files


def test_shards_are_written_and_read(ftp: Ftp) -> None:
    with ShardWriter(f"{ftp.url}/shards/{{shard}}.tar", max_shard_bytes=10_000) as writer:
        for number in range(20):
            writer.write({"__key__": f"{number}", "bin": bytes([number]) * 2_000})
    samples = list(stream_shards(f"{ftp.url}/shards/", seed=None))
    assert sorted(sample["bin"][0] for sample in samples) == list(range(20))


def test_a_silent_server_ends_in_an_error_in_time(ftp: Ftp, tmp_path: Path) -> None:
    """Requests end at the progress time-out, and the job at its deadline."""
    (tmp_path / "a.bin").write_bytes(bytes(1000))
    policy = RetryPolicy(first_wait_s=0, deadline_s=2, progress_timeout_s=0.5)
    [url] = IterableWrapper([f"{ftp.url}/a.bin"]).list_remote(retry=policy)
    ftp.silent.set()
    began_s = time.monotonic()
    with pytest.raises(StorageError):
        list(IterableWrapper([url]).async_prefetch(retry=policy).file_reader())
    assert time.monotonic() - began_s < 10


def test_a_connection_is_replaced_after_a_time_out(ftp: Ftp, tmp_path: Path) -> None:
    """The next requests do not get the replies of the earlier ones."""
    (tmp_path / "a.bin").write_bytes(b"12345")
    store, path = open_store(f"{ftp.url}/a.bin", StorageOptions({"timeout": 0.3}))
    assert store.stat(path).size == 5
    ftp.silent.set()
    with pytest.raises(StorageError):
        store.stat(path)
    ftp.silent.clear()
    assert store.read(path, 1, 3, None).whole() == b"23"
    with pytest.raises(ObjectNotFoundError):
        store.stat(path + "x")


def test_a_refused_listing_of_a_folder_is_retried(ftp: Ftp, tmp_path: Path) -> None:
    """fsspec itself takes it for an empty folder."""
    for folder in ("a", "b", "c"):
        (tmp_path / "d" / folder).mkdir(parents=True)
        (tmp_path / "d" / folder / "1.bin").write_bytes(b"1")
    for num_refused in range(4):
        ftp.num_refused = num_refused
        urls = list(list_folder(f"{ftp.url}/d/", recursive=True, options=StorageOptions(), retry=QUICK))
        assert [url.removeprefix(f"{ftp.url}/d/") for url in urls] == ["a/1.bin", "b/1.bin", "c/1.bin"]
        assert ftp.num_refused == 0


def test_an_interrupted_write_leaves_the_object_before(
    ftp: Ftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are sent under a hidden name, and renamed; a killed process leaves that, which the next writer removes."""
    (tmp_path / "a").write_bytes(b"first")
    store, path = open_store(f"{ftp.url}/a", StorageOptions())
    sent: list[list[str]] = []

    def killed(filesystem: object, old: str, new: str) -> None:
        sent.append(sorted(path.name for path in tmp_path.iterdir()))
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(FTPFileSystem, "mv", killed)
        patch.setattr(FTPFileSystem, "rm_file", killed)
        writer = store.create(path, overwrite=True)
        writer.write(b"second")
        with pytest.raises(SystemExit):
            writer.commit()
    assert (tmp_path / "a").read_bytes() == b"first"
    assert len(sent[0]) == 2
    assert [entry.path for entry in store.list_page("", recursive=True, token=None).entries] == ["a"]
    store.remove_leftovers("", lambda name: True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_server_that_does_not_rename_to_an_existing_file_is_written_to(
    ftp: Ftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of Windows."""
    rename = FTPFileSystem.mv

    def refusing(filesystem: FTPFileSystem, old: str, new: str) -> None:
        if filesystem.exists(new):
            raise OSError("550 exists")
        rename(filesystem, old, new)

    monkeypatch.setattr(FTPFileSystem, "mv", refusing)
    for data in (b"first", b"second"):
        publish(f"{ftp.url}/a", data, StorageOptions(), overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"second"}


def _refusing(method: Any, name: str) -> Any:
    def answer(handler: FTPHandler, path: str) -> Any:
        return handler.respond("550 Permission denied.") if path.endswith(name) else method(handler, path)

    return answer


def test_a_folder_that_the_server_does_not_list_is_an_error(
    ftp: Ftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsspec itself takes it for an empty folder, so that a listing would be short."""
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.tar").write_bytes(b"x" * 1000)
    store, _ = open_store(f"{ftp.url}/", StorageOptions())
    assert len(store.list_page("", recursive=True, token=None).entries) == 3
    for command in ("ftp_MLSD", "ftp_LIST"):
        monkeypatch.setattr(FTPHandler, command, _refusing(getattr(FTPHandler, command), "b"))
    with pytest.raises(AccessDeniedError, match="does not list the folder /b"):
        store.list_page("", recursive=True, token=None)
    assert [entry.path for entry in store.list_page("a/", recursive=True, token=None).entries] == ["a/1.tar"]


@pytest.mark.parametrize("reply", ["227 Entering passive", "502 No passive mode"])
def test_a_server_that_refuses_passive_mode_has_no_empty_folders(
    ftp: Ftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    """Nor are its files missing."""
    (tmp_path / "a.tar").write_bytes(b"12345")
    store, path = open_store(f"{ftp.url}/a.tar", StorageOptions())
    passive = FTPHandler.ftp_PASV
    monkeypatch.setattr(FTPHandler, "ftp_PASV", lambda handler, line: handler.respond(reply))
    for attempt in (lambda: store.list_page("", recursive=True, token=None), lambda: store.stat(path)):
        with pytest.raises(TransientStorageError, match=reply[:3]):
            attempt()
    monkeypatch.setattr(FTPHandler, "ftp_PASV", passive)
    assert store.stat(path).size == 5


def test_a_file_whose_reading_is_refused_is_not_missing(
    ftp: Ftp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ftp has one code for both, so the text of the reply decides."""
    (tmp_path / "a.tar").write_bytes(b"12345")
    monkeypatch.setattr(FTPHandler, "ftp_RETR", _refusing(FTPHandler.ftp_RETR, "a.tar"))
    store, path = open_store(f"{ftp.url}/a.tar", StorageOptions())
    with pytest.raises(AccessDeniedError, match="Permission denied"):
        store.read(path, 0, 5, None)
