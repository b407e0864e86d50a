"""What a source is made of."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import EmptyListingError, ShardReadError
from torchdata_remote.formats.manifest import ShardInfo, dump_manifest
from torchdata_remote.formats.sample import split_key
from torchdata_remote.sharding.source_listing import Listing, list_samples

SHARDS = {"0.tar": b"0", "0.tar.idx": b"i", "0.tar.keys": b"k", "1.tar": b"11", "1.tar.idx": b"i"}
COMPANIONS = {"classes.json": b"{}", "provenance.json": b"{}", "provenance-000012.json": b"{}"}
PATH = st.lists(st.text("ab-", min_size=1, max_size=2), min_size=1, max_size=3).map("/".join)
NAME = st.tuples(PATH, st.sampled_from(["jpg", "txt", "a.jpg", "d/x.jpg"])).map(".".join)


def listed(source: str, pattern: str | None = None) -> Listing:
    return list_samples(source, pattern=pattern, options=StorageOptions(), retry=RetryPolicy())


def samples_in(listing: Listing) -> list[list[str]]:
    table = listing.files
    return [table.select(np.array([number])).names for number in range(len(table))]


def manifest_of(place: Place, names: list[str]) -> bytes:
    files = place.files()
    return dump_manifest([ShardInfo(f"{place.url}{name}", 7, len(files[name]), "0" * 32) for name in names])


@given(st.sets(NAME, min_size=1, max_size=10))
def test_files_are_grouped_by_key(names: set[str]) -> None:
    """Also if other files are listed between those of a sample."""
    place = memory_place()
    place.put({name: b"x" * len(name) for name in names})
    listing = listed(place.url)
    expected = [
        list(group)
        for _, group in groupby(
            sorted(names, key=lambda name: (split_key(name)[0], name)), lambda name: split_key(name)[0]
        )
    ]
    assert sorted(map(sorted, samples_in(listing))) == sorted(map(sorted, expected))
    assert listing.archives == []
    whole = listing.files.select(np.arange(len(listing.files)))
    assert [len(name) for name in whole.names] == whole.sizes.tolist()
    assert [whole.urls[number] for number in whole.objects.tolist()] == [f"{place.url}{name}" for name in whole.names]
    assert not whole.starts.any()


@pytest.mark.parametrize(
    ("source", "pattern", "expected"),
    [
        ("", None, ["a/1.jpg", "a/2.jpg", "b/1.jpg", "c.jpg"]),
        ("a/", None, ["1.jpg", "2.jpg"]),
        ("a", None, ["1.jpg", "2.jpg"]),
        ("?/*.jpg", None, ["a/1.jpg", "a/2.jpg", "b/1.jpg"]),
        ("a/*.jpg", None, ["1.jpg", "2.jpg"]),
        ("c.jpg", None, ["c.jpg"]),
        ("a/{1..2}.jpg", None, ["1.jpg", "2.jpg"]),
        ("", "1.*", ["a/1.jpg", "b/1.jpg"]),
        ("", "a/*", ["a/1.jpg", "a/2.jpg"]),
    ],
)
def test_names_are_paths_below_the_source(source: str, pattern: str | None, expected: list[str]) -> None:
    """Below the folder, or below the fixed part of a glob or a range."""
    place = memory_place()
    place.put(dict.fromkeys(["a/1.jpg", "a/2.jpg", "b/1.jpg", "c.jpg"], b"x"))
    listing = listed(place.url + source, pattern)
    assert [name for names in samples_in(listing) for name in names] == expected
    assert listing.files.sizes().tolist() == [1] * len(expected)


@pytest.mark.parametrize("name", ["README", ".hidden.jpg", "__meta__.json__", "a.__key__", "d/.jpg"])
def test_a_file_that_cannot_be_in_a_sample_is_named_with_advice(name: str) -> None:
    """The error names the file, and how to leave it out."""
    place = memory_place()
    place.put({"a.jpg": b"", name: b""})
    with pytest.raises(ShardReadError, match=rf"{name.replace('.', '[.]')} cannot be part of a sample.*pattern="):
        listed(place.url)


def test_extensions_that_differ_in_case_only_are_an_error() -> None:
    """They would be one member."""
    place = memory_place()
    place.put({"a.JPG": b"", "a.jpg": b""})
    with pytest.raises(ShardReadError, match="'jpg' twice"):
        listed(place.url)


@pytest.mark.parametrize("manifest", [False, True])
def test_companions_of_archives_are_not_files_of_the_source(manifest: bool) -> None:
    """Indexes, classes and provenance; a manifest adds sample counts."""
    place = memory_place()
    place.put({**SHARDS, **COMPANIONS})
    if manifest:
        place.put({"index.json": manifest_of(place, ["0.tar", "1.tar"])})
    listing = listed(place.url)
    assert [url.removeprefix(place.url) for url in listing.archives] == ["0.tar", "1.tar"]
    assert [url.size for url in listing.archives] == [1, 2]
    assert [url.num_samples for url in listing.archives] == [7 if manifest else None] * 2
    assert len(listing.files) == 0


def test_a_manifest_is_a_source_of_its_shards_in_order() -> None:
    """Its shards, in its order."""
    place = memory_place()
    place.put(SHARDS)
    place.put({"index.json": manifest_of(place, ["1.tar"])})
    assert [url.removeprefix(place.url) for url in listed(f"{place.url}index.json").archives] == ["1.tar"]
    with pytest.raises(ShardReadError, match=r"0\.tar is not named by"):
        listed(place.url)
    assert len(listed(place.url, "*.tar").archives) == 2


def test_a_shard_of_another_size_than_in_the_manifest_is_an_error() -> None:
    """Its size is compared before anything is read."""
    place = memory_place()
    place.put(SHARDS)
    place.put({"index.json": manifest_of(place, ["0.tar", "1.tar"])})
    place.put({"1.tar": b"other"})
    with pytest.raises(ShardReadError, match=r"1\.tar has 5 bytes, and its manifest says 2"):
        listed(place.url)


@pytest.mark.parametrize("name", ["a.jpg", "2.tar.idx", "2.tar.keys", "provenance-x.json", "notes"])
def test_files_beside_archives_are_an_error_that_names_both(name: str) -> None:
    """One has to choose; the error names both, and a pattern chooses."""
    place = memory_place()
    place.put({**SHARDS, name: b""})
    if name == "notes":
        with pytest.raises(ShardReadError, match="notes"):
            listed(place.url)
    else:
        with pytest.raises(
            ShardReadError, match=rf"archives, such as .*0\.tar, and files beside them, such as .*{name}"
        ):
            listed(place.url)
    assert len(listed(place.url, "*.tar").archives) == 2


def test_companions_alone_are_files() -> None:
    """Where there are no archives, a file of that name is a sample."""
    place = memory_place()
    place.put(COMPANIONS)
    assert len(listed(place.url).files) == 3


def test_the_digest_differs_between_listings() -> None:
    """Another file or another size is another source; the same one is the same."""
    place = memory_place()
    place.put({"a.jpg": b"1", "b.jpg": b"2"})
    digests = [listed(place.url).digest, listed(place.url, "*.jpg").digest]
    assert len(set(digests)) == 1
    place.put({"b.jpg": b"22"})
    digests.append(listed(place.url).digest)
    digests.append(listed(place.url, "a.*").digest)
    assert len(set(digests)) == 3


def test_the_digest_differs_between_shards_of_equal_size() -> None:
    """Also where the store has no etags, and another shard of equal size took a shard's place."""
    place = memory_place()
    place.put({"0.tar": b"0" * 10})
    names = ["0.tar"]
    place.put({"index.json": manifest_of(place, names)})
    before = listed(f"{place.url}index.json").digest
    assert listed(f"{place.url}index.json").digest == before
    place.put({"index.json": manifest_of(place, names).replace(b"0" * 32, b"1" * 32)})
    assert listed(f"{place.url}index.json").digest != before


def test_an_empty_folder_is_an_error() -> None:
    """An empty folder is an error."""
    with pytest.raises(EmptyListingError):
        listed(memory_place().url)
