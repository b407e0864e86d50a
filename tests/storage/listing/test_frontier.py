"""A listing folder by folder is the listing page by page, only sooner."""

from __future__ import annotations

import bisect
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.s3 import S3Server
from tests.support.s3_stores import shared_bucket
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import AccessDeniedError, StorageError, TransientStorageError
from torchdata_remote.storage import Entry, Page
from torchdata_remote.storage.listing import pages as _paging
from torchdata_remote.storage.listing.frontier import MAX_IN_FLIGHT, MAX_PAGES_AHEAD, Frontier, PageRequest
from torchdata_remote.storage.listing.pages import list_prefix
from torchdata_remote.storage.s3.store import S3Store

RETRY = RetryPolicy(max_attempts=2, first_wait_s=0)
PART = st.sampled_from(["a", "a-", "a.b", "a0", "b", "é", "\U0001f600", " ", ""])
KEY = st.tuples(st.lists(PART, min_size=1, max_size=4).map("/".join), st.sampled_from(["", "", "/"])).map("".join)
KEYS = st.sets(KEY.filter(bool), max_size=40)
PREFIX = st.sampled_from(["", "", "", "a", "a/", "a/a/", "a0"])


class Bucket:
    """Keys that are listed in pages like by S3, where a folder counts as one key. Requests are recorded."""

    def __init__(self, keys: set[str], page_keys: int) -> None:
        self.keys, self.page_keys = sorted(keys), page_keys
        self.requests = list[tuple[str, bool, str | None]]()

    def list_page(self, prefix: str, *, recursive: bool, token: str | None) -> Page:
        self.requests.append((prefix, recursive, token))
        at = bisect.bisect_left(self.keys, max(prefix, token or ""))
        entries, folders = list[Entry](), list[str]()
        while at < len(self.keys) and self.keys[at].startswith(prefix):
            if len(entries) + len(folders) == self.page_keys:
                return Page(entries, self.keys[at], folders)
            slash = -1 if recursive else self.keys[at].find("/", len(prefix))
            if slash < 0:
                entries.append(Entry(self.keys[at], 1, None))
                at += 1
            else:
                folders.append(self.keys[at][: slash + 1])
                at = bisect.bisect_left(self.keys, folders[-1][:-1] + "0")
        return Page(entries, None, folders)

    def listed(self, prefix: str = "") -> Iterator[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_paging, "open_store", lambda url, options, connection: (self, ""))
            for entry in list_prefix("s3://b/", prefix, True, StorageOptions(), RETRY):
                yield entry.path


def of_folders(num_folders: int, num_keys: int) -> set[str]:
    return {f"{folder:03d}/{number:02d}" for folder in range(num_folders) for number in range(num_keys)}


def threads_end(before: set[threading.Thread]) -> bool:
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    return set(threading.enumerate()) <= before


@given(keys=KEYS, page_keys=st.integers(1, 12), prefix=PREFIX)
def test_any_keys_are_listed_once_and_in_order(keys: set[str], page_keys: int, prefix: str) -> None:
    """Also those that have the name of a folder."""
    assert list(Bucket(keys, page_keys).listed(prefix)) == sorted(key for key in keys if key.startswith(prefix))


@given(keys=KEYS, page_keys=st.integers(1, 12), prefix=PREFIX, data=st.data())
def test_pages_may_be_received_in_any_order(keys: set[str], page_keys: int, prefix: str, data: st.DataObject) -> None:
    """They are taken in order, and the number of pages ahead is bounded."""
    bucket, frontier = Bucket(keys, page_keys), Frontier("s3://b/", prefix, recursive=True)
    in_flight, listed = list[PageRequest](), list[str]()
    while frontier:
        in_flight += frontier.next_requests()
        assert len(in_flight) <= MAX_IN_FLIGHT + 1
        if in_flight and (frontier.is_waiting or data.draw(st.booleans())):
            request = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            frontier.receive(
                request, bucket.list_page(request.prefix, recursive=request.recursive, token=request.token)
            )
        elif not frontier.is_waiting:
            listed += [entry.path for entry in frontier.take()]
    assert listed == sorted(key for key in keys if key.startswith(prefix))


