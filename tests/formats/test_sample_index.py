"""The index beside a shard, and the byte ranges that are read by it."""

from __future__ import annotations

import contextlib
import pickle
import struct
import uuid
import zlib
from itertools import cycle

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from tests.support.shard_places import header_places, tar_of
from torchdata_remote import ShardedDataset, ShardTarReader, ShardWriter, World, index_shards, stream_shards
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.core.urls import RemoteUrl, split_sample_range
from torchdata_remote.errors import ManifestError
from torchdata_remote.fetch.sample_ranges import read_offsets, wanted_bytes
from torchdata_remote.formats.manifest import ShardInfo, load_manifest
from torchdata_remote.formats.sample_index import dump_index, index_url, parse_index
from torchdata_remote.inspection import verify_shards
from torchdata_remote.testing import FaultyStore, write_small_shards

NUM_SAMPLES = 7
REMEDY = r"torchdata-remote manifest --overwrite FOLDER"


def write_shard(folder: str) -> RemoteUrl:
    """A shard of a few samples of different sizes, with the metadata of its manifest."""
    with ShardWriter(f"{folder}/{{shard}}.tar") as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"__key__": f"{number}", "bin": bytes(number * 300), "cls": number})
    return as_listed(writer.shards[0])


def as_listed(shard: ShardInfo) -> RemoteUrl:
    return RemoteUrl(shard.url, shard.num_bytes, num_samples=shard.num_samples)


def wanted(url: str) -> tuple[int, int | None]:
    whole, samples = split_sample_range(url)
    assert samples is not None
    return wanted_bytes(whole, samples, StorageOptions(), RetryPolicy())


def put(url: str, data: bytes) -> None:
    with fsspec.open(url, "wb") as file:
        file.write(data)


def get(url: str) -> bytes:
    data: bytes = fsspec.filesystem("memory").cat_file(url.removeprefix("memory:/"))
    return data


def keys_of(url: str) -> list[str]:
    return [sample["__key__"] for sample in ShardTarReader(IterableWrapper([url]))]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_dump_index_writes_little_endian_uint64(offsets: list[int]) -> None:
    """Unsigned, 64 bits, little-endian, and nothing else: the layout of Energon's ``.tar.idx``."""
    assert dump_index(offsets) == struct.pack(f"<{len(offsets)}Q", *offsets)


ASCENDING = st.lists(st.integers(1, 1000), min_size=1, max_size=12, unique=True).map(lambda n: [0, *sorted(n)])


@given(blocks=ASCENDING, data=st.data())
def test_parse_index_returns_what_was_dumped(blocks: list[int], data: st.DataObject) -> None:
    """The whole index, and any two or more neighbouring entries of it."""
    offsets, num_samples = [512 * block for block in blocks], len(blocks) - 1
    assert parse_index(dump_index(offsets)).tolist() == offsets
    assert parse_index(dump_index(offsets), num_samples=num_samples, shard_bytes=offsets[-1]).tolist() == offsets
    first = data.draw(st.integers(0, num_samples - 1))
    last = data.draw(st.integers(first + 1, num_samples))
    entries = dump_index(offsets[first : last + 1])
    assert parse_index(entries, num_samples=num_samples, first=first, last=last).tolist() == offsets[first : last + 1]


@pytest.mark.parametrize(
    ("offsets", "options", "reason"),
    [
        ([0], {}, "has 8 bytes for entries 0 to 0 of a shard of 0 samples"),
        ([0, 512], {"num_samples": 2}, "has 16 bytes for entries 0 to 2 of a shard of 2 samples"),
        (
            [0, 512],
            {"num_samples": 9, "first": 3, "last": 5},
            "has 16 bytes for entries 3 to 5 of a shard of 9 samples",
        ),
        ([0, 511], {}, "an offset that is not a multiple of 512"),
        ([0, 1024, 1024], {}, "do not ascend"),
        ([0, 1024, 512], {}, "do not ascend"),
        ([512, 1024], {}, "says that sample 0 begins at byte 512"),
        ([0, 1024], {"num_samples": 9, "first": 3, "last": 4}, "says that sample 3 begins at byte 0"),
        ([0, 1024], {"shard_bytes": 1023}, "up to 1,024, of a shard of 1,023 bytes"),
        ([0, 1024], {"num_samples": 2, "last": 1, "shard_bytes": 1535}, "up to 1,024, of a shard of 1,535 bytes"),
    ],
)
def test_parse_index_refuses_what_is_no_index_of_the_shard(
    offsets: list[int], options: dict[str, int], reason: str
) -> None:
    """By its length, alignment, order, first entry, and the size of the shard; the message says which."""
    with pytest.raises(ValueError, match=reason):
        parse_index(dump_index(offsets), **options)


