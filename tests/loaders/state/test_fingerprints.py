"""What a state remembers of a listing."""

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
from torchdata_remote.loaders.state.fingerprints import difference, digest_of_sizes, fingerprint, sorted_names

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


def told(first: list[Any], second: list[Any]) -> str | None:
    return difference(through_json(fingerprint(first)), fingerprint(second), sorted_names(second))


@settings(max_examples=60)
@given(num_urls=st.integers(1, 150), field=st.sampled_from(FIELDS), seed=st.integers(0, 10**6))
def test_the_one_that_was_replaced_is_named(num_urls: int, field: str, seed: int) -> None:
    """However many there are, whichever it is and whatever is known to differ: with its URL, and no other one."""
    before = listing(num_urls)
    if field == "etag":  # which is believed where no MD5 is known
        before = [RemoteUrl(url, url.size, url.etag) for url in before]
    place = random.Random(seed).randrange(num_urls)
    after = [changed(url, field) if number == place else url for number, url in enumerate(before)]
    said = told(before, after)
    assert said is not None
    assert said.startswith(str(before[place]))
    assert WORDS[field] in said
    assert ";" not in said


@settings(max_examples=60)
@given(num_urls=st.integers(2, 150), field=st.sampled_from(FIELDS), data=st.data())
def test_no_number_of_replaced_ones_is_missed(num_urls: int, field: str, data: st.DataObject) -> None:
    """Also where sizes or versions were exchanged among them, so that their sum is the same."""
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
    assert (told(before, after) is None) == same


@settings(max_examples=60)
@given(num_urls=st.integers(33, 200), seed=st.integers(0, 10**6), data=st.data())
def test_each_is_compared_by_what_is_known_of_it(num_urls: int, seed: int, data: st.DataObject) -> None:
    """Where a manifest and a folder are listed together, of some shards the MD5 is known and of others the etag."""
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
    assert told(before, after) == f"{url} differs in its {'MD5' if url.md5 else 'etag'}"
    at_first = [RemoteUrl(url, url.size) for url in before]
    more = [RemoteUrl(url, url.size, url.etag) for url in listing(num_urls)]
    for one in (at_first, more, before):
        assert told(one, before) is None
        assert told(before, one) is None


def test_sizes_and_counts_are_told_where_each_is_remembered() -> None:
    """The state's value before the one here; where objects share a sum, that it differs."""
    few, many = listing(3), listing(3_000)
    assert told(few, [few[0], changed(few[1], "size"), few[2]]) == "s3://b/000001.tar has 512 bytes and 1,024"
    assert told(few, [changed(few[0], "num_samples"), *few[1:]]) == "s3://b/000000.tar has 0 samples and 9"
    assert told(many, [changed(many[0], "size"), *many[1:]]) == "s3://b/000000.tar differs in its bytes"


def test_several_in_a_group_are_told_by_their_range() -> None:
    """Then their places are not known; what differs elsewhere is named all the same."""
    before = listing(320)  # ten in a group
    after = [changed(url, "size") if number in (3, 5, 40) else url for number, url in enumerate(before)]
    assert told(before, after) == (
        "several of the 10 objects from s3://b/000000.tar to s3://b/000009.tar, sorted by URL, differ in their bytes; "
        "s3://b/000040.tar differs in its bytes"
    )
    assert difference(fingerprint(before), fingerprint(after)) == (
        "several of the 10 objects from number 1 to number 10, sorted by URL, differ in their bytes; "
        "object 41 of those sorted by URL differs in its bytes"
    )
    assert (told(before, [changed(url, "size") for url in before]) or "").endswith("; and more")


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
def test_what_only_one_side_knows_is_no_difference(first: Any, second: Any) -> None:
    """A plain listing and a manifest, LIST and GET, a copy of a bucket or of a folder."""
    for around in ([], listing(40)[1:]):
        assert told([first, *around], [second, *around]) is None
        assert told([second, *around], [first, *around]) is None


def test_names_in_another_order() -> None:
    """By their order they are dealt to streams, so that it has to be the same."""
    before = listing(5)
    assert told(before, before[::-1]) == "the same objects in another order, on which depends who reads which"


def test_objects_that_were_added_removed_or_renamed() -> None:
    """Numbers are told, and the names of those that are new where each is remembered."""
    few, many = listing(4), listing(40)
    assert told(few, [*few, shard(7)]) == "4 objects and 5; s3://b/000007.tar was added"
    assert told(few, few[1:]) == "4 objects and 3"
    assert told(many, [*many, shard(70)]) == "40 objects and 41"
    assert told(few, [*few[:3], shard(7)]) == "s3://b/000007.tar differs in its URL"
    assert told([], few[:1]) == "0 objects and 1; s3://b/000000.tar was added"
    assert told([], []) is None


def test_states_of_earlier_releases() -> None:
    """They have a digest over URLs and sizes, which decides; with a fingerprint they have the number in common."""
    old = digest_of_sizes(listing(3))
    assert difference(old, digest_of_sizes(listing(3)[::-1])) is None
    other = digest_of_sizes([changed(url, "size") for url in listing(3)])
    assert difference(old, other) == f"URLs and sizes with the digests {old['digest']} and {other['digest']}"
    for pair in ((old, fingerprint(listing(3))), (fingerprint(listing(3)), old)):
        assert difference(*pair) is None
    assert difference(old, fingerprint(listing(4))) == "3 objects and 4"


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found["fields"].update(size="short"),
        lambda found: found["fields"].update(size="?" * 24),
        lambda found: found.update(fields=7),
        lambda found: found.update(partly={"size": "short"}),
        lambda found: found.update(partly=7),
        lambda found: found.pop("order"),
        lambda found: found.pop("num_urls"),
    ],
)
def test_a_damaged_listing(damage: Callable[[dict[str, Any]], Any]) -> None:
    """It is one error of this package, which says what to do."""
    found = fingerprint(listing(3))
    damage(found)
    for pair in ((found, fingerprint(listing(3))), (fingerprint(listing(3)), found)):
        with pytest.raises(StateError, match=r"damaged.*earlier state"):
            difference(*pair)


@pytest.mark.parametrize("num_urls", [1, 32, 33, 100_000])
def test_it_is_small_and_has_no_names(num_urls: int) -> None:
    """With all fields, and whatever the number of objects."""
    partly = [RemoteUrl(url, url.size) if number % 3 else url for number, url in enumerate(listing(num_urls))]
    for urls in (listing(num_urls), partly):
        text = json.dumps(fingerprint(urls))
        assert len(text) < 4_000
        assert "tar" not in text


def test_what_signs_a_url_is_no_part_of_it() -> None:
    """The next signature belongs to the same object."""
    first, second = ([f"https://host/{n}.tar?signature={letter}" for n in range(3)] for letter in "ab")
    assert fingerprint(first) == fingerprint(second)
    assert not any("signature" in name for name in sorted_names(first))


def test_things_that_are_no_urls() -> None:
    """A user's own source may hand out anything."""
    assert told([1, None, "\udcff"], [1, None, "\udcff"]) is None
    assert told([1], [2]) == "2 differs in its URL"
