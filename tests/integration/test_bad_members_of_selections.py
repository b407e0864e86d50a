"""Keys of shards with members that cannot be part of a sample: the policy that was passed holds for them, too."""

from __future__ import annotations

from typing import Any

import pytest

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.shard_places import memory_place
from torchdata_remote.errors import BadMemberError

NAMES = ["1.jpg", "README", "2.jpg", "LICENSE", "3.jpg"]
WITHOUT_KEYS = "ignore:.*is missing. the keys of this shard:RuntimeWarning"


def selected(url: str, **options: Any) -> list[str]:
    chosen = tdr.stream_shards(url, shuffle=False, select={"keys": ["1", "3"]}, **options)
    return [sample["__key__"] for sample in chosen]


def joined(url: str, **options: Any) -> list[str]:
    sets = {"pictures": url, "captions": url.replace("pictures", "captions")}
    return [sample["__key__"] for sample in tdr.join(sets, shuffle=False, align="keys", **options)]


@pytest.mark.filterwarnings(WITHOUT_KEYS)
@pytest.mark.filterwarnings("ignore:.*It is left out:RuntimeWarning")
@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize(("read", "expected"), [(selected, ["1", "3"]), (joined, ["1", "2", "3"])])
def test_keys_are_read_by_the_policy_for_bad_members(read: Any, expected: list[str], has_keys: bool) -> None:
    """From the headers of shards, and from files of keys that were written by the same policy."""
    place = memory_place()
    place.put({"pictures/0.tar": pack_tar([(name, b"x") for name in NAMES])})
    place.put({"captions/0.tar": pack_tar([(f"{key}.txt", b"y") for key in "123"])})
    if has_keys:
        tdr.index_shards(f"{place.url}pictures/", on_bad_member=tdr.skip_with_warning)
        place.delete("pictures/index.json")  # which would make the last sample's headers unnecessary
    assert read(f"{place.url}pictures/", on_bad_member=tdr.skip_with_warning) == expected
    with pytest.raises(BadMemberError, match="on_bad_member=skip_with_warning"):
        read(f"{place.url}pictures/")


@pytest.mark.filterwarnings(WITHOUT_KEYS)
def test_a_member_that_is_left_out_at_keys_is_said_once_a_shard() -> None:
    """As by readers."""
    place = memory_place()
    place.put({"pictures/0.tar": pack_tar([(name, b"x") for name in NAMES])})
    with pytest.warns(RuntimeWarning, match="It is left out") as said:
        list(
            tdr.IterableWrapper([f"{place.url}pictures/0.tar"]).select(keys=["1"], on_bad_member=tdr.skip_with_warning)
        )
    assert sum("It is left out" in str(one.message) for one in said) == 1