def test_parse_index_refuses_an_incomplete_entry() -> None:
    """A length that is not a multiple of eight bytes."""
    with pytest.raises(ValueError, match="has 17 bytes"):
        parse_index(dump_index([0, 512]) + b"\0")


def test_index_url_appends_idx_to_the_shards_url() -> None:
    """Under the shard's whole name, so that it is found without a listing."""
    assert index_url("s3://b/train/0.tar") == "s3://b/train/0.tar.idx"
    assert index_url("memory://a/0.tar.gz") == "memory://a/0.tar.gz.idx"


@settings(max_examples=40)
@given(ends=st.tuples(st.integers(0, NUM_SAMPLES), st.integers(0, NUM_SAMPLES)).filter(lambda ends: ends[0] != ends[1]))
def test_any_part_is_read_as_a_slice_of_the_shard(ends: tuple[int, int]) -> None:
    """Its samples, and no others; a part that is the whole asks for no index."""
    first, last = sorted(ends)
    folder = f"memory://{uuid.uuid4().hex}"
    url = write_shard(folder)
    assert keys_of(url.part(first, last)) == [f"{number}" for number in range(first, last)]
    offsets = struct.unpack(f"<{NUM_SAMPLES + 1}Q", get(index_url(url)))
    if last - first < NUM_SAMPLES:
        start, stop = wanted(url.part(first, last))
        assert start == offsets[first]
        assert stop == (None if last == NUM_SAMPLES else offsets[last])
        assert keys_of(str(url.part(first, last))) == [f"{number}" for number in range(first, last)], "a bare str too"
    fsspec.filesystem("memory").rm(folder, recursive=True)


def test_whole_shards_need_no_index(memory_folder: str) -> None:
    """All of a shard's samples are no part of it."""
    url = write_shard(memory_folder)
    fsspec.filesystem("memory").rm(index_url(url))
    assert len(keys_of(url.part(0, NUM_SAMPLES))) == NUM_SAMPLES


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(("first", "last"), [(0, 2), (2, 5), (5, NUM_SAMPLES)])
def test_one_request_tells_where_a_part_lies(moto: S3Server, first: int, last: int, checked: bool) -> None:
    """A small index whose checksum is known is read whole, of others the entries that are needed.

    Then each border within the shard costs a request more, by which it is checked.
    """
    folder = f"s3://{moto.new_bucket()}/train"
    write_small_shards(folder, num_shards=1, samples_per_shard=NUM_SAMPLES, storage_options=moto.storage_options)
    with FaultyStore(moto.endpoint_url) as store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        urls = IterableWrapper([f"{folder}/index.json"]).list_remote(storage_options=options)
        (url,) = urls
        if not checked:
            url = RemoteUrl(str(url), url.size, num_samples=url.num_samples)
        before = len(store.requests)
        samples = list(ShardTarReader(IterableWrapper([url.part(first, last)]), storage_options=options))
        seen = store.requests[before:]
    assert len(samples) == last - first
    (asked,) = [request for request in seen if request.path.endswith(".idx")]
    assert asked.method == "GET"
    begin, end = (0, NUM_SAMPLES) if checked else ((first or last) - 1, first if last == NUM_SAMPLES else last)
    assert asked.range == f"bytes={begin * 8}-{end * 8 + 7}"
    num_borders = 0 if checked else (first > 0) + (last < NUM_SAMPLES)
    assert len([request for request in seen if request.path.endswith(".tar")]) == 1 + num_borders


def test_a_missing_index_says_how_to_write_it(memory_folder: str) -> None:
    """Which object lacks, of which shard, and the command."""
    url = write_shard(memory_folder)
    fsspec.filesystem("memory").rm(index_url(url))
    with pytest.raises(ManifestError, match=r"0\.tar\.idx is missing.*torchdata-remote manifest --overwrite") as caught:
        wanted(url.part(1, 3))
    assert caught.value.url == url
    assert caught.value.__cause__ is not None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(ManifestError, match="is missing"):
        keys_of(url.part(1, 3))


