"""Fingerprints of listings."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_remote import RemoteUrl
from torchdata_remote.errors import StateError
from torchdata_remote.loaders.state.fingerprints import difference, fingerprint, sorted_names

MD5 = "0123456789abcdef" * 2
FIELDS = ["size", "etag", "num_samples", "md5"]
WORDS = {"size": "bytes", "etag": "etag", "num_samples": "samples", "md5": "MD5"}


def shard(number: int, **known: Any) -> RemoteUrl:
    return RemoteUrl(f"s3://b/{number:06d}.tar", **known)


def listing(num_urls: int) -> list[RemoteUrl]:
    return [shard(n, size=512 * n, etag=f'"{n:x}"', num_samples=n % 7, md5=f"{n:032x}") for n in range(num_urls)]


def changed(url: RemoteUrl, field: str) -> RemoteUrl:
    other: Any = {"size": (url.size or 0) + 512, "etag": '"other"', "num_samples": 9, "md5": MD5}[field]
    known = {name: getattr(url, name) for name in FIELDS}
    return RemoteUrl(str(url), **{**known, field: other})


def through_json(found: dict[str, Any]) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(found))
    return loaded


def difference_of(first: list[Any], second: list[Any]) -> str | None:
    return difference(through_json(fingerprint(first)), fingerprint(second), sorted_names(second))


@settings(max_examples=60)
@given(num_urls=st.integers(1, 150), field=st.sampled_from(FIELDS), seed=st.integers(0, 10**6))
def test_a_single_replaced_object_of_up_to_32_is_named(num_urls: int, field: str, seed: int) -> None:
    """Whatever field differs; no other object is named. Of more objects, the field is."""
    before = listing(num_urls)
    if field == "etag":  # which is believed where no MD5 is known
        before = [RemoteUrl(url, url.size, url.etag) for url in before]
    place = random.Random(seed).randrange(num_urls)
    after = [changed(url, field) if number == place else url for number, url in enumerate(before)]
    said = difference_of(before, after)
    assert said is not None
    assert said.startswith(str(before[place]) if num_urls <= 32 else f"some of the {num_urls} objects differ")
    assert WORDS[field] in said
    assert ";" not in said


@settings(max_examples=60)
@given(num_urls=st.integers(2, 150), field=st.sampled_from(FIELDS), data=st.data())
def test_any_number_of_replaced_objects_is_detected(num_urls: int, field: str, data: st.DataObject) -> None:
    """Also if they exchange sizes or versions, so that the sum is equal."""
    before = listing(num_urls)
    if field == "etag":
        before = [RemoteUrl(url, url.size, url.etag) for url in before]
    places = data.draw(st.lists(st.integers(0, num_urls - 1), min_size=2, max_size=num_urls, unique=True))
    values = [getattr(before[place], field) for place in places]
    after = list(before)
    for place, value in zip(places, [*values[1:], values[0]], strict=True):
        known = {name: getattr(before[place], name) for name in FIELDS}
        after[place] = RemoteUrl(str(before[place]), **{**known, field: value})
    same = [getattr(url, field) for url in before] == [getattr(url, field) for url in after]
    assert (difference_of(before, after) is None) == same


@settings(max_examples=60)
@given(num_urls=st.integers(33, 200), seed=st.integers(0, 10**6), data=st.data())
def test_objects_are_compared_by_the_fields_that_both_have(num_urls: int, seed: int, data: st.DataObject) -> None:
    """With a manifest and a folder in one listing, some shards have an MD5 and others an etag."""
    draw = random.Random(seed)
    before = [
        RemoteUrl(url, url.size, num_samples=url.num_samples, md5=url.md5)
        if draw.random() < 0.5
        else RemoteUrl(url, url.size, url.etag)
        for url in listing(num_urls)
    ]
    place = data.draw(st.integers(0, num_urls - 1))
    url = before[place]
    other = RemoteUrl(url, url.size, url.etag and '"other"', num_samples=url.num_samples, md5=url.md5 and MD5)
    after = [*before[:place], other, *before[place + 1 :]]
    field = "MD5" if url.md5 else "etag"
    assert difference_of(before, after) == f"some of the {num_urls} objects differ in their {field}"
    at_first = [RemoteUrl(url, url.size) for url in before]
    more = [RemoteUrl(url, url.size, url.etag) for url in listing(num_urls)]
    for one in (at_first, more, before):
        assert difference_of(one, before) is None
        assert difference_of(before, one) is None


def test_sizes_and_counts_are_reported_where_each_is_stored() -> None:
    """The state's value before the current one; of more than 32 objects, only that it differs."""
    few, many = listing(3), listing(3_000)
    assert difference_of(few, [few[0], changed(few[1], "size"), few[2]]) == "s3://b/000001.tar has 512 bytes and 1,024"
    assert difference_of(few, [changed(few[0], "num_samples"), *few[1:]]) == "s3://b/000000.tar has 0 samples and 9"
    assert (
        difference_of(many, [changed(many[0], "size"), *many[1:]]) == "some of the 3,000 objects differ in their bytes"
    )


