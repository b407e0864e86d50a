"""Archives without a sample, as writers leave them, are passed over; objects of zeros for a shard are errors."""

from __future__ import annotations

import gzip
import io
import json
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset import TarWriter

import torchdata_remote as tdr
from tests.support.archive_bytes import make_header, pack_tar
from tests.support.archives import bare, pack_zip, reader, refusal
from tests.support.shard_places import Place, memory_place
from torchdata_remote.cli import main
from torchdata_remote.errors import ShardReadError

SHARD = pack_tar([("a.txt", b"a"), ("b.txt", b"b")])


def by_webdataset() -> bytes:
    buffer = io.BytesIO()
    TarWriter(buffer).close()
    return buffer.getvalue()


EMPTY = {
    "of webdataset": by_webdataset(),
    "two blocks": bytes(1_024),
    "compressed": gzip.compress(bytes(10_240)),
    "a folder": make_header(b"a/", kind=b"5") + bytes(1_024),
    "10,000 global headers": make_header(b"a", kind=b"g") * 10_000 + bytes(1_024),
    "a meta member": pack_tar([("__meta__", b"{}")]),
}


def place_with(*shards: bytes) -> Place:
    place = memory_place()
    place.put({f"{number}.tar": data for number, data in enumerate(shards)})
    return place


@pytest.mark.parametrize("data", EMPTY.values(), ids=EMPTY.keys())
def test_archives_without_a_sample_are_passed_over_with_one_message(data: bytes) -> None:
    """All samples of the others are read, and the empty ones are counted; no policy passes over damaged shards."""
    pipe: Any = tdr.stream_shards(place_with(data, SHARD, data, SHARD, data).url, shuffle=False)
    with pytest.warns(RuntimeWarning, match=r"0\.tar: an archive without a single sample") as said:
        assert [sample["__key__"] for sample in pipe] == ["a", "b"] * 2
    assert sum("without a single sample" in str(one.message) for one in said) == 1
    assert (pipe.skipped.num_empty, pipe.skipped.shards) == (3, {})


def test_empty_zips_and_archives_inside_one_are_passed_over() -> None:
    zips = reader(pack_zip([]), "zip")
    tars = reader(pack_tar([("x.tar", bytes(10_240)), ("y.tar", SHARD)]), nested=True)
    with pytest.warns(RuntimeWarning, match="an archive without a single sample"):
        assert list(zips) == []
    with pytest.warns(RuntimeWarning, match=r"in 'x\.tar': an archive without a single sample"):
        assert [sample["__key__"] for sample in tars] == ["y/a", "y/b"]
    assert zips.skipped.num_empty == tars.skipped.num_empty == 1


@given(num_bytes=st.integers(1, 50_000).filter(lambda number: number not in (1_024, 10_240)), packed=st.booleans())
def test_zeros_of_another_size_are_an_error(num_bytes: int, packed: bool) -> None:
    """As a crashed disk leaves a shard; also below a compression."""
    assert refusal(gzip.compress(bytes(num_bytes)) if packed else bytes(num_bytes))


def test_zeros_in_place_of_samples_that_the_manifest_counts_are_an_error() -> None:
    """Whatever their size; the manifest of another tool has no checksums."""
    place = place_with(SHARD, bytes(10_240))
    entry = {"url": "1.tar", "md5sum": "", "nsamples": 2, "filesize": 10_240}
    place.put({"index.json": json.dumps({"__kind__": "wids-shard-index-v1", "shardlist": [entry]}).encode()})
    with pytest.raises(ShardReadError, match=r"1\.tar: .*Its manifest counts 2 samples: write the shard again"):
        list(tdr.stream_shards(f"{place.url}index.json"))


def test_commands_and_conversions_take_archives_without_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    """The manifest counts none; ranks share the samples of the others; all can be written again."""
    place = place_with(SHARD, bytes(10_240), pack_tar([("c.txt", b"c"), ("d.txt", b"d")]), bytes(1_024))
    with pytest.warns(RuntimeWarning, match="without a single sample") as said:
        assert [shard.num_samples for shard in tdr.index_shards(place.url)] == [2, 0, 2, 0]
    assert len(said) == 1
    assert main(["verify", "--quiet", place.url]) == 0
    assert "4 samples in 4 shards" in capsys.readouterr().out
    worlds = [tdr.World(rank=rank, world_size=3) for rank in range(3)]
    to = memory_place()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [list(tdr.stream_shards(f"{place.url}index.json", world=world)) for world in worlds]
        tdr.shard_dataset(place.url, to.template(), progress=False)
        chosen = bare(tdr.stream_shards(place.url, select={"keys": ["b", "d"]}))
    assert sorted(sample["__key__"] for part in parts for sample in part) == ["a", "b", "c", "d"]
    assert to.members() == {f"{key}.txt": key.encode() for key in "abcd"}
    assert sorted(sample["__key__"] for sample in chosen) == ["b", "d"]
