"""A listing in several ranges is the listing page by page, only sooner, and with few more requests."""

from __future__ import annotations

import bisect
import hashlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.s3 import S3Server
from tests.support.s3_stores import shared_bucket
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import AccessDeniedError, StorageError, TransientStorageError
from torchdata_remote.storage import Entry, EntryTable, Page
from torchdata_remote.storage.listing import frontier as frontier_module
from torchdata_remote.storage.listing import pages as _paging
from torchdata_remote.storage.listing.folder_names import FolderRequest
from torchdata_remote.storage.listing.frontier import MAX_IN_FLIGHT, MAX_PAGES_AHEAD, Frontier
from torchdata_remote.storage.listing.key_range import KeyRange
from torchdata_remote.storage.listing.pages import list_prefix
from torchdata_remote.storage.s3.bucket_pages import BucketPages

RETRY = RetryPolicy(max_attempts=2, first_wait_s=0)
PART = st.sampled_from(["a", "a-", "a.b", "a0", "b", "é", "\U0001f600", " ", ""])
KEY = st.tuples(st.lists(PART, min_size=1, max_size=4).map("/".join), st.sampled_from(["", "", "/"])).map("".join)
KEYS = st.sets(KEY.filter(bool), max_size=40)
PREFIX = st.sampled_from(["", "", "", "a", "a/", "a/a/", "a0"])


