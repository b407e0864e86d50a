"""Writing to Azure: blocks, conditions, lost responses."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from tests.servers.azurite import AzuritePlace
from tests.servers.raw import answer, raw
from tests.storage.azure.test_store import store_of
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import ObjectExistsError, StorageError, TransientStorageError
from torchdata_remote.storage import open_store
from torchdata_remote.storage.azure.store import AzureStore

MIB = 1 << 20
SIZES = {"small": MIB // 2, "large": 3 * MIB + 7}


@pytest.fixture(autouse=True)
def _parts_of_1_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdata_remote.storage.multipart.UPLOAD_PART_BYTES", MIB)


def write(store: AzureStore, path: str, data: bytes, *, overwrite: bool = False) -> None:
    writer = store.create(path, overwrite=overwrite)
    try:
        writer.write(data)
        writer.commit()
    finally:
        writer.abort()


def test_a_large_object_becomes_visible_whole(azurite: AzuritePlace) -> None:
    """At commit, with its bytes in order."""
    place, data = azurite.new_place(), os.urandom(5 * MIB + 123)
    store = store_of(azurite, place)
    writer = store.create("f/big", overwrite=False)
    for start in range(0, len(data), MIB // 3):
        writer.write(data[start : start + MIB // 3])
        assert store.find("f/big") is None
    writer.commit()
    assert azurite.get(f"{place}/f/big") == data
    assert azurite.unfinished(place) == []


def test_blocks_are_sent_at_the_same_time(azurite: AzuritePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four."""
    store, together = store_of(azurite, azurite.new_place()), threading.Barrier(4)
    send = store.request

    def wait_for_others(method: str, path: str, **more: Any) -> Any:
        if (more.get("query") or {}).get("comp") == "block":
            together.wait(20)
        return send(method, path, **more)

    monkeypatch.setattr(store, "request", wait_for_others)
    write(store, "big", bytes(8 * MIB))
    assert store.stat("big").size == 8 * MIB


@pytest.mark.parametrize("kind", SIZES)
def test_an_existing_object_is_replaced_with_overwrite_only(azurite: AzuritePlace, kind: str) -> None:
    """One that appears while the blocks are uploaded is kept."""
    place, data = azurite.new_place(), os.urandom(SIZES[kind])
    store = store_of(azurite, place)
    writer = store.create("a", overwrite=False)
    writer.write(data)
    azurite.put(f"{place}/a", b"first")
    with pytest.raises(ObjectExistsError, match=f"{place}/a exists already"):
        writer.commit()
    writer.abort()
    assert azurite.get(f"{place}/a") == b"first"
    write(store, "a", data, overwrite=True)
    assert azurite.get(f"{place}/a") == data


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("kind", SIZES)
def test_a_lost_response_is_no_error(
    azurite: AzuritePlace, kind: str, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer recognises its own object, rather than to report that it exists."""
    place, data = azurite.new_place(), os.urandom(SIZES[kind])
    store, lost = store_of(azurite, place), list[str]()
    send = store.request

    def lose(method: str, path: str, **more: Any) -> Any:
        done = send(method, path, **more)
        if method == "PUT" and (more.get("query") or {}).get("comp") != "block" and not lost:
            lost.append(path)
            raise TransientStorageError("the response is lost")
        return done

    monkeypatch.setattr(store, "request", lose)
    write(store, "a", data, overwrite=overwrite)
    assert (lost, azurite.get(f"{place}/a") == data) == (["a"], True)


@pytest.mark.parametrize("kind", SIZES)
def test_of_several_writers_one_wins(azurite: AzuritePlace, kind: str) -> None:
    """The others get an error, and the object is that of the winner."""
    place = azurite.new_place()
    store, results = store_of(azurite, place), dict[int, str]()

    def run(number: int) -> None:
        try:
            write(store, "a", bytes([number]) * SIZES[kind])
            results[number] = "won"
        except ObjectExistsError:
            results[number] = "lost"

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results.values()) == ["lost", "lost", "lost", "won"]
    [winner] = [number for number, result in results.items() if result == "won"]
    assert azurite.get(f"{place}/a") == bytes([winner]) * SIZES[kind]


@pytest.mark.parametrize("kind", SIZES)
def test_the_page_of_a_proxy_is_no_success(kind: str) -> None:
    """Azure answers 201 to what it has stored: an object would be lost without an error."""
    with raw(lambda head: answer("200 OK", b"<html>", "Content-Length: 6")) as server:
        options = {"connection_string": f"BlobEndpoint={server.url}/pets;AccountName=pets", "anon": True}
        store, _ = open_store("az://box/", StorageOptions(options))
        writer = store.create("a", overwrite=False)
        writer.write(bytes(SIZES[kind]))
        with pytest.raises(StorageError, match=r"az://box/a: PUT was answered 200.*Gave up after 8 attempts"):
            writer.commit()
        writer.abort()
