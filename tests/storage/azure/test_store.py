"""Azure Blob Storage against Azurite: reading, listing, errors, forks."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.servers.azurite import ACCOUNT, KEY, AzuritePlace
from torchdata_remote import Backend
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectNotFoundError,
    RemoteDataError,
    StorageError,
    UrlError,
)
from torchdata_remote.storage import Connection, list_prefix, open_store
from torchdata_remote.storage.azure.settings import AzureSettings
from torchdata_remote.storage.azure.store import AzureStore


def store_of(server: AzuritePlace, place: str, options: dict[str, Any] | None = None) -> AzureStore:
    store, _ = open_store(f"{place}/", StorageOptions(server.storage_options if options is None else options))
    assert isinstance(store, AzureStore)
    return store


def test_a_listing_of_several_pages_is_complete(azurite: AzuritePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without folders; Azure's limit of a page is 5,000 names."""
    monkeypatch.setattr("torchdata_remote.storage.azure.store._MAX_NAMES", 7)
    monkeypatch.setattr(AzureStore._page, "__kwdefaults__", {"limit": 7})
    place = azurite.new_place()
    paths = [f"f/{number:03d}" for number in range(23)] + [f"f/{number}/x" for number in range(10)]
    for path in paths:
        azurite.put(f"{place}/{path}", b"x")
    options = StorageOptions(azurite.storage_options)
    found = list_prefix(f"{place}/f/", "f/", True, options, RetryPolicy())
    assert [entry.path for entry in found] == sorted(paths)
    store = store_of(azurite, place)
    assert store.list_page("f/", recursive=True, token=None).next_token is not None
    page = store.list_after("f/", recursive=False, after="f/005", limit=20)
    assert [entry.path for entry in page.entries] == [f"f/{number:03d}" for number in range(6, 23)]
    assert page.folders == ["f/1/", "f/2/", "f/3/"]
    assert page.next_token == "f/3/"


@pytest.mark.parametrize("name", ["a b", "ä/ö", "100%", "a+b", "a?b#c", "x&y<z>\"'", "a//b", "%41", "~t", "é"])
def test_odd_names_are_read_by_every_transport(azurite: AzuritePlace, name: str) -> None:
    """As they are listed."""
    place = azurite.new_place()
    azurite.put(f"{place}/{name}", name.encode())
    store = store_of(azurite, place)
    [entry] = store.list_page("", recursive=True, token=None).entries
    assert entry == store.stat(name) == store.find(name)
    for read in (store.read, store.read_without_obstore):
        assert read(name, 0, None, entry.etag).whole() == name.encode()


def test_names_that_change_on_their_way_are_refused(azurite: AzuritePlace) -> None:
    """HTTP clients remove dots between slashes, so that another object would be read or replaced."""
    store = store_of(azurite, azurite.new_place())
    for call in (store.stat, store.delete, lambda path: store.read(path, 0, None, None)):
        with pytest.raises(UrlError, match=r"'\.' or '\.\.' between slashes"):
            call("a/../b")


@pytest.mark.parametrize("read", ["read", "read_without_obstore"])
def test_faults_are_errors_of_this_package(azurite: AzuritePlace, read: str) -> None:
    """With what is missing: the object, or its container; the same by both transports."""
    place = azurite.new_place()
    store = store_of(azurite, place)
    with pytest.raises(ObjectNotFoundError, match=f"{place}/none: no such object"):
        getattr(store, read)("none", 0, None, None)
    missing = store_of(azurite, "az://no-such-container")
    with pytest.raises(ObjectNotFoundError, match=r"no such container: 'no-such-container'.*account_name"):
        getattr(missing, read)("a", 0, None, None)
    with pytest.raises(ObjectNotFoundError, match="no such container"):
        missing.delete("a")
    with pytest.raises(ObjectNotFoundError, match="no such container"):
        missing.list_page("", recursive=True, token=None)


def _sas(place: str, *, minutes: int) -> str:
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    end = dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=minutes)
    permission = ContainerSasPermissions(read=True, list=True)
    sas: str = generate_container_sas(ACCOUNT, place.removeprefix("az://"), KEY, permission=permission, expiry=end)
    return sas


def _by_sas(server: AzuritePlace, sas: str) -> dict[str, Any]:
    return {
        "connection_string": f"BlobEndpoint={server.endpoint_url}/{ACCOUNT};AccountName={ACCOUNT}",
        "sas_token": sas,
    }


def test_a_sas_reads_and_lists(azurite: AzuritePlace) -> None:
    """One for reading only does not write; the error says what gave no right, without the signature."""
    place = azurite.new_place()
    azurite.put(f"{place}/a", b"bytes")
    sas = _sas(place, minutes=30)
    store = store_of(azurite, place, _by_sas(azurite, sas))
    assert store.read("a", 1, 3, None).whole() == b"yt"
    assert [entry.path for entry in store.list_page("", recursive=True, token=None).entries] == ["a"]
    writer = store.create("b", overwrite=True)
    with pytest.raises(AccessDeniedError, match="'sas_token' of storage_options") as caught:
        writer.commit()
    assert sas.partition("sig=")[2] not in str(caught.value)


