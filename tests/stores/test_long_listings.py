"""Long listings of a bucket: complete, in order, by several requests at a time, and with few more requests."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.scripted import Request, Response, scripted
from tests.support import objects
from torchdata_remote.errors import AccessDeniedError, StorageError

PART = st.sampled_from(["a", "a-", "a.b", "a0", "b", "\u00e9", "\U0001f600", " "])
KEYS = st.sets(st.lists(PART, min_size=1, max_size=4).map("/".join), min_size=1, max_size=30)
DATE = "2026-11-21T00:00:00.000Z"
RETRY = tdr.RetryPolicy(max_attempts=3, first_wait_s=0)


class Asked(NamedTuple):
    """A request for a page."""

    prefix: str
    delimiter: str
    start: str  # the first key may be this one, or is behind it if ``is_after``
    is_after: bool


class Bucket:
    """Keys that are listed in pages, as S3 lists them: a page may have fewer keys than a client allows."""

    def __init__(self, keys: set[str], page_keys: int) -> None:
        self.keys, self.page_keys = sorted(keys), page_keys
        self.asked: list[Asked] = []
        self.lock = threading.Lock()

    def answer(self, asked: Asked) -> Response:
        at = (bisect.bisect_right if asked.is_after else bisect.bisect_left)(self.keys, asked.start)
        rows, folders = list[str](), list[str]()
        following = None
        while at < len(self.keys):
            key = self.keys[at]
            if not key.startswith(asked.prefix):
                if key > asked.prefix:
                    break
                at += 1
                continue
            if len(rows) + len(folders) == (self.page_keys if not asked.delimiter else 1000):
                following = key
                break
            end = key.find("/", len(asked.prefix)) if asked.delimiter else -1
            if end < 0:
                rows.append(key)
                at += 1
            else:
                folders.append(key[: end + 1])
                at = bisect.bisect_left(self.keys, key[:end] + "0", at)
        return self.page(rows, folders, following)

    def page(self, rows: list[str], folders: list[str], following: str | None) -> Response:
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{DATE}</LastModified><Size>1</Size></Contents>"
            for key in rows
        )
        contents += "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders)
        more = "" if following is None else f"<NextContinuationToken>{quote(following)}</NextContinuationToken>"
        flag = str(following is not None).lower()
        about = f"<IsTruncated>{flag}</IsTruncated>{more}"
        return Response(200, f"<ListBucketResult>{about}{contents}</ListBucketResult>".encode())

    def respond(self, request: Request) -> Response:
        query = {name: values[0] for name, values in parse_qs(urlsplit(request.target).query).items()}
        token, after = query.get("continuation-token", ""), query.get("start-after", "")
        found = Asked(
            query.get("prefix", ""), query.get("delimiter", ""), token or after, is_after=bool(after and not token)
        )
        token_of_start = found._replace(start=parse_qs(f"x={token}")["x"][0]) if token else found
        with self.lock:
            self.asked.append(token_of_start)
        return self.answer(token_of_start)

    @property
    def num_pages(self) -> int:
        """The number of requests of a listing in one piece."""
        return max(1, -(-len(self.keys) // self.page_keys))


@contextmanager
def served(bucket: Bucket) -> Iterator[dict[str, Any]]:
    """Storage options of the bucket's server."""
    with scripted(bucket.respond) as server:
        yield {"endpoint_url": server.url, "key": "k", "secret": "s", "region": "us-east-1"}


def listed(bucket: Bucket) -> list[str]:
    with served(bucket) as options:
        return [url.removeprefix("s3://b/") for url in objects.listed("s3://b/", options, retry=RETRY)]


@pytest.fixture(scope="module")
def replaced() -> Iterator[tuple[Bucket, dict[str, Any]]]:
    """A bucket whose keys tests replace, behind one server."""
    bucket = Bucket(set(), 1)
    with served(bucket) as options:
        yield bucket, options


@given(keys=KEYS, page_keys=st.integers(1, 12))
def test_any_keys_are_listed_once_and_in_order(
    replaced: tuple[Bucket, dict[str, Any]], keys: set[str], page_keys: int
) -> None:
    """Whatever the pages; with a fifth more requests than in one piece, at most."""
    bucket, options = replaced
    bucket.keys, bucket.page_keys = sorted(keys), page_keys
    bucket.asked.clear()
    assert objects.listed("s3://b/", options) == [f"s3://b/{key}" for key in bucket.keys]
    assert len(bucket.asked) <= max(bucket.num_pages, 1.2 * bucket.num_pages)


