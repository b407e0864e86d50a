"""The index (.idx) and the keys (.keys) beside a shard: damaged or foreign ones are refused, never believed."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.archives import at_most, bare, grouped
from tests.support.scripted_store import store_of
from tests.support.shard_places import Place, memory_place
from torchdata_remote.errors import ManifestError
from torchdata_remote.testing import write_small_shards

REMEDY = r"torchdata-remote manifest --overwrite FOLDER"
NUM_SAMPLES = 7
MEMBERS = [
    (f"{number}.{name}", bytes([number]) * (300 * number)) for number in range(NUM_SAMPLES) for name in ("bin", "cls")
]
TAR, WHOLE = pack_tar(MEMBERS), grouped(MEMBERS)


def offsets_of(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 8}Q", data))


def dumped(offsets: list[int]) -> bytes:
    return struct.pack(f"<{len(offsets)}Q", *offsets)


def place_of(tar: bytes = TAR, num_samples: int = NUM_SAMPLES, index: bytes | None = None) -> Place:
    """A shard with a manifest of another tool, which has no checksums."""
    place = memory_place()
    place.put({"0.tar": tar})
    if index is None:
        tdr.index_shards(place.url)
    else:
        place.put({"0.tar.idx": index})
    entry = {"url": "0.tar", "md5sum": "", "nsamples": num_samples, "filesize": len(tar)}
    place.put({"index.json": json.dumps({"__kind__": "wids-shard-index-v1", "shardlist": [entry]}).encode()})
    return place


GOOD = offsets_of(place_of().files()["0.tar.idx"])


def part(place: Place, rank: int, world_size: int = 3) -> list[Any]:
    """The samples of one of some readers of one shard."""
    world = tdr.World(rank, world_size)
    return bare(tdr.stream_shards(f"{place.url}index.json", shuffle=False, world=world))


def by_number(place: Place) -> list[Any]:
    dataset = tdr.ShardedDataset(place.url)
    return bare(dataset[number] for number in range(len(dataset)))


def complete_place() -> Place:
    """A shard with a manifest that has the checksum of its index."""
    place = place_of()
    tdr.index_shards(place.url, overwrite=True)
    return place


@pytest.mark.parametrize("world_size", range(1, NUM_SAMPLES + 1))
def test_parts_of_a_shard_are_slices_of_it(world_size: int) -> None:
    """A reader that has all of it needs no index."""
    place = complete_place()
    assert [sample for rank in range(world_size) for sample in part(place, rank, world_size)] == WHOLE
    assert by_number(place) == WHOLE
    place.delete("0.tar.idx")
    if world_size == 1:
        assert part(place, 0, 1) == WHOLE


def test_a_missing_index_says_how_to_write_it() -> None:
    place = place_of()
    place.delete("0.tar.idx")
    readers: list[Callable[[], Any]] = [lambda: part(place, 1), lambda: by_number(place)]
    for read in readers:
        with pytest.raises(ManifestError, match=rf"0\.tar\.idx is missing.*{REMEDY[:39]}") as caught:
            read()
        assert caught.value.url == f"{place.url}0.tar"
        assert caught.value.__cause__ is not None


OTHERS: dict[str, list[int]] = {
    "empty": [],
    "one": [0],
    "short": GOOD[:-1],
    "long": [*GOOD, 20_000],
    "zeros": [0] * 8,
    "beyond the shard": [10**15] * 8,
    "negative": [2**64 - 1] * 8,
    "backwards": GOOD[::-1],
    "twice the same": [*GOOD[:3], GOOD[2], *GOOD[4:]],
    "not of blocks": [*GOOD[:3], GOOD[3] + 1, *GOOD[4:]],
    "not from 0": [512, *GOOD[1:]],
    "ends behind the shard": [*GOOD[:-1], 10**9 - 10**9 % 512],
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_index_of_something_else_is_refused(name: str) -> None:
    """By its length or by its numbers, wherever they are; the error says what to do."""
    place = place_of(index=dumped(OTHERS[name]))
    with pytest.raises(ManifestError, match=rf"0\.tar\.idx.*{REMEDY[:39]}") as caught:
        by_number(place)
    assert caught.value.url == f"{place.url}0.tar"
    for rank in range(3):
        try:
            assert part(place, rank) == WHOLE[NUM_SAMPLES * rank // 3 : NUM_SAMPLES * (rank + 1) // 3]
        except ManifestError as error:
            assert "0.tar.idx" in str(error)  # noqa: PT017  # a part sees its own borders alone


def test_a_part_needs_the_checksum_of_the_index_in_the_manifest() -> None:
    """Without it nothing tells whether the index is that of another version, which cuts samples in two."""
    with pytest.raises(ManifestError, match=rf"0\.tar\.idx has no checksum in the shard's manifest.*{REMEDY[:39]}"):
        part(place_of(), 1)


def test_an_index_that_differs_from_its_checksum_is_refused(memory_folder: str) -> None:
    """Though it would lead to whole members."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=6)
    place = Place(f"{memory_folder}/")
    index = offsets_of(place.files()["000001.tar.idx"])
    place.put({"000001.tar.idx": dumped([index[0], index[1] + 1024, *index[2:]])})
    refused = rf"000001\.tar\.idx has the CRC-32 [0-9a-f]{{8}}, and the shard's manifest has [0-9a-f]{{8}}.*{REMEDY}"
    with pytest.raises(ManifestError, match=refused):
        part(place, 2)
    with pytest.raises(ManifestError, match=refused):
        tdr.ShardedDataset(memory_folder)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_one_request_tells_where_a_part_lies(rank: int) -> None:
    with store_of(complete_place().files()) as store:
        world = tdr.World(rank, 3)
        found = tdr.stream_shards(f"{store.url}index.json", shuffle=False, world=world)
        assert len(list(found)) == NUM_SAMPLES * (rank + 1) // 3 - NUM_SAMPLES * rank // 3
    assert len([read for read in store.reads if read.name.endswith(".idx")]) == 1
    assert len([read for read in store.reads if read.name.endswith(".tar")]) == 1