@pytest.mark.parametrize("read", ["read", "read_without_obstore"])
def test_an_expired_sas_is_said(azurite: AzuritePlace, read: str) -> None:
    """It cannot be renewed here."""
    place = azurite.new_place()
    azurite.put(f"{place}/a", b"bytes")
    store = store_of(azurite, place, _by_sas(azurite, _sas(place, minutes=-5)))
    with pytest.raises(ExpiredCredentialsError, match=r"the SAS has expired at 20.*'sas_token' of storage_options"):
        getattr(store, read)("a", 0, None, None)


def test_a_wrong_key_names_its_source(azurite: AzuritePlace) -> None:
    """And never shows it."""
    wrong = azurite.connection_string.replace(KEY[:6], "AAAAAA")
    store = store_of(azurite, azurite.new_place(), {"connection_string": wrong})
    for read in (store.read, store.read_without_obstore):
        with pytest.raises(AccessDeniedError, match="The credentials are from the connection string") as caught:
            read("a", 0, None, None)
        assert KEY[6:] not in str(caught.value)
    invalid = azurite.connection_string.replace(KEY, "a")
    with pytest.raises(AccessDeniedError, match=r"the account key is not valid.*from the connection string"):
        store_of(azurite, azurite.new_place(), {"connection_string": invalid}).stat("a")


def test_a_public_container_is_read_anonymously(azurite: AzuritePlace) -> None:
    """A private one answers as if it did not exist, which the error says."""
    options = {
        "connection_string": f"BlobEndpoint={azurite.endpoint_url}/{ACCOUNT};AccountName={ACCOUNT}",
        "anon": True,
    }
    public, private = azurite.new_place(public_access="container"), azurite.new_place()
    for place in (public, private):
        azurite.put(f"{place}/a", b"bytes")
    store = store_of(azurite, public, options)
    assert store.read("a", 0, None, None).whole() == store.read_without_obstore("a", 0, None, None).whole() == b"bytes"
    with pytest.raises(StorageError, match=r"anonymous|anon=True"):
        store_of(azurite, private, options).stat("a")


def test_credentials_are_renewed_before_they_expire(azurite: AzuritePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those made from an account key hold for an hour; reading goes on with others."""
    place = azurite.new_place()
    azurite.put(f"{place}/a", b"bytes")
    monkeypatch.setattr("torchdata_remote.storage.azure.credentials._SAS_S", 600.5)
    store = store_of(azurite, place)
    made: list[Any] = []
    make = store._credentials._signed

    def counted() -> Any:
        made.append(make())
        return made[-1]

    monkeypatch.setattr(store._credentials, "_signed", counted)
    clock = [time.time()]
    monkeypatch.setattr("torchdata_remote.storage.azure.credentials.time", SimpleNamespace(time=lambda: clock[0]))
    for _ in range(3):
        assert store.stat("a").size == 5
    clock[0] += 1
    assert store.read("a", 0, None, None).whole() == b"bytes"
    assert len(made) == 2


def test_a_forked_child_reads_after_its_parent_has_used_obstore(azurite: AzuritePlace) -> None:
    """By urllib3, with a warning, instead of hanging."""
    place = azurite.new_place()
    azurite.put(f"{place}/a", b"bytes")
    script = f"""
import os, warnings
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.storage import open_store
options = StorageOptions({azurite.storage_options!r})
store, path = open_store("{place}/a", options)
assert store.read(path, 0, None, None).whole() == b"bytes"
if (child := os.fork()) == 0:
    store, path = open_store("{place}/a", options)
    assert store.read(path, 1, 3, None).whole() == b"yt"
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "az is read by urllib3, more slowly" in done.stderr


def test_a_backend_can_be_chosen(azurite: AzuritePlace) -> None:
    """obstore; botocore is for s3."""
    place, options = azurite.new_place(), StorageOptions(azurite.storage_options)
    assert isinstance(open_store(f"{place}/a", options, Connection(Backend.OBSTORE))[0], AzureStore)
    with pytest.raises(UrlError, match="backend='botocore' cannot read az://"):
        open_store(f"{place}/a", options, Connection(Backend.BOTOCORE))


def test_a_name_with_a_backslash_is_refused(azurite: AzuritePlace) -> None:
    """Azure makes slashes of them, so that another object would be read or replaced."""
    place = azurite.new_place()
    azurite.put(f"{place}/a/b", b"another")
    store = store_of(azurite, place)
    for call in (store.stat, store.delete, lambda path: store.read(path, 0, None, None)):
        with pytest.raises(UrlError, match="with a backslash"):
            call("a\\b")
    with pytest.raises(UrlError, match="with a backslash"):
        store.create("a\\b", overwrite=True).commit()
    assert azurite.get(f"{place}/a/b") == b"another"


def test_the_log_of_libraries_shows_no_signature(azurite: AzuritePlace, caplog: pytest.LogCaptureFixture) -> None:
    """urllib3 logs the addresses of requests, which have it."""
    store = store_of(azurite, azurite.new_place())
    with caplog.at_level(logging.DEBUG):
        store.list_page("", recursive=True, token=None)
    assert any("sig=..." in line for line in caplog.messages)
    assert not re.search(r"sig=(?!\.\.\.)", caplog.text)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:99999/pets", "http://a b/pets"])
def test_an_address_that_obstore_refuses_is_an_error_of_this_package(endpoint: str) -> None:
    """Also where it is found by the first request only."""
    settings = AzureSettings("pets", endpoint, None, "anonymous", None, "", 30.0)
    with pytest.raises(RemoteDataError):
        AzureStore("az://box/", "box", settings, read_by_obstore=True).read("a", 0, None, None)
