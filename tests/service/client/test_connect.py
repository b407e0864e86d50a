"""A dataset service as a store: every promise holds by obstore and by urllib3."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import pickle
import re
import traceback
import uuid
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.scripted import Request, Response, scripted
from tests.servers.service import running_service
from tests.support.read_once import read_once
from torchdata_remote import Backend, RetryPolicy
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.fetch.listing.sources import list_source
from torchdata_remote.service.client.connect import DatasetFile, DatasetsStore, open_service
from torchdata_remote.storage import Connection, RangeNotSatisfiableError, open_store, publish
from torchdata_remote.storage import multipart as _multipart
from torchdata_remote.testing import Faults, FaultyStore

NONE = StorageOptions()
ODD_PATHS = [
    "a b/c d.bin",
    "%20.bin",
    "a%2Fb.bin",
    "%2e%2e/x",
    "a#b.bin",
    "a?b=c.bin",
    "a+b.bin",
    "a&b=c;d,e:f@.bin",
    "a*b[0-9]{1,2}.bin",
    "å/日本/😀.bin",
    "e\u0301 is not \u00e9.bin",
    "'quotes\" and <|> ^ `.bin",
    " begins and ends with a space ",
    "...",
    "~tilde(1)!$.bin",
    "/".join(["x" * 100] * 9),
]
NAMES = st.text(
    st.characters(min_codepoint=32, blacklist_categories=["Cc", "Cs"], blacklist_characters="/\\"), min_size=1
)
PATHS = st.lists(
    NAMES.filter(lambda name: name not in (".", "..") and len(name.encode()) <= 200), min_size=1, max_size=3
).map("/".join)
BOTH = pytest.mark.parametrize("by_obstore", [True, False])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def store_at(host: str, by_obstore: bool = True, **options: Any) -> DatasetsStore:
    return DatasetsStore(host, StorageOptions(options), 30.0, read_by_obstore=by_obstore)


def write(store: DatasetsStore, path: str, data: bytes, *, overwrite: bool = False) -> None:
    pending = store.create(path, overwrite=overwrite)
    try:
        pending.write(data)
        pending.commit()
    except BaseException:
        pending.abort()
        raise


@pytest.fixture(scope="session")
def host(served: str) -> str:
    """``host:port`` of a service."""
    return served


@pytest.fixture
def name() -> str:
    """A dataset that is not there yet."""
    return uuid.uuid4().hex[:12]


# Reading and writing


@BOTH
@settings(max_examples=40)
@given(data=st.binary(max_size=300), start=st.integers(0, 300), length=st.integers(1, 310))
def test_reads_what_was_written(host: str, by_obstore: bool, data: bytes, start: int, length: int) -> None:
    """Every range is the slice; behind the end is an error."""
    store, path = store_at(host, by_obstore), "ranges/a.bin"
    write(store, path, data, overwrite=True)
    entry = store.stat(path)
    assert (entry.path, entry.size) == (path, len(data))
    assert store.find(path) == entry
    if start and start >= len(data):
        with pytest.raises(RangeNotSatisfiableError):
            store.read(path, start, start + length, entry.etag)
    elif data:
        answer = store.read(path, start, start + length, entry.etag)
        assert (answer.start, answer.end, answer.total_bytes) == (start, min(start + length, len(data)), len(data))
        assert (answer.whole(), answer.etag) == (data[start : start + length], entry.etag)
    answer = store.read(path, 0, None, None)
    assert (answer.whole(), answer.etag) == (data, entry.etag)


@pytest.mark.parametrize("path", ODD_PATHS)
def test_unusual_paths_are_encoded(host: str, path: str) -> None:
    """In requests of both transports, and in listings."""
    full, data = f"odd/{path}", path.encode()
    write(store_at(host), full, data, overwrite=True)
    for by_obstore in (True, False):
        store = store_at(host, by_obstore)
        entry = store.stat(full)
        assert store.read(full, 0, None, entry.etag).whole() == data
    [listed] = [found for found in store.list_page(full, recursive=True, token=None).entries if found.path == full]
    assert (listed.size, listed.etag) == (len(data), entry.etag)
    assert [found.path for found in store.digests(full, None)[0]] == [full]
    store.delete(full)
    assert store.find(full) is None


@settings(max_examples=40)
@given(path=PATHS)
def test_a_path_is_percent_encoded_once(path: str) -> None:
    """By both transports; decoded once it is the path, and nothing else of the URL."""
    with scripted(lambda request: Response.of_object(request, b"12345")) as server:
        host = server.url.removeprefix("http://")
        for by_obstore in (True, False):
            assert store_at(host, by_obstore).read(f"photos/{path}", 0, 2, '"1"').whole() == b"12"
        assert [unquote(request.target) for request in server.requests] == [f"/datasets/photos/files/{path}"] * 2
        agents = ["object_store" in request.headers["user-agent"] for request in server.requests]
        assert agents == [True, False]


@pytest.mark.parametrize("path", ["d/../other/a", "d/./a", "d//a", "../a", "d/a/"])
def test_paths_with_dot_segments_are_refused(host: str, path: str) -> None:
    """Without a request: clients would resolve them to another file."""
    for by_obstore in (True, False):
        store = store_at("127.0.0.1:9", by_obstore)
        for attempt in (store.stat, store.find, store.delete, partial(store.read, start=0, end=1, etag=None)):
            with pytest.raises(UrlError, match="no empty segment"):
                attempt(path)
        with pytest.raises(UrlError, match="no empty segment"):
            store.create(path, overwrite=True)


@BOTH
def test_a_replaced_file_is_an_error(host: str, name: str, by_obstore: bool) -> None:
    """Never a mixture of versions."""
    store = store_at(host, by_obstore)
    write(store, f"{name}/a", b"0123456789")
    etag = store.stat(f"{name}/a").etag
    write(store, f"{name}/a", b"9876543210", overwrite=True)
    with pytest.raises(ObjectChangedError, match="was replaced"):
        read_once(store, f"{name}/a", 0, 5, etag)


@BOTH
def test_missing_files_and_datasets_are_errors(host: str, name: str, by_obstore: bool) -> None:
    """That name them; so is a dataset instead of a file."""
    store = store_at(host, by_obstore)
    store.create_dataset(name)
    for path in (f"{name}/a", "no-such-dataset/a", name):
        with pytest.raises(ObjectNotFoundError, match=f"datasets://{host}/{path}"):
            store.read(path, 0, 1, None)
        with pytest.raises(ObjectNotFoundError, match=f"datasets://{host}/{path}"):
            store.stat(path)
        assert store.find(path) is None
    store.delete(f"{name}/a")
    with pytest.raises(ObjectNotFoundError):
        store.digests("no-such-dataset/", None)


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 50), max_size=8), part_bytes=st.integers(1, 40))
def test_a_file_of_any_size_is_stored_as_written(host: str, sizes: list[int], part_bytes: int) -> None:
    """In any pieces and parts, and visible only when it is complete."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_multipart, "UPLOAD_PART_BYTES", part_bytes)
        store, path = store_at(host), f"parts/{uuid.uuid4().hex}"
        pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
        pending = store.create(path, overwrite=False)
        for piece in pieces:
            pending.write(piece)
            assert store.find(path) is None
        pending.commit()
        assert store.read(path, 0, None, None).whole() == b"".join(pieces)


