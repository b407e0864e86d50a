"""Many JSON objects into one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.s3 import S3Server
from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import ManifestError, ObjectNotFoundError
from torchdata_remote.sharding.provenance import merge_sources

PATHS = st.text('ab/"\\{}\n\udc80é', max_size=5)
VALUES = st.fixed_dictionaries({"class": st.none() | st.integers(0, 9), "position": st.integers(0, 1 << 40)})


def merged(place: Place, documents: list[bytes]) -> bytes:
    names = [f"part-{number}" for number in range(len(documents))]
    place.put(dict(zip(names, documents, strict=True)))
    merge_sources([f"{place.url}{name}" for name in names], f"{place.url}all.json", StorageOptions(place.options))
    return place.files()["all.json"]


@given(st.lists(st.dictionaries(PATHS, VALUES, max_size=3), max_size=4), st.sampled_from([None, 1]))
def test_objects_are_merged_into_one(parts: list[dict[str, object]], indent: int | None) -> None:
    """Empty ones among them, none at all, and any names."""
    data = merged(memory_place(), [json.dumps(part, indent=indent).encode() for part in parts])
    pairs: list[tuple[str, object]] = json.loads(data, object_pairs_hook=list)
    values = [(name, dict(value)) for name, value in pairs]  # type: ignore[call-overload]
    assert values == [item for part in parts for item in part.items()]


def test_merging_replaces_an_existing_object_in_a_bucket(moto: S3Server) -> None:
    """An object that is there is replaced."""
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    place.put({"all.json": b"old"})
    parts = [{f"{number}/{index}": "x" * 1000 for index in range(50)} for number in range(3)]
    data = merged(place, [json.dumps(part).encode() for part in parts])
    assert json.loads(data) == {name: value for part in parts for name, value in part.items()}


@pytest.mark.parametrize("damaged", [b"", b"[]", b"{", b"}", b'{"a": 1'])
def test_an_invalid_object_is_an_error_and_nothing_is_replaced(damaged: bytes) -> None:
    """The error names it, and what was there stays."""
    place = memory_place()
    place.put({"all.json": b"old"})
    with pytest.raises(ManifestError, match="part-1"):
        merged(place, [b'{"a": 1}', damaged])
    assert place.files()["all.json"] == b"old"


def test_a_missing_object_is_an_error() -> None:
    """Nothing is left out silently."""
    place = memory_place()
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        merge_sources([f"{place.url}nowhere"], f"{place.url}all.json", StorageOptions())
    assert place.files() == {}
