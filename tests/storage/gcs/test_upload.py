"""Writing to Google Cloud Storage: whole or not at all, on conditions, with responses that are lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.servers.gcs import GcsServer
from tests.servers.raw import answer, raw
from tests.storage.gcs.test_store import store_of, write
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError, ObjectExistsError, StorageError, TransientStorageError
from torchdata_remote.storage import open_store
from torchdata_remote.storage.gcs.partial_names import own_name, partial_path
from torchdata_remote.storage.gcs.store import GcsStore

MIB = 1 << 20
SIZES = {"small": MIB // 2, "large": 3 * MIB + 7}


@pytest.fixture(autouse=True)
def _parts_of_1_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdata_remote.storage.multipart.UPLOAD_PART_BYTES", MIB)


def listed(store: GcsStore) -> list[str]:
    return [entry.path for entry in store.list_page("", recursive=True, token=None).entries]


def unfinished(store: GcsStore) -> list[str]:
    return [upload["Key"] for upload in store.uploads.list_unfinished("")]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_large_object_becomes_visible_whole(gcs: GcsServer, overwrite: bool) -> None:
    """At commit, with its bytes in order; nothing else is left."""
    place, data = gcs.new_place(), os.urandom(5 * MIB + 123)
    store = store_of(gcs, place)
    writer = store.create("f/big", overwrite=overwrite)
    for start in range(0, len(data), MIB // 3):
        writer.write(data[start : start + MIB // 3])
        assert store.find("f/big") is None
    assert len(unfinished(store)) == 1
    writer.commit()
    writer.abort()  # harmless after a commit
    assert gcs.get(f"{place}/f/big") == data
    assert (gcs.paths(place), unfinished(store)) == (["f/big"], [])


def test_several_parts_are_in_flight(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four at a time."""
    store, together = store_of(gcs, gcs.new_place()), threading.Barrier(4)
    send = store.client.upload_part

    def wait_for_others(**request: Any) -> Any:
        together.wait(20)
        return send(**request)

    monkeypatch.setattr(store.client, "upload_part", wait_for_others)
    write(store, "big", bytes(8 * MIB))
    assert store.stat("big").size == 8 * MIB


@pytest.mark.parametrize("kind", SIZES)
def test_an_existing_object_is_replaced_with_overwrite_only(gcs: GcsServer, kind: str) -> None:
    """One that appears while the parts are uploaded is kept, and nothing of the other is left."""
    place, data = gcs.new_place(), os.urandom(SIZES[kind])
    store = store_of(gcs, place)
    writer = store.create("a", overwrite=False)
    writer.write(data)
    gcs.put(f"{place}/a", b"first")
    with pytest.raises(ObjectExistsError, match=f"{place}/a exists already"):
        writer.commit()
    writer.abort()
    assert gcs.get(f"{place}/a") == b"first"
    assert (gcs.paths(place), unfinished(store)) == (["a"], [])
    write(store, "a", data, overwrite=True)
    assert gcs.get(f"{place}/a") == data


@pytest.mark.parametrize("kind", SIZES)
def test_of_several_writers_exactly_one_succeeds(gcs: GcsServer, kind: str) -> None:
    """Google supports no conditions on multipart uploads; the object is that of the writer that succeeded."""
    place = gcs.new_place()
    writers = [store_of(gcs, place).create("a", overwrite=False) for _ in range(4)]
    for number, writer in enumerate(writers):
        writer.write(bytes([number]) * SIZES[kind])
    together = threading.Barrier(len(writers))

    def commit(number: int) -> int | None:
        together.wait(20)
        try:
            writers[number].commit()
        except ObjectExistsError:
            return None
        finally:
            writers[number].abort()
        return number

    with ThreadPoolExecutor(len(writers)) as pool:
        (winner,) = [number for number in pool.map(commit, range(len(writers))) if number is not None]
    assert gcs.get(f"{place}/a") == bytes([winner]) * SIZES[kind]
    assert (gcs.paths(place), unfinished(store_of(gcs, place))) == (["a"], [])


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("name", ["put_object", "complete_multipart_upload", "copy_object"])
def test_a_lost_response_does_not_make_the_own_object_an_error(
    gcs: GcsServer, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, overwrite: bool
) -> None:
    """Etags of uploads are no digests: the object is recognised by the id that it carries."""
    place, data = gcs.new_place(), os.urandom(SIZES[kind])
    store, lost = store_of(gcs, place), list[str]()
    send = getattr(store.client, name)

    def lose_first(**request: Any) -> Any:
        response = send(**request)
        if not lost:
            lost.append(name)
            raise TransientStorageError("the connection was reset")
        return response

    monkeypatch.setattr(store.client, name, lose_first)
    monkeypatch.setattr("torchdata_remote.core.retry.time.sleep", lambda _: None)
    write(store, "a", data, overwrite=overwrite)
    assert gcs.get(f"{place}/a") == data
    assert (gcs.paths(place), unfinished(store)) == (["a"], [])