@pytest.mark.parametrize("part_bytes", [4, 100])
def test_an_existing_file_is_kept_without_overwrite(
    host: str, name: str, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was created meanwhile."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", part_bytes)
    store, path = store_at(host), f"{name}/a"
    first, second = store.create(path, overwrite=False), store.create(path, overwrite=False)
    first.write(b"first one")
    second.write(b"second one")
    first.commit()
    with pytest.raises(ObjectExistsError, match=f"datasets://{host}/{path} exists already"):
        second.commit()
    second.abort()
    assert store.read(path, 0, None, None).whole() == b"first one"
    write(store, path, b"second one", overwrite=True)
    assert store.read(path, 0, None, None).whole() == b"second one"


def test_abort_leaves_nothing(host: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a file nor parts."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", 4)
    store, path = store_at(host), f"{name}/a"
    pending = store.create(path, overwrite=False)
    pending.write(b"0123456789")
    upload_id = pending._upload_id
    assert upload_id is not None
    pending.abort()
    pending.abort()
    assert store.find(path) is None
    assert store.received(path, upload_id) == []


def test_parts_are_stored_in_any_order(host: str, name: str) -> None:
    """Also twice; the received ranges are reported; the last part completes the file."""
    store, path, data = store_at(host), f"{name}/a", bytes(range(100))
    store.create_dataset(name)
    assert store.received(path, "upload-0001") == []
    assert store.put_part(path, "upload-0001", 50, data[50:80], None, sha256=None) is None
    assert store.put_part(path, "upload-0001", 0, data[:20], None, sha256=None) is None
    assert store.put_part(path, "upload-0001", 0, data[:20], None, sha256=None) is None
    assert store.received(path, "upload-0001") == [(0, 20), (50, 80)]
    assert store.put_part(path, "upload-0001", 80, data[80:], 100, sha256=None) is None
    assert store.find(path) is None
    etag = store.put_part(path, "upload-0001", 20, data[20:50], 100, sha256=sha256(data))
    entry = store.stat(path)
    assert (entry.etag, entry.size) == (etag, 100)
    assert store.received(path, "upload-0001") == []
    assert store.digests(f"{name}/", None) == ([DatasetFile(path, 100, etag or "", sha256(data))], None)