def pack(names: list[str], sizes: list[int]) -> tuple[bytes, list[int]]:
    """A tar of members, and where each of them begins."""
    data = tar_of([(name, bytes(size)) for name, size in zip(names, sizes, strict=True)])
    return data, [start for _, start in header_places(data)]


SAMPLES = st.lists(st.lists(st.integers(0, 70_000), min_size=1, max_size=3), min_size=3, max_size=6)


@settings(max_examples=60)
@given(sizes=SAMPLES, long=st.booleans(), data=st.data())
def test_an_index_that_cuts_a_sample_in_two_is_refused(sizes: list[list[int]], long: bool, data: st.DataObject) -> None:
    """Wherever it cuts, whichever side is wanted, and however long members and names are; the right one is not."""
    prefix = "n" * 120 if long else ""  # which takes a header of its own
    names = [f"{prefix}{number}.m{member}" for number, sample in enumerate(sizes) for member in range(len(sample))]
    tar, starts = pack(names, [size for sample in sizes for size in sample])
    firsts = [sum(map(len, sizes[:number])) for number in range(len(sizes))]
    end = starts[-1] + 512  # which is not asked for
    offsets = [starts[first] for first in firsts]
    folder = f"memory://{uuid.uuid4().hex}"
    url = RemoteUrl(f"{folder}/0.tar", len(tar), num_samples=len(sizes))
    put(url, tar)
    put(index_url(url), dump_index([*offsets, end]))
    first, last = sorted(data.draw(st.lists(st.integers(0, len(sizes)), min_size=2, max_size=2, unique=True)))
    whole = [f"{prefix}{number}" for number in range(first, last)]
    assert keys_of(url.part(first, last)) == whole
    borders = [border for border in (first, last) if 0 < border < len(sizes)]
    cuts = [
        (border, place)
        for border in borders
        for place in starts
        if place not in offsets
        and offsets[border - 1] < place
        and (border + 1 == len(offsets) or place < offsets[border + 1])
    ]
    if cuts:
        border, place = data.draw(st.sampled_from(cuts))
        wrong = [*offsets[:border], place, *offsets[border + 1 :], end]
        put(index_url(url), dump_index(wrong))
        with pytest.raises(ManifestError, match=rf"(?s)0\.tar\.idx splits the sample '{prefix}\d' at byte .*{REMEDY}"):
            keys_of(url.part(first, last))
    fsspec.filesystem("memory").rm(folder, recursive=True)


@pytest.mark.parametrize("field", ["shifted", "between"])
def test_an_index_that_points_into_a_member_is_refused(memory_folder: str, field: str) -> None:
    """At a place where no member begins, behind either border."""
    url = write_shard(memory_folder)
    offsets = list(struct.unpack(f"<{NUM_SAMPLES + 1}Q", get(index_url(url))))
    offsets[4] += 512 if field == "shifted" else -512
    put(index_url(url), dump_index(offsets))
    for first, last in ((4, 6), (2, 4)):
        with pytest.raises(ManifestError, match=rf"puts a sample at byte {offsets[4]:,}, where none.*{REMEDY}"):
            wanted(url.part(first, last))


@pytest.mark.parametrize("left_out", ["1", "./1", "1/", ".1", "../1.cls", "1.__key__"])
def test_what_is_left_out_before_a_border_is_of_no_sample(memory_folder: str, left_out: str) -> None:
    """A member that cannot be part of a sample may be called like the next one: no sample is cut there."""
    put(f"{memory_folder}/0.tar", pack_tar([("0.cls", b"0"), (left_out, b"x"), ("1.cls", b"1"), ("2.cls", b"2")]))
    [shard] = index_shards(memory_folder, on_bad_member=lambda error: None)
    url = as_listed(shard)
    parts = IterableWrapper([url.part(number, number + 1) for number in range(3)])
    found = list(ShardTarReader(parts, on_bad_member=lambda error: None))
    assert [sample["__key__"] for sample in found] == ["0", "1", "2"]