@settings(max_examples=20)
@given(keys=KEYS.filter(bool), page_keys=st.integers(1, 5))
def test_a_server_is_listed_with_sizes_and_etags(moto: S3Server, keys: set[str], page_keys: int) -> None:
    """With S3's own pages, tokens, encoding and markers of folders."""
    bucket, folder = shared_bucket(moto), uuid.uuid4().hex
    client = moto.client()
    full = {f"{folder}/{key}": b"" if number % 3 == 0 else b"1" for number, key in enumerate(sorted(keys))}
    etags = {key: client.put_object(Bucket=bucket, Key=key, Body=body)["ETag"] for key, body in full.items()}
    page, paged = S3Store._page, list[dict[str, Any]]()

    def small(self: S3Store, prefix: str, token: str | None, extra: dict[str, Any]) -> Page:
        paged.append(extra)
        return page(self, prefix, token, {"MaxKeys": page_keys, **extra})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Store, "_page", small)
        options = StorageOptions(moto.storage_options)
        listed = list(list_prefix(f"s3://{bucket}/", f"{folder}/", True, options, RETRY))
    objects = sorted(key for key, body in full.items() if body or not key.endswith("/"))
    assert [entry[:3] for entry in listed] == [(key, len(full[key]), etags[key]) for key in objects]
    assert len(paged) > 1 or len(full) <= page_keys


def test_a_listing_of_one_page_costs_one_request() -> None:
    """With and without folders."""
    for keys in (of_folders(4, 5), {"a"}, set[str]()):
        bucket = Bucket(keys, 20)
        assert list(bucket.listed()) == sorted(keys)
        assert bucket.requests == [("", True, None)]


@pytest.mark.parametrize("keys", [{f"{number:03d}" for number in range(95)}, of_folders(95, 1)])
def test_a_prefix_without_large_folders_is_not_divided(keys: set[str]) -> None:
    """Each page is requested once."""
    bucket = Bucket(keys, 10)
    assert list(bucket.listed()) == sorted(keys)
    assert len(bucket.requests) == 10
    assert all(recursive for _, recursive, _ in bucket.requests)


def test_a_single_folder_is_entered_until_there_are_several() -> None:
    """Without a second request for the first page."""
    bucket = Bucket({f"data/train/{key}" for key in of_folders(5, 10)}, 10)
    assert list(bucket.listed()) == bucket.keys
    assert bucket.requests[:4] == [
        ("", True, None),
        ("", False, None),
        ("data/", False, None),
        ("data/train/", False, None),
    ]
    assert sorted(bucket.requests[4:]) == [(f"data/train/{folder:03d}/", True, None) for folder in range(5)]


def test_each_large_folder_is_divided() -> None:
    """``train/`` is divided although ``val/`` is beside it."""
    bucket = Bucket({f"{part}/{key}" for part in ("train", "val") for key in of_folders(5, 10)}, 10)
    assert list(bucket.listed()) == bucket.keys
    assert {f"{part}/{folder:03d}/" for part in ("train", "val") for folder in range(5)} <= {
        prefix for prefix, _, _ in bucket.requests
    }
    assert len(bucket.requests) <= 20


def test_folders_are_listed_concurrently() -> None:
    """Up to the limit."""
    bucket = Bucket(of_folders(MAX_IN_FLIGHT, 10), 10)
    barrier, list_page = threading.Barrier(MAX_IN_FLIGHT, timeout=60), bucket.list_page

    def together(prefix: str, *, recursive: bool, token: str | None) -> Page:
        if prefix and token is None:
            barrier.wait()
        return list_page(prefix, recursive=recursive, token=token)

    bucket.list_page = together  # type: ignore[method-assign]
    assert list(bucket.listed()) == bucket.keys


def test_the_first_page_is_yielded_before_folders_are_listed() -> None:
    bucket = Bucket(of_folders(9, 10), 10)
    answer, list_page = threading.Event(), bucket.list_page

    def late(prefix: str, *, recursive: bool, token: str | None) -> Page:
        assert not prefix or answer.wait(60)
        return list_page(prefix, recursive=recursive, token=token)

    bucket.list_page = late  # type: ignore[method-assign]
    with closing(bucket.listed()) as listed:  # type: ignore[type-var]
        assert [next(listed) for _ in range(10)] == bucket.keys[:10]
        answer.set()
        assert list(listed) == bucket.keys[10:]