def test_bytes_with_a_wrong_digest_are_not_stored(host: str, name: str) -> None:
    store, path = store_at(host), f"{name}/a"
    store.create_dataset(name)
    with pytest.raises(StorageError, match="The service says: "):
        store.put(path, b"flipped", sha256=sha256(b"written"))
    with pytest.raises(StorageError, match="The service says: "):
        store.put_part(path, "upload-0001", 0, b"flipped", 7, sha256=sha256(b"written"))
    assert store.find(path) is None
    assert store.put(path, b"written", sha256=sha256(b"written")) == store.stat(path).etag


# Datasets and listings


def test_datasets_are_created_listed_and_removed(host: str, name: str) -> None:
    """Also empty ones."""
    store = store_at(host)
    assert not store.has_folder(f"{name}/")
    store.make_folder(f"{name}/")
    store.create_dataset(name)
    with pytest.raises(ObjectExistsError):
        store.make_folder(name)
    assert store.has_folder(f"{name}/")
    assert name in store.names()
    assert not store.has_folder(f"{name}/cat/")
    write(store, f"{name}/cat/1", b"1")
    assert store.has_folder(f"{name}/cat/")
    store.remove_folder(f"{name}/")
    store.remove_folder(f"{name}/")
    assert not store.has_folder(name)
    with pytest.raises(UrlError, match="no dataset's name"):
        store.make_folder(f"{name}/cat/")
    with pytest.raises(StorageError, match="The service says: "):
        store.create_dataset("-no name-")


@settings(max_examples=40)
@given(
    paths=st.sets(
        st.text("ab/.", min_size=1, max_size=5)
        .filter(lambda path: path == "/".join(filter(None, path.split("/"))))
        .filter(lambda path: not {".", ".."} & set(path.split("/"))),
        max_size=8,
    ),
    prefix=st.text("ab/", max_size=3),
    limit=st.integers(1, 4),
)
def test_pages_make_up_the_listing(host: str, paths: set[str], prefix: str, limit: int) -> None:
    """Of any length: all files with the prefix, in the order of paths, each once."""
    paths = {path for path in paths if not any(other.startswith(path + "/") for other in paths)}
    store, name = store_at(host), uuid.uuid4().hex[:12]
    store.create_dataset(name)
    for path in paths:
        store.put(f"{name}/{path}", b"x", sha256=sha256(b"x"))
    expected = sorted(path for path in paths if path.startswith(prefix))
    folder = prefix[: prefix.rfind("/") + 1]
    for recursive in (True, False):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = store.list_after(f"{name}/{prefix}", recursive=recursive, after=after, limit=limit)
            assert len(page.entries) + len(page.folders) <= limit
            found += sorted([*(entry.path for entry in page.entries), *page.folders])
            after = page.next_token
        below = {path[: path.index("/", len(folder)) + 1] if "/" in path[len(folder) :] else path for path in expected}
        assert found == [f"{name}/{path}" for path in (expected if recursive else sorted(below))]
    store.remove_folder(name)