def test_the_manifest_tells_the_checksum_of_each_index(memory_folder: str) -> None:
    """And of its keys; of writers, and of those who index the shards of others. Readers refuse another index."""
    written = write_small_shards(memory_folder, num_shards=2, samples_per_shard=6)
    manifest = get(f"{memory_folder}/index.json")
    assert [shard.index_crc32 for shard in load_manifest(manifest, f"{memory_folder}/index.json")] == [
        zlib.crc32(get(f"{memory_folder}/00000{number}.tar.idx")) for number in range(2)
    ]
    index_shards(memory_folder, overwrite=True)
    assert get(f"{memory_folder}/index.json") == manifest
    assert [shard.keys_crc32 for shard in load_manifest(manifest, f"{memory_folder}/index.json")] == [
        zlib.crc32(get(f"{memory_folder}/00000{number}.tar.keys")) for number in range(2)
    ]
    index = bytearray(get(f"{memory_folder}/000001.tar.idx"))
    index[8:16] = struct.pack("<Q", struct.unpack_from("<Q", index, 8)[0] + 1024)  # a member later
    put(f"{memory_folder}/000001.tar.idx", bytes(index))
    refused = rf"000001\.tar\.idx has the CRC-32 [0-9a-f]{{8}}, and the shard's manifest has [0-9a-f]{{8}}.*{REMEDY}"
    pipe = stream_shards(f"{memory_folder}/index.json", seed=None, world=World(2, 3))
    with pytest.raises(ManifestError, match=refused):
        list(pipe)
    dataset = ShardedDataset(memory_folder)
    assert dataset[0] == written[0]
    with pytest.raises(ManifestError, match=refused):
        dataset[7]
    assert "000001.tar.idx" in verify_shards(memory_folder).faults[0].url


def test_a_compressed_shard_has_no_checksum_of_index_or_keys(memory_folder: str) -> None:
    """As it has neither."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar.gz") as writer:
        writer.write({"__key__": "a", "cls": 1})
    assert writer.shards[0].index_crc32 is None
    assert writer.shards[0].keys_crc32 is None
    assert "_crc32" not in get(f"{memory_folder}/index.json").decode()


GOOD = [0, 1024, 2560, 4096, 6144, 8192, 10240, 12800]
PARTS = [(0, 3), (2, 4), (4, NUM_SAMPLES)]
OTHERS: dict[str, list[int]] = {
    "empty": [],
    "one": [0],
    "short": GOOD[:-1],
    "long": [*GOOD, 20_000],
    "very long": GOOD * 100,
    "zeros": [0] * 8,
    "beyond the shard": [10**15] * 8,
    "negative": [2**64 - 1] * 8,
}


def check_refused(url: RemoteUrl, first: int, last: int) -> None:
    with pytest.raises(ManifestError, match=r"0\.tar\.idx.*torchdata-remote manifest --overwrite") as caught:
        wanted(url.part(first, last))
    assert caught.value.url == url


@pytest.mark.parametrize(("name", "part"), zip(OTHERS, cycle(PARTS)))
def test_an_index_of_something_else_is_refused(memory_folder: str, name: str, part: tuple[int, int]) -> None:
    """By its length, or by its numbers; the error has both sides' figures and says what to do."""
    url = write_shard(memory_folder)
    put(index_url(url), dump_index(OTHERS[name]))
    check_refused(url, *part)


def test_an_index_that_runs_backwards_is_refused(memory_folder: str) -> None:
    """Where both of its entries are asked for."""
    url = write_shard(memory_folder)
    put(index_url(url), dump_index(GOOD[::-1]))
    check_refused(url, 2, 4)


@pytest.mark.parametrize(("num_bytes", "part"), zip([1, 17, 8 * NUM_SAMPLES + 1, 8 * NUM_SAMPLES + 7], cycle(PARTS)))
def test_an_index_that_was_cut_is_refused(memory_folder: str, num_bytes: int, part: tuple[int, int]) -> None:
    """Also in the middle of a number."""
    url = write_shard(memory_folder)
    put(index_url(url), get(index_url(url))[:num_bytes])
    check_refused(url, *part)