def test_several_replaced_objects_are_named() -> None:
    """The first five of them."""
    before = listing(32)
    after = [changed(url, "size") if number in (3, 31) else url for number, url in enumerate(before)]
    assert difference_of(before, after) == (
        "s3://b/000003.tar has 1,536 bytes and 2,048; s3://b/000031.tar has 15,872 bytes and 16,384"
    )
    assert difference(fingerprint(before), fingerprint(after)) == (
        "object 4 of those sorted by URL has 1,536 bytes and 2,048; "
        "object 32 of those sorted by URL has 15,872 bytes and 16,384"
    )
    assert (difference_of(before, [changed(url, "size") for url in before]) or "").endswith("; and more")


WHOLE = shard(0, size=7, etag='"a"', num_samples=3, md5=MD5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (WHOLE, str(WHOLE)),
        (WHOLE, shard(0, size=7)),
        (shard(0, size=7, etag='"a"'), shard(0, size=7, num_samples=3, md5=MD5)),
        (shard(0, etag='"a"'), shard(0, etag="a")),
        (shard(0, etag='W/"a"'), shard(0, etag='"a"')),
        (shard(0, etag=""), shard(0, etag='"a"')),
        (shard(0, etag='"a"', md5=MD5), shard(0, etag='"a-2"', md5=MD5.upper())),
        (shard(0, md5="00"), shard(0, md5="")),
        (RemoteUrl("file:///gone/0.tar", etag="1-2-3"), RemoteUrl("file:///gone/0.tar", etag="4-2-5")),
    ],
)
def test_a_field_of_one_side_only_is_no_difference(first: Any, second: Any) -> None:
    """As of a listing and a manifest, LIST and GET, a bucket or folder and its copy."""
    for around in ([], listing(40)[1:]):
        assert difference_of([first, *around], [second, *around]) is None
        assert difference_of([second, *around], [first, *around]) is None


def test_another_order_of_urls_is_a_difference() -> None:
    """The order determines the streams' shares."""
    before = listing(5)
    assert difference_of(before, before[::-1]) == "the same objects in another order, which changes the shares"


def test_added_removed_and_renamed_objects_are_reported() -> None:
    """With numbers, and with the names of new objects of up to 32."""
    few, many = listing(4), listing(40)
    assert difference_of(few, [*few, shard(7)]) == "4 objects and 5; s3://b/000007.tar was added"
    assert difference_of(few, few[1:]) == "4 objects and 3"
    assert difference_of(many, [*many, shard(70)]) == "40 objects and 41"
    assert difference_of(few, [*few[:3], shard(7)]) == "s3://b/000007.tar differs in its URL"
    assert difference_of([], few[:1]) == "0 objects and 1; s3://b/000000.tar was added"
    assert difference_of([], []) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found["fields"].update(size="short"),
        lambda found: found["fields"].update(size="?" * 24),
        lambda found: found.update(fields=7),
        lambda found: found["fields"].update(size=[1, 2, 3]),
        lambda found: found.pop("order"),
        lambda found: found.pop("num_urls"),
    ],
)
def test_a_damaged_fingerprint_is_refused(damage: Callable[[dict[str, Any]], Any]) -> None:
    """By an error of this package, which says what to do."""
    found = fingerprint(listing(3))
    damage(found)
    for pair in ((found, fingerprint(listing(3))), (fingerprint(listing(3)), found)):
        with pytest.raises(StateError, match=r"damaged.*earlier state"):
            difference(*pair)


@pytest.mark.parametrize("num_urls", [1, 32, 33, 100_000])
def test_a_fingerprint_is_small_and_contains_no_urls(num_urls: int) -> None:
    """With all fields, and any number of objects."""
    partly = [RemoteUrl(url, url.size) if number % 3 else url for number, url in enumerate(listing(num_urls))]
    for urls in (listing(num_urls), partly):
        text = json.dumps(fingerprint(urls))
        assert len(text) < 4_000
        assert "tar" not in text


def test_signatures_of_urls_are_ignored() -> None:
    first, second = ([f"https://host/{n}.tar?signature={letter}" for n in range(3)] for letter in "ab")
    assert fingerprint(first) == fingerprint(second)
    assert not any("signature" in name for name in sorted_names(first))


def test_items_that_are_no_urls_have_fingerprints() -> None:
    """A user's own source may yield anything."""
    assert difference_of([1, None, "\udcff"], [1, None, "\udcff"]) is None
    assert difference_of([1], [2]) == "2 differs in its URL"