def test_listing_a_host_lists_its_datasets(tmp_path: Path) -> None:
    """All their files in the order of paths; not recursive, the datasets are folders."""
    with running_service(tmp_path) as host:
        store = store_at(host)
        assert store.list_page("", recursive=True, token=None) == ([], None, ())
        for path in ("a/1", "a/2", "a-b/1", "c/1"):
            write(store, path, b"x")
        store.create_dataset("b")
        url = f"datasets://{host}/"
        found = list_source(url, pattern=None, recursive=True, options=NONE, retry=RetryPolicy())
        assert [str(each).removeprefix(url) for each in found] == ["a-b/1", "a/1", "a/2", "c/1"]
        assert store.list_page("", recursive=False, token=None).folders == ["a-b/", "a/", "b/", "c/"]
        assert store.list_after("", recursive=False, after="a/", limit=1) == ([], "b/", ["b/"])
        assert store.list_page("a", recursive=False, token=None).folders == ["a-b/", "a/"]


@pytest.mark.parametrize("below", ["", "/", "/cat/", "/cat/*.txt"])
def test_listing_an_unknown_dataset_is_an_error(host: str, below: str) -> None:
    """It says what to check."""
    url = f"datasets://{host}/no-such-dataset{below}"
    with pytest.raises(EmptyListingError, match="no objects found"):
        list(list_source(url, pattern=None, recursive=True, options=NONE, retry=RetryPolicy()))


def test_source_urls_work_as_in_other_stores(host: str, name: str) -> None:
    """Folders, globs, brace ranges and single files, with size and etag."""
    store = store_at(host)
    for path in ("cat/1.txt", "cat/2.txt", "dog/[1].txt"):
        write(store, f"{name}/{path}", path.encode())

    def below(source: str) -> list[str]:
        url = f"datasets://{host}/{name}"
        found = list_source(url + source, pattern=None, recursive=True, options=NONE, retry=RetryPolicy())
        return [each.removeprefix(url) for each in found]

    assert below("") == below("/") == below("/**") == ["/cat/1.txt", "/cat/2.txt", "/dog/[1].txt"]
    assert below("/cat") == below("/c*/") == below("/*/?.txt") == ["/cat/1.txt", "/cat/2.txt"]
    assert below("/dog/[1].txt") == ["/dog/[1].txt"]
    assert below("/cat/{1..2}.txt") == ["/cat/1.txt", "/cat/2.txt"]
    [url] = list_source(
        f"datasets://{host}/{name}/cat/1.txt", pattern=None, recursive=True, options=NONE, retry=RetryPolicy()
    )
    entry = store.stat(f"{name}/cat/1.txt")
    assert (url.size, url.etag) == (entry.size, entry.etag)
    assert entry.modified_s is not None


# The token, options, errors


