"""What a job of sharding plans, and what it saves for its next run."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shard_places import memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.sample_table import SampleTable
from torchdata_remote.sharding.plan import cut_evenly, packed_bytes
from torchdata_remote.sharding.planned_samples import Naming
from torchdata_remote.sharding.source_index import dump_index, load_index
from torchdata_remote.sharding.temporary_objects import Kept, TemporaryObjects

ARCHIVES = [RemoteUrl(f"https://host/{number}.tar?signature=secret", 7, f"etag{number}") for number in range(3)]
SCRATCH = "s3://bucket/set/_unfinished-"
Found = list[tuple[RemoteUrl, list[list[tuple[str, int, int]]]]]


def table_of(objects: Found) -> SampleTable:
    table = SampleTable()
    for url, samples in objects:
        table.add_object(url)
        for members in samples:
            table.start_sample()
            for member in members:
                table.add_member(*member)
    return table


def named(*names: str, size: int = 1) -> SampleTable:
    return table_of([(ARCHIVES[0], [[(name, 0, size)] for name in names])])


def test_members_above_8_gib_need_a_larger_header() -> None:
    (below,) = packed_bytes(named("a.bin", size=(8 << 30) - 1), None, Naming()).tolist()
    (above,) = packed_bytes(named("a.bin", size=8 << 30), None, Naming()).tolist()
    assert below == 512 + (8 << 30)
    assert above > below


@given(
    num_samples=st.integers(0, 500),
    mean_bytes=st.floats(0, 1e6),
    max_bytes=st.integers(1, 1 << 30),
    max_samples=st.integers(1, 600),
)
def test_even_cuts_differ_by_one_sample_and_leave_a_tenth_of_room(
    num_samples: int, mean_bytes: float, max_bytes: int, max_samples: int
) -> None:
    cuts = list(cut_evenly(num_samples, mean_bytes, max_bytes, max_samples))
    assert [index for cut in cuts for index in range(num_samples)[cut]] == list(range(num_samples))
    lengths = {cut.stop - cut.start for cut in cuts}
    assert not lengths or max(lengths) - min(lengths) <= 1
    for length in lengths:
        assert 1 <= length <= max_samples
        assert length == 1 or length * mean_bytes * 1.1 <= (max_bytes - 1024) * (1 + 1e-9)


# The saved index

MEMBER = st.tuples(st.text("ab/é.\udc80", min_size=1, max_size=9), st.integers(0, 1 << 45), st.integers(0, 1 << 40))
OBJECTS = st.sampled_from([*ARCHIVES, RemoteUrl(f"{SCRATCH}unpacked-0"), RemoteUrl(f"{SCRATCH}unpacked-1")])
TABLES = st.lists(st.tuples(OBJECTS, st.lists(st.lists(MEMBER, max_size=3), max_size=4)), max_size=5).map(table_of)
SMALL = table_of([(ARCHIVES[1], [[("a.jpg", 512, 3), ("a.cls", 2048, 1)]]), (ARCHIVES[0], [[("b.jpg", 9, 9)]])])


def contents(table: SampleTable) -> Any:
    columns = {name: column.tolist() for name, column in table.columns().items()}
    return columns, [(str(url), url.size, url.etag) for url in table.urls]


@given(TABLES)
def test_a_saved_index_loads_with_the_archives_of_the_present_listing(table: SampleTable) -> None:
    assert contents(load_index(dump_index(table, ARCHIVES, SCRATCH), ARCHIVES, SCRATCH)) == contents(table)


@given(at=st.integers(0), how=st.sampled_from(["flip", "cut", "longer"]), bit=st.integers(0, 7))
def test_any_damage_of_a_saved_index_is_an_error(at: int, how: str, bit: int) -> None:
    data = bytearray(dump_index(SMALL, ARCHIVES, SCRATCH))
    at %= len(data)
    if how == "flip":
        data[at] ^= 1 << bit
    elif how == "cut":
        del data[at:]
    else:
        data += b"\0"
    with pytest.raises(ValueError, match=r"Error: "):
        load_index(bytes(data), ARCHIVES, SCRATCH)


def test_a_saved_index_is_compact_and_holds_no_url() -> None:
    """At most 16 bytes for a sample of one member; a signature in the URL of an archive is not saved."""
    samples = [[(f"train/n{n % 100:08d}/{n * 7919 % 1_000_003:07d}.JPEG", n * 94_208 + 512, 93_000 + n % 999)]
               for n in range(20_000)]  # fmt: skip
    data = dump_index(table_of([(ARCHIVES[2], samples)]), ARCHIVES, SCRATCH)
    assert len(data) < 16 * len(samples)
    columns = np.load(io.BytesIO(zlib.decompress(data[data.index(b"\n") + 17 :])))
    assert all(b"secret" not in column.tobytes() for column in columns.values())


# Temporary objects


@given(
    pieces=st.lists(st.binary(max_size=12), max_size=12),
    object_bytes=st.integers(1, 20),
    ends=st.sets(st.integers(0, 12)),
)
def test_stored_bytes_are_where_they_are_said_to_be_in_objects_of_bounded_size(
    pieces: list[bytes], object_bytes: int, ends: set[int]
) -> None:
    place = memory_place()
    scratch = TemporaryObjects(f"{place.url}unpacked-", StorageOptions(), object_bytes=object_bytes)
    kept: list[Kept] = []
    for number, piece in enumerate(pieces):
        kept.append(scratch.put(memoryview(piece)))
        if number in ends:
            scratch.finish()
    scratch.finish()
    files = place.files()
    assert scratch.used == bool(pieces)
    for piece, (url, start) in zip(pieces, kept, strict=True):
        assert files[url.removeprefix(place.url)][start : start + len(piece)] == piece
    assert b"".join(files[name] for name in sorted(files)) == b"".join(pieces)
    assert all(start < object_bytes for _, start in kept), "an object that is full gets no more"