# Keys

KEYS = place_of().files()["0.tar.keys"]


def keys_with(**changed: Any) -> bytes:
    """A file of keys with other arrays, or other contents in their place."""
    with np.load(io.BytesIO(KEYS)) as found:
        columns: dict[str, Any] = dict(found)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, column in (columns | changed).items():
            array = io.BytesIO()
            if isinstance(column, bytes):
                array.write(column)
            else:
                np.lib.format.write_array(array, column)
            archive.writestr(f"{name}.npy", array.getvalue())
    return buffer.getvalue()


def announced(*shape: int) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return header.getvalue()


def array_file() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


def column(first: int, rest: int, count: int = 2 * NUM_SAMPLES) -> Any:
    return np.array([first] + [rest] * (count - 1))


HUGE = 1 << 62
HOSTILE = {
    "nothing": b"",
    "cut short": KEYS[:-40],
    "an array without an archive": array_file(),
    "no array": keys_with(sizes=b"text"),
    "two dimensions": keys_with(sizes=np.zeros((14, 1), int)),
    "floats": keys_with(sizes=np.zeros(14)),
    "announced values": keys_with(sizes=announced(10**14)),
    "another number of members": keys_with(counts=np.full(7, 1)),
    "an unknown extension": keys_with(members=column(2, 0)),
    "headers of 100 bytes": keys_with(gaps=column(100, 512)),
    "no headers": keys_with(gaps=column(0, 512)),
    "members behind the shard": keys_with(sizes=column(1 << 20, 1)),
    "another number of samples": keys_with(keys=np.frombuffer(b"0\x001", np.uint8), counts=np.array([7, 7])),
    "sizes whose sum overflows": keys_with(sizes=column(HUGE, HUGE)),
    "a negative size": keys_with(sizes=column(-700, 1)),
    "an archive that grows a thousandfold": keys_with(keys=np.zeros(50_000_000, np.uint8)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_of_keys_that_is_damaged_or_hostile_is_an_error(name: str) -> None:
    """Never another exception, numbers that overflowed, or memory beyond the shard's own size."""
    place = place_of()
    select = {"keys": ["5", "2"]}

    def selected() -> list[Any]:
        return bare(tdr.stream_shards(f"{place.url}index.json", shuffle=False, select=select))

    place.put({"0.tar.keys": keys_with()})
    assert sorted(selected(), key=str) == [WHOLE[2], WHOLE[5]]
    place.put({"0.tar.keys": HOSTILE[name]})
    with at_most(10 << 20), pytest.raises(ManifestError, match=r"0\.tar\.keys (is not a file of keys|has )"):
        selected()