def test_a_service_with_a_token_accepts_no_other(
    guarded_service: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is taken from the options, or from the environment as it is at the request."""
    monkeypatch.delenv("TORCHDATA_REMOTE_TOKEN", raising=False)
    for by_obstore in (True, False):
        write(store_at(guarded_service, token=token), "photos/1", b"x", overwrite=True)
        for options in ({}, {"token": "wrong"}):
            store = store_at(guarded_service, by_obstore, **options)
            for attempt in (
                store.names,
                partial(store.read, "photos/1", 0, 1, None),
                partial(store.find, "photos/1"),
            ):
                with pytest.raises(AccessDeniedError, match="TORCHDATA_REMOTE_TOKEN"):
                    attempt()
        store = store_at(guarded_service, by_obstore)
        monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", f"{token}\n")
        assert store.read("photos/1", 0, 1, None).whole() == b"x"
        monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", "other")
        with pytest.raises(AccessDeniedError):
            store.read("photos/1", 0, 1, None)
        monkeypatch.delenv("TORCHDATA_REMOTE_TOKEN")


def test_the_token_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """In errors, tracebacks, logs, reprs or pickles; and it is not sent to other hosts."""
    shown: list[str] = []
    with scripted(lambda request: Response.of_object(request, b"x")) as other, caplog.at_level(logging.DEBUG):

        def respond(request: Request) -> Response:
            if "/moved" in request.target:
                return Response(302, b"", {"Location": other.url + "/x"})
            status = int(request.target.rpartition("/")[2].partition("?")[0] or 500)
            return Response(status, b'{"error": "no \\u0000 such"}')

        with scripted(respond) as server:
            url = f"datasets://{server.url.removeprefix('http://')}/"
            options = StorageOptions({"token": "canary-token-long-enough"})
            for backend in (Backend.AUTOMATIC, Backend.OBSTORE):
                store, _ = open_service(url, options, Connection(backend))
                stores = [store, DatasetsStore(url[11:-1], options, 30.0, read_by_obstore=False)]
                for one in stores:
                    for path in ("a/400", "a/401", "a/403", "a/404", "a/412", "a/500", "a/507", "a/moved"):
                        for attempt in (one.stat, partial(one.read, start=0, end=1, etag=None), one.delete):
                            try:
                                attempt(path)
                            except Exception as error:
                                shown += [repr(error), *traceback.format_exception(error)]
                    shown += [repr(one), repr(vars(one))]
                    with pytest.raises(TypeError):
                        pickle.dumps(one)
            assert all(
                request.headers["authorization"] == "Bearer canary-token-long-enough" for request in server.requests
            )
        assert all("authorization" not in request.headers for request in other.requests)
    broken = options["token"] + "\n" + options["token"]  # its own line would show it
    with pytest.raises(AccessDeniedError) as caught:
        store_at("127.0.0.1:9", token=broken).find("a/b")
    shown += traceback.format_exception(caught.value)
    assert len(shown) > 50
    for text in [*shown, caplog.text]:
        assert "canary" not in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "canary"}, "unknown option 'key' in storage_options. Known are secure, token."),
        (
            {"client_kwargs": {}, "token": "canary"},
            "unknown option 'client_kwargs' in storage_options. Known are secure,",
        ),
        ({"token": 7}, "storage_options for a dataset service are 'token' (a string;"),
        ({"secure": "yes"}, "storage_options for a dataset service are 'token' (a string;"),
    ],
)
def test_unknown_storage_options_are_refused(options: dict[str, Any], says: str) -> None:
    """They may be another store's secrets."""
    with pytest.raises(UrlError, match=re.escape(says)) as caught:
        open_store("datasets://127.0.0.1:9/a/b", StorageOptions(options))
    assert "canary" not in str(caught.value)


def test_secure_uses_tls_only() -> None:
    with scripted(lambda request: Response()) as server:
        for by_obstore in (True, False):
            store = store_at(server.url.removeprefix("http://"), by_obstore, secure=True)
            with pytest.raises(TransientStorageError):
                store.read("a/b", 0, 1, None)
        assert not server.requests


def test_obstore_is_the_default_transport(caplog: pytest.LogCaptureFixture) -> None:
    """Backends that cannot be used are refused."""
    with caplog.at_level("INFO", "torchdata_remote"):
        open_store(f"datasets://127.0.0.1:9/{uuid.uuid4().hex}", NONE, Connection(read_timeout_s=7))
    assert "datasets://127.0.0.1:9/ is read by obstore (backend='automatic')" in caplog.text
    with pytest.raises(UrlError, match="backend='botocore' cannot read"):
        open_store("datasets://127.0.0.1:9/a", NONE, Connection(Backend.BOTOCORE))
    with pytest.raises(UrlError, match="expected datasets://"):
        open_service("s3://bucket/a", NONE)
    with pytest.raises(UrlError, match="Use backend='automatic'"):
        open_service("datasets://127.0.0.1:9/a", NONE, Connection(Backend.FSSPEC))


@BOTH
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, StorageError),
        (401, AccessDeniedError),
        (403, AccessDeniedError),
        (404, ObjectNotFoundError),
        (412, ObjectChangedError),
        (429, TransientStorageError),
        (500, TransientStorageError),
        (503, TransientStorageError),
        (507, StorageError),
    ],
)
def test_each_status_is_its_error(by_obstore: bool, status: int, expected: type[StorageError]) -> None:
    """By both transports, with the service's message; without retries."""
    body = json.dumps({"error": 'the "disk"\nis \u00e5'}).encode()
    with scripted(lambda request: Response(status, body)) as server:
        store = store_at(server.url.removeprefix("http://"), by_obstore)
        with pytest.raises(expected, match=r'The service says: the "disk" is å$') as caught:
            store.read("photos/1", 0, 5, '"1"')
        assert type(caught.value) is expected
        assert len(server.requests) == 1