@pytest.mark.parametrize("fault", [TransientStorageError("never"), AccessDeniedError("not for you")])
def test_an_error_of_a_folder_is_raised_in_its_position(fault: StorageError) -> None:
    """Entries before it are yielded, none after it, and the threads end."""
    before = set(threading.enumerate())
    bucket = Bucket(of_folders(40, 10), 10)
    list_page = bucket.list_page

    def failing(prefix: str, *, recursive: bool, token: str | None) -> Page:
        page = list_page(prefix, recursive=recursive, token=token)
        if prefix == "020/":
            raise fault
        return page

    bucket.list_page = failing  # type: ignore[method-assign]
    listed = list[str]()
    with pytest.raises(type(fault), match=str(fault)):
        listed.extend(bucket.listed())  # keeps the entries before the error
    assert listed == bucket.keys[:200]
    assert threads_end(before)


def test_a_transient_error_repeats_one_page() -> None:
    """Each page is retried by itself."""
    bucket = Bucket(of_folders(20, 25), 10)
    list_page, failed = bucket.list_page, set[tuple[str, bool, str | None]]()

    def failing(prefix: str, *, recursive: bool, token: str | None) -> Page:
        if (prefix, recursive, token) not in failed:
            failed.add((prefix, recursive, token))
            raise TransientStorageError("once more")
        return list_page(prefix, recursive=recursive, token=token)

    bucket.list_page = failing  # type: ignore[method-assign]
    assert list(bucket.listed()) == bucket.keys
    assert len(bucket.requests) == len(failed)


def test_a_store_that_denies_delimiters_is_listed_page_by_page() -> None:
    """A policy may allow one kind of listing only."""
    bucket = Bucket(of_folders(6, 10), 10)
    list_page = bucket.list_page

    def refusing(prefix: str, *, recursive: bool, token: str | None) -> Page:
        if not recursive:
            raise AccessDeniedError("no delimiters here")
        return list_page(prefix, recursive=recursive, token=token)

    bucket.list_page = refusing  # type: ignore[method-assign]
    assert list(bucket.listed()) == bucket.keys
    assert len(bucket.requests) == 6


@pytest.mark.parametrize("folder", ["", "a/", "a/000", "other/"])
def test_a_folder_outside_the_prefix_is_an_error(folder: str) -> None:
    """It might lead to an endless listing."""
    keys = {f"a/{key}" for key in of_folders(4, 10)}
    bucket = Bucket(keys, 10)
    list_page = bucket.list_page

    def with_wrong_folder(prefix: str, *, recursive: bool, token: str | None) -> Page:
        page = list_page(prefix, recursive=recursive, token=token)
        return page if recursive else page._replace(folders=[folder, *page.folders])

    bucket.list_page = with_wrong_folder  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        list(bucket.listed("a/"))


def test_a_closed_listing_ends_its_threads() -> None:
    """While all of them are busy."""
    before = set(threading.enumerate())
    bucket = Bucket(of_folders(60, 30), 10)
    with closing(bucket.listed()) as listed:  # type: ignore[type-var]
        for _ in range(500):
            next(listed)
    assert threads_end(before)


def test_a_slow_consumer_bounds_the_pages_ahead() -> None:
    bucket = Bucket(of_folders(90, 30), 10)
    for number, _ in enumerate(bucket.listed()):
        ahead = sum(recursive for _, recursive, _ in bucket.requests) - number // 10
        assert ahead <= MAX_PAGES_AHEAD + MAX_IN_FLIGHT + 2


def test_pages_after_a_missing_one_are_bounded() -> None:
    """Others are requested until enough of them are received."""
    bucket, frontier = Bucket(of_folders(200, 10), 10), Frontier("s3://b/", "", recursive=True)
    in_flight, num_received = list(frontier.next_requests()), 0
    while in_flight:
        request = in_flight.pop()
        if request.prefix != "001/":
            frontier.receive(
                request, bucket.list_page(request.prefix, recursive=request.recursive, token=request.token)
            )
            num_received += 1
        in_flight += frontier.next_requests()
        if not frontier.is_waiting:
            frontier.take()
    assert MAX_PAGES_AHEAD <= num_received <= MAX_PAGES_AHEAD + MAX_IN_FLIGHT


def test_repeated_folders_are_an_error() -> None:
    """Their objects would be listed twice."""
    bucket = Bucket(of_folders(4, 10), 10)
    list_page = bucket.list_page

    def doubling(prefix: str, *, recursive: bool, token: str | None) -> Page:
        page = list_page(prefix, recursive=recursive, token=token)
        return page._replace(folders=list(chain(page.folders, page.folders)))

    bucket.list_page = doubling  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="overlap or are not in order"):
        list(bucket.listed())