class Bucket:
    """Keys that are listed in pages like by S3. Requests are recorded."""

    def __init__(self, keys: set[str], page_keys: int) -> None:
        self.keys, self.page_keys = sorted(keys), page_keys
        self.requests = list[tuple[str | None, str]]()

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        self.requests.append((token, after))
        at = bisect.bisect_left(self.keys, max(prefix, token or ""))
        if after:
            assert token is None
            at = max(at, bisect.bisect_right(self.keys, after))
        end = bisect.bisect_left(self.keys, prefix + "\U0010ffff") if prefix else len(self.keys)
        if not recursive:
            return self._folders(prefix, at, end)
        then = self.keys[at + self.page_keys] if at + self.page_keys < end else None
        return Page([Entry(key, 1, None) for key in self.keys[at : min(end, at + self.page_keys)]], then)

    def _folders(self, prefix: str, at: int, end: int) -> Page:
        """The objects and folders in a folder."""
        found, folders = list[Entry](), list[str]()
        while at < end and len(found) + len(folders) < self.page_keys:
            name, slash, _ = self.keys[at][len(prefix) :].partition("/")
            if slash:
                folders.append(f"{prefix}{name}/")
                at = bisect.bisect_left(self.keys, f"{prefix}{name}0", at)
            else:
                found.append(Entry(self.keys[at], 1, None))
                at += 1
        return Page(found, self.keys[at] if at < end else None, folders)

    def listed(self, prefix: str = "") -> Iterator[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_paging, "open_store", lambda url, options, connection: (self, ""))
            for entry in list_prefix("s3://b/", prefix, True, StorageOptions(), RETRY):
                yield entry.path

    def num_pages(self, prefix: str = "") -> int:
        """The number of requests of a listing in one piece."""
        return max(1, -(-sum(key.startswith(prefix) for key in self.keys) // self.page_keys))

    def num_rounds(self) -> int:
        """List it; each round takes as long as a request. Return their number."""
        frontier, listed, num_rounds = Frontier("s3://b/", "", recursive=True), list[str](), 0
        while frontier:
            in_flight = list(frontier.next_requests())
            for request in in_flight:
                frontier.receive(request, request.send(self, ""))
            num_rounds += 1
            while frontier and not frontier.is_waiting:
                listed += frontier.take().paths
        assert listed == self.keys
        return num_rounds


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


@given(keys=KEYS, page_keys=st.integers(1, 4), prefix=PREFIX, data=st.data())
def test_pages_may_be_received_in_any_order(keys: set[str], page_keys: int, prefix: str, data: st.DataObject) -> None:
    """They are taken in order, with a fifth more requests at most, and the number of pages ahead is bounded."""
    bucket, frontier = Bucket(keys, page_keys), Frontier("s3://b/", prefix, recursive=True)
    in_flight, listed = list[KeyRange | FolderRequest](), list[str]()
    while frontier:
        in_flight += frontier.next_requests()
        assert len(in_flight) <= MAX_IN_FLIGHT + 1
        if in_flight and (frontier.is_waiting or data.draw(st.booleans())):
            request = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            frontier.receive(request, request.send(bucket, prefix))
        elif not frontier.is_waiting:
            listed += frontier.take().paths
    assert listed == sorted(key for key in keys if key.startswith(prefix))
    assert len(bucket.requests) <= 1.2 * bucket.num_pages(prefix)


NAME = st.sampled_from(["a", "b", "0", "1", "00", "07", "2026-01-02", "n014", "é", "x y", "~", "-"])
NAMES = st.one_of(
    st.tuples(st.sampled_from(["", "f", "img_"]), st.integers(1, 400), st.integers(1, 8)).map(
        lambda one: [f"{one[0]}{number:0{one[2]}d}" for number in range(one[1])]
    ),
    st.integers(1, 400).map(lambda num: [hashlib.sha256(b"%d" % number).hexdigest()[:9] for number in range(num)]),
    st.lists(NAME, min_size=1, max_size=9),
)
FEW_NAMES = NAMES.map(lambda names: names[:20])


@st.composite
def trees(draw: st.DrawFn) -> set[str]:
    """Folders of folders, each with few or many objects, in any order."""
    keys = set[str]()
    for top in draw(st.lists(NAME, min_size=1, max_size=4, unique=True)):
        levels = draw(st.lists(FEW_NAMES, max_size=2))
        folders = ["/".join(parts) for parts in product([top], *levels)]
        for folder in folders:
            keys |= {f"{folder}/{name}" for name in (draw(NAMES) if len(folders) < 3 else levels[-1])}
    return keys


@settings(max_examples=30, deadline=None)
@given(keys=trees(), page_keys=st.integers(1, 9))
def test_a_tree_costs_a_fifth_more_requests_at_most(keys: set[str], page_keys: int) -> None:
    """The keys are those of a listing in one piece."""
    bucket = Bucket(keys, page_keys)
    bucket.num_rounds()
    assert len(bucket.requests) <= 1.2 * bucket.num_pages()


LAYOUTS: dict[str, Callable[[], set[str]]] = {
    "one folder": lambda: {f"train/{number:07d}.jpg" for number in range(5_000)},
    "hashes": lambda: {hashlib.sha256(b"%d" % number).hexdigest() for number in range(5_000)},
    "four folders": lambda: {f"{'abcd'[number % 4]}/{number:07d}.jpg" for number in range(5_000)},
    "huge, then tiny": lambda: {f"a/{n:05d}" for n in range(2_500)} | {f"b{n:05d}/x" for n in range(2_500)},
    "tiny, then huge": lambda: {f"b/{n:05d}" for n in range(2_500)} | {f"a{n:05d}/x" for n in range(2_500)},
    "tiny folders": lambda: {f"{number:06d}/{name}" for number in range(2_500) for name in "ab"},
}


WORDS = [f"{first}{rest}" for first in "abdgmpst" for rest in ("all", "end", "io", "urn")]
FOLDERS: dict[str, Callable[[], set[str]]] = {
    "classes": lambda: {f"train/n{n // 40 * n % 9973:06d}/{n % 40:03d}" for n in range(5_000)},
    "words": lambda: {f"{word}/{hashlib.md5(b'%d' % n).hexdigest()}" for word in WORDS for n in range(155)},
    "words of words": lambda: {f"{one}/{two}/{n}" for one in WORDS for two in WORDS[:16] for n in range(10)},
    "deep": lambda: {f"{n // 900}/{n // 90 % 10}/{n // 3 % 30:02d}/{n:05d}" for n in range(5_000)},
}


class Rarely(Bucket):
    """Names of folders are in pages of 1,000, as S3's are."""

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        if recursive:
            return super().list_page(prefix, recursive=recursive, token=token, after=after)
        self.requests.append((token, after))
        depth = prefix.count("/")
        inside = (key for key in self.keys if key.startswith(prefix) and key.count("/") > depth)
        folders = sorted({"/".join(key.split("/")[: depth + 1]) + "/" for key in inside})
        return Page([], None, [name for name in folders if name > after or after.startswith(name)][:1_000])


@pytest.mark.parametrize("layout", list(FOLDERS))
def test_folders_are_listed_concurrently(layout: str) -> None:
    """Names of folders tell where ranges begin, where keys cannot be guessed."""
    bucket = Rarely(FOLDERS[layout](), 10)
    assert bucket.num_rounds() <= bucket.num_pages() / 4
    assert len(bucket.requests) <= 1.2 * bucket.num_pages()


@pytest.mark.parametrize("fault", ["denied", "none", "others", "no folders", "unsorted"])
@pytest.mark.parametrize("layout", list(FOLDERS))
def test_a_store_without_delimiters_is_listed(layout: str, fault: str) -> None:
    """Wrong names cost requests in the bound only, and no key is missing or repeated."""
    bucket, num_wrong = Bucket(FOLDERS[layout](), 20), 0
    list_page = bucket.list_page
    wrong: dict[str, list[Any]] = {
        "none": [None, 3],
        "others": ["zz/", "\U0010ffff/", ""],
        "no folders": [],
        "unsorted": ["zz/", "b/", "aa/", "b/", "0/"],
    }

    def misread(prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        nonlocal num_wrong
        if recursive:
            return list_page(prefix, recursive=True, token=token, after=after)
        num_wrong += 1
        bucket.requests.append((token, after))
        if fault == "denied":
            raise AccessDeniedError("no delimiter here")
        return Page([], None, [name if name is None or name == 3 else prefix + name for name in wrong[fault]])

    bucket.list_page = misread  # type: ignore[method-assign]
    assert list(bucket.listed()) == bucket.keys
    assert len(bucket.requests) <= 1.2 * bucket.num_pages()
    assert num_wrong


def test_a_consumer_of_the_first_page_causes_few_requests() -> None:
    """The number of pages ahead grows with those that were taken."""
    bucket, frontier = Bucket({f"{number:05d}" for number in range(9_000)}, 10), Frontier("s3://b/", "", recursive=True)
    for num_taken in range(3):
        while in_flight := list(frontier.next_requests()):
            for request in in_flight:
                frontier.receive(request, request.send(bucket, ""))
        assert len(bucket.requests) <= 4 + 5 * num_taken
        frontier.take()


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_many_pages_are_listed_concurrently(layout: str) -> None:
    """A listing of 500 pages takes a fifth of the time of one in one piece, or less."""
    bucket = Bucket(LAYOUTS[layout](), 10)
    assert bucket.num_rounds() <= 500 / 5
    assert len(bucket.requests) <= 1.2 * 500


def test_one_huge_folder_before_tiny_ones_costs_few_requests() -> None:
    """100,000 keys used to take 50,102 requests: one for each of the folders."""
    huge = {f"a/{number:06d}" for number in range(50_000)}
    bucket = Bucket(huge | {f"b/{number:06d}/x" for number in range(50_000)}, 1_000)
    assert list(bucket.listed()) == bucket.keys
    assert len(bucket.requests) <= 1.2 * 101


@settings(max_examples=20)
@given(keys=KEYS.filter(bool), page_keys=st.integers(1, 5))
def test_a_server_is_listed_with_sizes_and_etags(moto: S3Server, keys: set[str], page_keys: int) -> None:
    """With S3's own pages, tokens, encoding and markers of folders."""
    bucket, folder = shared_bucket(moto), uuid.uuid4().hex
    client = moto.client()
    full = {f"{folder}/{key}": b"" if number % 3 == 0 else b"1" for number, key in enumerate(sorted(keys))}
    etags = {key: client.put_object(Bucket=bucket, Key=key, Body=body)["ETag"] for key, body in full.items()}
    page, paged = BucketPages._send, list[dict[str, Any]]()

    def small(self: BucketPages, prefix: str, token: str | None, extra: dict[str, Any]) -> Page:
        paged.append(extra)
        return page(self, prefix, token, {"MaxKeys": page_keys, **extra})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketPages, "_send", small)
        options = StorageOptions(moto.storage_options)
        listed = list(list_prefix(f"s3://{bucket}/", f"{folder}/", True, options, RETRY))
    objects = sorted(key for key, body in full.items() if body or not key.endswith("/"))
    assert [entry[:3] for entry in listed] == [(key, len(full[key]), etags[key]) for key in objects]
    assert len(paged) > 1 or len(full) <= page_keys


def test_a_listing_of_a_server_is_divided(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages begin after any key, also one of no object and one with other characters."""
    bucket, folder, client = shared_bucket(s3), uuid.uuid4().hex, s3.client()
    keys = sorted([f"{folder}/é {number // 20}+/{number:03d}&" for number in range(60)])
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"1")
    page, starts = BucketPages._send, list[str]()

    def small(self: BucketPages, prefix: str, token: str | None, extra: dict[str, Any]) -> Page:
        starts.extend([extra["StartAfter"]] if "StartAfter" in extra else [])
        return page(self, prefix, token, {"MaxKeys": 2, **extra})

    monkeypatch.setattr(BucketPages, "_send", small)
    listed = list_prefix(f"s3://{bucket}/", f"{folder}/", True, StorageOptions(s3.storage_options), RETRY)
    assert [entry.path for entry in listed] == keys
    assert starts


@pytest.mark.parametrize("num_pages", [1, 2, 4])
def test_a_short_listing_costs_no_further_request(num_pages: int) -> None:
    """With and without folders."""
    for keys in (of_folders(4, 5 * num_pages), {f"{number:03d}" for number in range(20 * num_pages)}):
        bucket = Bucket(keys, 20)
        assert list(bucket.listed()) == sorted(keys)
        assert len(bucket.requests) == num_pages
    empty = Bucket(set(), 20)
    assert list(empty.listed()) == []
    assert len(empty.requests) == 1


def test_the_next_page_is_requested_while_the_consumer_is_busy() -> None:
    """At the pace of the store, up to the bound."""
    bucket = Bucket({f"{number:05d}" for number in range(200)}, 10)
    list_page, requested = bucket.list_page, threading.Semaphore(0)

    def counting(prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        requested.release()
        return list_page(prefix, recursive=recursive, token=token, after=after)

    bucket.list_page = counting  # type: ignore[method-assign]
    with closing(bucket.listed()) as listed:  # type: ignore[type-var]
        next(listed)
        assert all(requested.acquire(timeout=60) for _ in range(8))


@pytest.mark.parametrize("fault", [TransientStorageError("never"), AccessDeniedError("not for you")])
def test_an_error_of_a_page_is_raised_in_its_position(fault: StorageError) -> None:
    """Entries before it are yielded, none after it, and the threads end."""
    before = set(threading.enumerate())
    bucket = Bucket(of_folders(40, 10), 10)
    list_page = bucket.list_page

    def failing(prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        page = list_page(prefix, recursive=recursive, token=token, after=after)
        if page.entries[0].path <= "020/00" <= page.entries[-1].path:
            raise fault
        return page

    bucket.list_page = failing  # type: ignore[method-assign]
    listed = list[str]()
    with pytest.raises(type(fault), match=str(fault)):
        listed.extend(bucket.listed())  # keeps the entries before the error
    assert bucket.keys[:190] <= listed == bucket.keys[: len(listed)]
    assert "020/00" not in listed
    assert threads_end(before)


def test_a_transient_error_repeats_one_page() -> None:
    """Each page is retried by itself."""
    bucket = Bucket(of_folders(20, 25), 10)
    list_page, failed = bucket.list_page, set[tuple[str | None, str]]()

    def failing(prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        if (token, after) not in failed:
            failed.add((token, after))
            raise TransientStorageError("once more")
        return list_page(prefix, recursive=recursive, token=token, after=after)

    bucket.list_page = failing  # type: ignore[method-assign]
    assert list(bucket.listed()) == bucket.keys
    assert len(bucket.requests) == len(failed)


@pytest.mark.parametrize("layout", ["one folder", "huge, then tiny", "tiny folders"])
@pytest.mark.parametrize("fault", ["denied", "fails", "ignored", "empty", "late", "begins anew"])
def test_a_store_that_cannot_begin_anywhere_is_listed_in_one_piece(layout: str, fault: str) -> None:
    """It may refuse, fail, list from the first key, list nothing, or leave keys out: no key is missing or repeated."""
    bucket = Bucket(LAYOUTS[layout](), 20)
    list_page, num_wrong = bucket.list_page, 0

    def wrong(prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        nonlocal num_wrong
        num_wrong += bool(after)
        if after and fault == "denied":
            raise AccessDeniedError("no start-after here")
        if after and fault == "fails":
            raise TransientStorageError("an internal error")
        if after and fault == "empty":
            return Page([], None)
        if after and fault == "late":
            page = list_page(prefix, recursive=recursive, token=token, after=after)
            return page._replace(entries=page.entries[3:])
        if after and fault == "begins anew":
            return list_page(prefix, recursive=recursive, token=bucket.keys[0])
        return list_page(prefix, recursive=recursive, token=token)

    bucket.list_page = wrong  # type: ignore[method-assign]
    assert list(bucket.listed()) == bucket.keys
    assert 1 <= num_wrong <= MAX_IN_FLIGHT


class SortedByUtf16(Bucket):
    """Keys are in the order of their UTF-16, as Java and .NET sort; each page is sorted by itself."""

    def __init__(self, keys: set[str], page_keys: int) -> None:
        super().__init__(keys, page_keys)
        self.keys.sort(key=_utf16)

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        at = int(token) if token else bisect.bisect_right(self.keys, _utf16(after), key=_utf16)
        if not recursive:
            return Page([], None, list(dict.fromkeys(f"{key.partition('/')[0]}/" for key in self.keys[at:])))
        end = at + self.page_keys
        return Page([Entry(key, 1, None) for key in self.keys[at:end]], str(end) if end < len(self.keys) else None)


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


@pytest.mark.parametrize("num_keys", [0, 10, 200, 600])
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_pages_out_of_order_are_taken_in_the_order_of_the_store(num_keys: int, data: st.DataObject) -> None:
    """Whichever are received first: none is missing or repeated, so that the caller sees what is out of order."""
    bucket = SortedByUtf16(
        {f"a/{number:06d}" for number in range(num_keys)}
        | {f"\U0001f600/{number:06d}" for number in range(10)}
        | {f"\uff71/{number:06d}" for number in range(90)},
        10,
    )
    frontier, in_flight, listed = Frontier("s3://b/", "", recursive=True), list[KeyRange | FolderRequest](), list[str]()
    while frontier:
        in_flight += frontier.next_requests()
        if in_flight and (frontier.is_waiting or data.draw(st.booleans())):
            request = in_flight.pop(data.draw(st.sampled_from([0, len(in_flight) - 1])))
            frontier.receive(request, request.send(bucket, ""))
        elif not frontier.is_waiting:
            listed += frontier.take().paths
    assert listed == bucket.keys
    with pytest.raises(StorageError, match="overlap or are not in order"):
        list(bucket.listed())


@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("name", ["next_requests", "receive"])
def test_an_error_between_two_requests_is_raised(name: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the consumer, which would wait forever for a page that nothing requests."""
    known, calls, raised = getattr(Frontier, name), list[None](), list[BaseException]()

    def failing(self: Frontier, *arguments: Any) -> Any:
        calls.append(None)
        if len(calls) > at:
            raise ZeroDivisionError
        return known(self, *arguments)

    def consume() -> None:
        try:
            list(Bucket(of_folders(10, 10), 10).listed())
        except ZeroDivisionError as error:
            raised.append(error)

    monkeypatch.setattr(Frontier, name, failing)
    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    consumer.join(20)
    assert raised


def test_a_page_that_is_none_is_an_error() -> None:
    """It is raised, and not waited for."""
    bucket, raised = Bucket(set(), 10), list[BaseException]()
    bucket.list_page = lambda *_, **__: None  # type: ignore[assignment,method-assign]

    def consume() -> None:
        try:
            list(bucket.listed())
        except AttributeError as error:
            raised.append(error)

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    consumer.join(20)
    assert raised


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_pages_with_markers_only_cost_no_further_requests(data: st.DataObject) -> None:
    """Ranges also end in a stretch of folders without objects."""
    keys = sorted({f"{number:04d}" for number in range(600)})
    first = data.draw(st.integers(0, 500))
    markers = set(keys[first : first + data.draw(st.integers(0, 400))])
    bucket = Bucket(set(keys), 10)
    list_page = bucket.list_page

    def without_markers(prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        page = list_page(prefix, recursive=recursive, token=token, after=after)
        table = EntryTable.of(page.entries)
        return page._replace(entries=table.selected([path not in markers for path in table.paths]))

    bucket.list_page = without_markers  # type: ignore[method-assign]
    assert list(bucket.listed()) == [key for key in keys if key not in markers]
    assert len(bucket.requests) <= 1.2 * bucket.num_pages()


def test_keys_written_while_a_listing_runs_do_not_repeat_or_lose_others() -> None:
    """A key that appears where a range has begun is found by the range before it only."""
    bucket = Bucket({f"{number:05d}" for number in range(2_000)}, 10)
    before, list_page = list(bucket.keys), bucket.list_page

    def growing(prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        page = list_page(prefix, recursive=recursive, token=token, after=after)
        if after:
            bisect.insort(bucket.keys, f"{after}+")
        return page

    bucket.list_page = growing  # type: ignore[method-assign]
    listed = list(bucket.listed())
    assert len(bucket.keys) > len(before)
    assert [key for key in listed if not key.endswith("+")] == before
    assert listed == sorted(set(listed))


def test_a_closed_listing_ends_its_threads() -> None:
    """While all of them are busy."""
    before = set(threading.enumerate())
    bucket = Bucket(of_folders(60, 30), 10)
    with closing(bucket.listed()) as listed:  # type: ignore[type-var]
        for _ in range(500):
            next(listed)
    assert threads_end(before)


def test_a_slow_consumer_bounds_the_pages_ahead() -> None:
    bucket = Bucket({f"{number:05d}" for number in range(4_000)}, 10)
    for number, _ in enumerate(bucket.listed()):
        in_vain = number // 10 // 5  # a fifth of the pages so far
        assert len(bucket.requests) - number // 10 - in_vain <= MAX_PAGES_AHEAD + MAX_IN_FLIGHT + 2


def test_large_pages_ahead_are_bounded_by_their_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset service has 10,000 in a page."""
    monkeypatch.setattr(frontier_module, "MAX_OBJECTS_AHEAD", 400)
    bucket, frontier = (
        Bucket({f"{number:05d}" for number in range(9_000)}, 100),
        Frontier("s3://b/", "", recursive=True),
    )
    while in_flight := list(frontier.next_requests()):
        for request in in_flight:
            frontier.receive(request, request.send(bucket, ""))
    assert 3 <= len(bucket.requests) <= 5


def test_pages_after_a_missing_one_are_bounded() -> None:
    """Others are requested until enough of them are received."""
    bucket, frontier = Bucket({f"{number:05d}" for number in range(9_000)}, 10), Frontier("s3://b/", "", recursive=True)
    in_flight, num_received = list(frontier.next_requests()), 0
    while in_flight:
        request = in_flight.pop()
        if isinstance(request, FolderRequest) or request.last != "00299":
            frontier.receive(request, request.send(bucket, ""))
            num_received += 1
        in_flight += frontier.next_requests()
        while not frontier.is_waiting:
            frontier.take()
    assert num_received <= 30 + MAX_PAGES_AHEAD + MAX_IN_FLIGHT