LAYOUTS = {
    "flat": {f"{n:05d}" for n in range(9_000)},
    "classes": {f"train/n{n // 60 * 7919 % 9973:06d}/{n % 60:03d}" for n in range(24_000)},
    "deep": {f"{n // 8000}/{n // 800 % 10}/{n // 80 % 10:02d}/{n:05d}" for n in range(24_000)},
    "huge, then tiny": {f"a/{n:05d}" for n in range(12_000)} | {f"b{n:05d}/x" for n in range(12_000)},
    "tiny, then huge": {f"a{n:05d}/x" for n in range(12_000)} | {f"b/{n:05d}" for n in range(12_000)},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_long_listing_is_complete_and_costs_a_fifth_more_requests_at_most(name: str) -> None:
    bucket = Bucket(LAYOUTS[name], 1000)
    assert listed(bucket) == bucket.keys
    assert len(bucket.asked) <= 1.2 * bucket.num_pages


def test_folders_are_listed_at_the_same_time() -> None:
    """Requests wait until another one is under way."""
    bucket, together = Bucket(LAYOUTS["classes"], 1000), threading.Barrier(2)
    answer, num_met = bucket.answer, itertools.count()

    def wait_for_others(asked: Asked) -> Response:
        if len(bucket.asked) > 8 and next(num_met) < 2:
            together.wait(60)
        return answer(asked)

    bucket.answer = wait_for_others  # type: ignore[method-assign]
    assert listed(bucket) == bucket.keys
    assert not together.broken


@pytest.mark.parametrize("fault", ["denied", "ignored", "empty", "late"])
def test_a_store_that_cannot_begin_at_a_key_is_listed_without_missing_or_repeated_ones(fault: str) -> None:
    bucket = Bucket(LAYOUTS["huge, then tiny"], 1000)
    answer = bucket.answer

    def wrong(asked: Asked) -> Response:
        if not asked.is_after:
            return answer(asked)
        if fault == "denied":
            return Response.of_error(403, "AccessDenied")
        if fault == "empty":
            return bucket.page([], [], None)
        at = (bisect.bisect_right(bucket.keys, asked.start) + 3) * (fault == "late")
        return answer(asked._replace(start=bucket.keys[min(at, len(bucket.keys) - 1)], is_after=False))

    bucket.answer = wrong  # type: ignore[method-assign]
    assert listed(bucket) == bucket.keys


@pytest.mark.parametrize("folders", [None, [], ["zz/", "b/", "aa/", "b/", "0/"]])
def test_wrong_names_of_folders_lose_no_object(folders: list[str] | None) -> None:
    """Or a store that refuses delimiters."""
    bucket = Bucket(LAYOUTS["classes"], 1000)
    answer = bucket.answer

    def wrong(asked: Asked) -> Response:
        if not asked.delimiter:
            return answer(asked)
        refused = Response.of_error(403, "AccessDenied")
        return refused if folders is None else bucket.page([], [asked.prefix + one for one in folders], None)

    bucket.answer = wrong  # type: ignore[method-assign]
    assert listed(bucket) == bucket.keys


def test_a_key_that_obstore_cannot_show_is_listed_with_those_after_it() -> None:
    """Also behind the first page: another library goes on there."""
    bucket = Bucket({f"{number:05d}" for number in range(2_500)} | {"1//x", "z//y", "z//z"}, 1000)
    assert listed(bucket) == bucket.keys


@pytest.mark.parametrize("status", [503, 403])
def test_an_error_of_a_page_is_raised_after_the_objects_before_it(status: int) -> None:
    """And never is the listing taken for a shorter one."""
    bucket = Bucket({f"{folder:03d}/{number:03d}" for folder in range(20) for number in range(1000)}, 1000)
    answer = bucket.answer

    def fail(asked: Asked) -> Response:
        return Response.of_error(status, "Refused") if asked.start >= "010/" else answer(asked)

    bucket.answer = fail  # type: ignore[method-assign]
    found = list[str]()
    with served(bucket) as options, pytest.raises(StorageError) as caught:  # noqa: PT012  # keeps those before it
        for url in tdr.IterableWrapper(["s3://b/"]).list_remote(storage_options=options, retry=RETRY):
            found.append(url.removeprefix("s3://b/"))
    assert isinstance(caught.value, AccessDeniedError) == (status == 403)
    assert found == bucket.keys[: len(found)]
    assert 10 <= len(found) < len(bucket.keys)


# What is in a page