@pytest.mark.parametrize(("first", "last"), PARTS)
def test_without_a_size_the_numbers_are_looked_at_all_the_same(memory_folder: str, first: int, last: int) -> None:
    """If the size of the shard is unknown, a range is found, and an index of zeros is refused."""
    url = write_shard(memory_folder)
    bare = RemoteUrl(str(url), num_samples=NUM_SAMPLES)
    assert wanted(bare.part(first, last)) == wanted(url.part(first, last))
    put(index_url(url), bytes(8 * NUM_SAMPLES))
    with pytest.raises(ManifestError):
        wanted(bare.part(first, last))


@pytest.mark.parametrize("samples", [(0, 8), (3, 3), (5, 2)])
def test_samples_that_are_not_in_the_shard_are_refused(samples: tuple[int, int]) -> None:
    """Before anything is asked for."""
    with pytest.raises(ManifestError, match=f"no samples {samples[0]} to {samples[1]} in a shard of 7"):
        wanted(RemoteUrl("memory://no/such.tar", 10_000, num_samples=7).part(*samples))


@given(st.binary(max_size=100), st.integers(0, NUM_SAMPLES - 1))
@settings(max_examples=50)
def test_any_index_is_refused_or_leads_to_bytes_in_the_shard(data: bytes, first: int) -> None:
    """No bytes of an index lead outside the shard, or to another exception."""
    url = RemoteUrl(f"memory://{uuid.uuid4().hex}/0.tar", 5_000, num_samples=NUM_SAMPLES)
    put(index_url(url), data)
    with contextlib.suppress(ManifestError):
        start, stop = wanted(url.part(first, first + 1))
        assert 0 <= start < (5_000 if stop is None else stop) <= 5_000
    fsspec.filesystem("memory").rm(index_url(url))


def offsets_of(url: RemoteUrl) -> list[int]:
    found: list[int] = read_offsets(url, StorageOptions(), RetryPolicy()).tolist()
    return found


def test_read_offsets_returns_the_offsets_of_all_samples(memory_folder: str) -> None:
    """From the first byte to the last one's end: the same places as those of any part."""
    url = write_shard(memory_folder)
    offsets = offsets_of(url)
    assert len(offsets) == NUM_SAMPLES + 1
    assert offsets[0] == 0
    for number in range(NUM_SAMPLES):
        start, stop = wanted(url.part(number, number + 1))
        assert (start, stop) == (offsets[number], None if number == NUM_SAMPLES - 1 else offsets[number + 1])


def test_read_offsets_refuses_a_missing_index(memory_folder: str) -> None:
    """The same error as for a part: which object lacks, and the command."""
    url = write_shard(memory_folder)
    fsspec.filesystem("memory").rm(index_url(url))
    with pytest.raises(ManifestError, match=r"0\.tar\.idx is missing.*torchdata-remote manifest --overwrite") as caught:
        offsets_of(url)
    assert caught.value.url == url
    assert caught.value.__cause__ is not None


WRONG = OTHERS | {
    "backwards": GOOD[::-1],
    "twice the same": [*GOOD[:3], GOOD[2], *GOOD[4:]],
    "not of blocks": [*GOOD[:3], GOOD[3] + 1, *GOOD[4:]],
    "ends behind the shard": [*GOOD[:-1], 10**9],
}


@pytest.mark.parametrize("offsets", WRONG.values(), ids=WRONG.keys())
def test_read_offsets_refuses_an_index_of_something_else(memory_folder: str, offsets: list[int]) -> None:
    """Wherever in the index they are."""
    url = write_shard(memory_folder)
    put(index_url(url), dump_index(offsets))
    with pytest.raises(ManifestError, match=r"0\.tar\.idx.*torchdata-remote manifest --overwrite") as caught:
        offsets_of(url)
    assert caught.value.url == url


@given(st.binary(max_size=100))
@settings(max_examples=50)
def test_any_index_is_refused_or_has_offsets_in_the_shard(data: bytes) -> None:
    """Or it is an error of ours."""
    url = RemoteUrl(f"memory://{uuid.uuid4().hex}/0.tar", 5_000, num_samples=2)
    put(index_url(url), data)
    with contextlib.suppress(ManifestError):
        first, second, end = offsets_of(url)
        assert 0 <= first < second < end <= 5_000
    fsspec.filesystem("memory").rm(index_url(url))