def test_retry_after_is_honoured() -> None:
    """Although obstore hides that header."""
    with scripted(lambda request: Response(503, b"", {"Retry-After": "7"})) as server:
        store = store_at(server.url.removeprefix("http://"))
        for expected in (None, 7.0):
            with pytest.raises(TransientStorageError) as caught:
                store.read("photos/1", 0, 5, None)
            assert caught.value.retry_after_s == expected


@pytest.mark.parametrize(
    "body", [b"<html>", b"{}", b'{"files": 1}', b'{"files": [{}], "folders": [], "next": null}', b""]
)
def test_responses_of_other_servers_are_an_error(body: bytes) -> None:
    """It asks what is listening there."""
    with scripted(lambda request: Response(200, body)) as server:
        store = store_at(server.url.removeprefix("http://"))
        with pytest.raises(StorageError, match="dataset service"):
            store.list_page("photos/", recursive=True, token=None)


# Faults


@BOTH
@pytest.mark.parametrize(
    "fault",
    [
        *("slow_down", "internal_error", "reset", "early_end", "reset_in_body", "cut_body", "cut_without_length"),
        *("short_range", "ignored_range", "shifted_range", "doubled"),
    ],
)
def test_broken_responses_are_retried(host: str, name: str, by_obstore: bool, fault: str) -> None:
    """The bytes read in the end are those that were written."""
    data = bytes(range(256)) * 20
    write(store_at(host), f"{name}/a", data)
    etag = store_at(host).stat(f"{name}/a").etag
    with FaultyStore(f"http://{host}", seed=1) as faulty:
        store = store_at(faulty.endpoint_url.removeprefix("http://"), by_obstore)
        faulty.script(fault, None, fault)
        assert read_once(store, f"{name}/a", 100, 5000, etag, len(data)) == data[100:5000]
    with FaultyStore(f"http://{host}", Faults(changed=1), seed=1) as faulty:
        store = store_at(faulty.endpoint_url.removeprefix("http://"), by_obstore)
        with pytest.raises(ObjectChangedError):
            read_once(store, f"{name}/a", 100, 5000, etag, len(data))


@pytest.mark.parametrize("part_bytes", [300, 100_000])
@pytest.mark.parametrize("fault", ["slow_down", "reset", "early_end", "reset_in_body", "cut_body", "internal_error"])
def test_lost_responses_of_writes_are_retried(
    host: str, name: str, fault: str, part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is stored once and whole, also without ``overwrite``."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", part_bytes)
    data = bytes(range(250)) * 4
    store_at(host).create_dataset(name)
    with FaultyStore(f"http://{host}", Faults(methods={"PUT"}), seed=1) as faulty:
        store = store_at(faulty.endpoint_url.removeprefix("http://"))
        for first in range(5):
            faulty.script(*[None] * first, fault)
            write(store, f"{name}/{first}", data)
            faulty.script()
        assert sum(number for kind, number in faulty.counts.items() if kind != "well") >= 1
    for first in range(5):
        assert store_at(host).read(f"{name}/{first}", 0, None, None).whole() == data


def test_an_upload_that_was_discarded_is_an_error(host: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of the file is visible."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", 4)
    store, path = store_at(host), f"{name}/a"
    pending = store.create(path, overwrite=False)
    pending.write(b"0123456789")
    pending._wait_for_parts()
    pending._uploads.abort_upload(path, pending._upload_id or "")
    with pytest.raises(StorageError, match="lost parts"):
        pending.commit()
    pending.abort()
    assert store.find(path) is None


def test_publish_creates_an_object_once(host: str, name: str) -> None:
    """As in all stores."""
    publish(f"datasets://{host}/{name}/index.json", b"{}", NONE, overwrite=False)
    with pytest.raises(ObjectExistsError):
        publish(f"datasets://{host}/{name}/index.json", b"{}", NONE, overwrite=False)
    with contextlib.closing(store_at(host).read(f"{name}/index.json", 0, None, None).chunks) as chunks:
        assert b"".join(chunks) == b"{}"