def test_the_object_of_another_writer_is_no_success_after_a_lost_response(
    gcs: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it has the same bytes."""
    place = gcs.new_place()
    store, lost = store_of(gcs, place), list[str]()
    send = store.client.put_object

    def lose_request(**request: Any) -> Any:
        if not lost:
            lost.append("")
            write(store_of(gcs, place), "a", b"same")
            raise TransientStorageError("the connection was reset")
        return send(**request)

    monkeypatch.setattr(store.client, "put_object", lose_request)
    with pytest.raises(ObjectExistsError):
        write(store, "a", b"same")


def test_an_object_that_cannot_be_deleted_stays_hidden_with_a_warning(
    gcs: GcsServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An account may be allowed to create objects only: then a second copy of a large object is left."""
    place = gcs.new_place()
    store = store_of(gcs, place)

    def refuse(path: str) -> None:
        raise AccessDeniedError("403")

    monkeypatch.setattr(store, "delete", refuse)
    write(store, "a", bytes(2 * MIB))
    write(store, "b", bytes(2 * MIB))
    assert listed(store) == ["a", "b"]
    assert len(gcs.paths(place)) == 4
    assert [one for one in caplog.messages if "storage.objects.delete" in one] == caplog.messages
    assert len(caplog.messages) == 1


KILLED = """
import os, signal, sys
import torchdata_remote.storage.multipart as multipart
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.storage import open_store
multipart.UPLOAD_PART_BYTES = 1 << 20
place, endpoint_url, step, overwrite = sys.argv[1:]
store, path = open_store(place + "/f/shard-0.tar", StorageOptions({"endpoint_url": endpoint_url, "token": "anon"}))
for name in ("upload_part", "complete_multipart_upload", "copy_object"):
    def send(send=getattr(store.client, name), name=name, **request):
        response = send(**request)
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return response
    setattr(store.client, name, send)
writer = store.create(path, overwrite=overwrite == "True")
writer.write(bytes(3 << 20))
writer.commit()
"""


@pytest.mark.parametrize(
    ("step", "overwrite"),
    [
        ("upload_part", False),
        ("upload_part", True),
        ("complete_multipart_upload", False),
        ("copy_object", False),
    ],
)
def test_what_a_killed_writer_leaves_is_hidden_and_removed(gcs: GcsServer, step: str, overwrite: bool) -> None:
    """At each step; the object itself is there only after the last one."""
    place = gcs.new_place()
    command = [sys.executable, "-c", KILLED, place, gcs.endpoint_url, step, str(overwrite)]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    store, written = store_of(gcs, place), ["f/shard-0.tar"] if step == "copy_object" else []
    assert listed(store) == written
    assert len(gcs.paths(place)) - len(written) + len(unfinished(store)) == 1
    store.remove_leftovers("f/other-", lambda name: True)
    store.remove_leftovers("f/", lambda name: name == "shard-1.tar")
    store.remove_old_leftovers("", time.time() - 3600)
    assert len(gcs.paths(place)) - len(written) + len(unfinished(store)) == 1
    store.remove_leftovers("f/" if overwrite else "f/shard-", lambda name: name == "shard-0.tar")
    assert (gcs.paths(place), unfinished(store)) == (written, [])


def test_old_leftovers_are_removed_in_all_folders(gcs: GcsServer) -> None:
    """Objects under their own names are kept."""
    place = gcs.new_place()
    store = store_of(gcs, place)
    for path in ("a", "f/b"):
        write(store, path, b"x")
        write(store, partial_path(path, "0" * 32), b"x")
    store.create("f/c", overwrite=True).write(bytes(2 * MIB))
    store.remove_old_leftovers("", time.time() + 60)
    assert (gcs.paths(place), unfinished(store)) == (["a", "f/b"], [])
    assert own_name("f/c") is None


@given(num_folder=st.integers(0, 900), num_name=st.integers(1, 1024), character=st.sampled_from("aé漢"))
def test_a_name_before_publishing_is_no_longer_than_google_allows(
    num_folder: int, num_name: int, character: str
) -> None:
    """1,024 bytes in UTF-8, whatever the object's own name is; short names are kept."""
    name = character * num_name
    path = f"{'f' * num_folder}/{name}"
    num_bytes = len(path.encode())
    assume(num_bytes <= 1024)
    hidden = partial_path(path, "0" * 32)
    assert len(hidden.encode()) <= 1024
    kept = own_name(hidden)
    assert kept is not None
    assert name.startswith(kept)
    assert kept == name or num_bytes > 900


@pytest.mark.parametrize("overwrite", [True, False])
def test_the_page_of_a_proxy_is_no_success(overwrite: bool) -> None:
    """Google answers with an etag to what it has stored: an object would be lost without an error."""
    with raw(lambda head: answer("200 OK", b"<html/>", "Content-Length: 7")) as server:
        store, _ = open_store("gs://bucket/", StorageOptions({"endpoint_url": server.url, "token": "anon"}))
        writer = store.create("a", overwrite=overwrite)
        writer.write(b"bytes")
        with pytest.raises(
            StorageError, match=r"gs://bucket/a: put_object was answered without ETag.*after 8 attempts"
        ):
            writer.commit()
        writer.abort()


def test_the_page_of_a_proxy_is_no_part(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part is sent again."""
    place, data = gcs.new_place(), os.urandom(SIZES["large"])
    store, replaced = store_of(gcs, place), list[str]()
    send = store.request

    def replace(name: str, path: str, **more: Any) -> Any:
        if name == "upload_part" and not replaced:
            replaced.append(name)
            return {}
        return send(name, path, **more)

    monkeypatch.setattr(store, "request", replace)
    write(store, "a", data)
    assert (replaced, gcs.get(f"{place}/a") == data) == (["upload_part"], True)
