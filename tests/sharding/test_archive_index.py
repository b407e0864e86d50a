"""Index archives in one pass."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.archive_bytes import pack_tar
from tests.support.shard_places import Place, memory_place, tar_of
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ShardReadError
from torchdata_remote.fetch.sample_table import SampleTable
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.sharding.archive_index import index_archives
from torchdata_remote.sharding.temporary_objects import TemporaryObjects

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FILES = st.dictionaries(st.integers(0, 40), st.binary(max_size=1200), min_size=1, max_size=6)
PACKERS = [lambda data: data, gzip.compress, zstd.compress]
ENDINGS = ["", ".gz", ".zst"]


def index(place: Place, names: list[str], *, counts: dict[str, int] | None = None) -> tuple[SampleTable, list[int]]:
    """The table of archives, and how many bytes were read each time."""
    files, read = place.files(), list[int]()
    counts = counts or {}
    urls = [RemoteUrl(f"{place.url}{name}", len(files[name]), num_samples=counts.get(name)) for name in names]
    options = StorageOptions()
    scratch = TemporaryObjects(f"{place.url}unpacked-", options, object_bytes=2000)
    return index_archives(
        urls, FetchSession(FetchOptions(part_bytes=700), options), scratch, on_bytes=read.append
    ), read


def contents(place: Place, table: SampleTable) -> list[dict[str, bytes]]:
    """Read each sample's members by their ranges."""
    files = place.files()
    found = []
    for sample in range(len(table)):
        some = table.select(np.array([sample]))
        places = zip(some.names, some.objects.tolist(), some.starts.tolist(), some.sizes.tolist(), strict=True)
        found.append(
            {
                name: files[some.urls[number].removeprefix(place.url)][start : start + size]
                for name, number, start, size in places
            }
        )
    return found


def sample_files(numbers: dict[int, bytes]) -> dict[str, bytes]:
    """Two members for each number; long names need extended headers."""
    made: dict[str, bytes] = {}
    for number, data in sorted(numbers.items()):
        key = "long/" * (30 * (number % 2)) + str(number)
        made |= {f"{key}.jpg": data, f"{key}.txt": data[::-1]}
    return made


def as_samples(files: dict[str, bytes], prefix: str = "") -> list[dict[str, bytes]]:
    pairs = [(prefix + name, data) for name, data in files.items()]
    return [dict(pairs[at : at + 2]) for at in range(0, len(pairs), 2)]


@settings(max_examples=20)
@given(parts=st.lists(FILES, min_size=1, max_size=3), packings=st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_members_of_plain_and_compressed_archives_are_indexed(
    parts: list[dict[int, bytes]], packings: list[int]
) -> None:
    """Several archives are indexed under their names."""
    place = memory_place()
    names, expected = [], []
    for number, (numbers, packing) in enumerate(zip(parts, packings, strict=False)):
        names.append(f"t-{number}.tar{ENDINGS[packing]}")
        place.put({names[-1]: PACKERS[packing](tar_of(sample_files(numbers)))})
        expected += as_samples(sample_files(numbers), f"t-{number}/" if len(parts) > 1 else "")
    table, read = index(place, names)
    assert contents(place, table) == expected
    files = place.files()
    assert sum(read) == sum(len(files[name]) for name in names)
    unpacked = any(packings[: len(parts)])
    assert any("unpacked-" in name for name in files) == unpacked, "what can be read by ranges is not copied"


@settings(max_examples=20)
@given(parts=st.lists(FILES, min_size=1, max_size=3), inner=st.integers(0, 2), outer=st.integers(0, 2))
def test_members_of_nested_archives_are_indexed_under_the_inner_names(
    parts: list[dict[int, bytes]], inner: int, outer: int
) -> None:
    """Of any depth of compression; the inner names are folders."""
    place = memory_place()
    archives = {
        f"./n{number}.tar{ENDINGS[inner]}": PACKERS[inner](tar_of(sample_files(part)))
        for number, part in enumerate(parts)
    }
    name = f"all.tar{ENDINGS[outer]}"
    place.put({name: PACKERS[outer](tar_of({**archives, "__meta__": b"x"}))})
    table, _ = index(place, [name])
    expected = [sample for number, part in enumerate(parts) for sample in as_samples(sample_files(part), f"n{number}/")]
    assert contents(place, table) == expected


def test_the_outer_archives_name_is_the_first_folder() -> None:
    """Before that of the inner archive."""
    place = memory_place()
    place.put({f"{part}.tar": tar_of({"cat.tar": tar_of({"1.jpg": part.encode()})}) for part in ("a", "b")})
    table, _ = index(place, ["a.tar", "b.tar"])
    assert contents(place, table) == [{"a/cat/1.jpg": b"a"}, {"b/cat/1.jpg": b"b"}]


def test_a_file_beside_inner_archives_is_an_error() -> None:
    """An archive of archives that holds files as well is an error, which names one."""
    place = memory_place()
    place.put({"a.tar": pack_tar([("cat.tar", tar_of({"1.jpg": b"1"})), ("2.jpg", b"2")])})
    with pytest.raises(ShardReadError, match=r"'2\.jpg'"):
        index(place, ["a.tar"])


def test_a_damaged_inner_archive_is_named_with_the_outer_one() -> None:
    """The error names both."""
    place = memory_place()
    place.put({"a.tar": pack_tar([("cat.tar", tar_of({"1.jpg": b"1"})[:700])])})
    with pytest.raises(ShardReadError, match=r"a\.tar, in 'cat\.tar'"):
        index(place, ["a.tar"])


@pytest.mark.parametrize("data", [tar_of({}), tar_of({"a.tar": tar_of({})})])
def test_an_archive_without_samples_adds_none(data: bytes) -> None:
    """Nothing is left out silently."""
    place = memory_place()
    place.put({"all.tar": data})
    with pytest.warns(RuntimeWarning, match=r"all\.tar.*without a single sample"):
        assert len(index(place, ["all.tar"])[0]) == 0


def test_a_sample_count_other_than_the_manifests_is_an_error() -> None:
    """Samples are counted while they are read."""
    place = memory_place()
    place.put({"a.tar": tar_of({"1.jpg": b"1", "2.jpg": b"2"})})
    assert len(index(place, ["a.tar"], counts={"a.tar": 2})[0]) == 2
    with pytest.raises(ShardReadError, match="has 2 samples, and its manifest says 3"):
        index(place, ["a.tar"], counts={"a.tar": 3})
