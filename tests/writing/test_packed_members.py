"""Keys and members of samples that are written."""

from __future__ import annotations

import gc
import io
import tarfile
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.writing.test_shard_builder import Pending
from torchdata_remote.formats.key_index import KeyIndex, dump_keys, key_index, parse_keys
from torchdata_remote.writing.packed_sample import pack_sample
from torchdata_remote.writing.shard_builder import CHUNK_BYTES, ShardBuilder

KEYS = st.sampled_from(["", "a/", "p" * 99 + "/", "p" * 160 + "/", "n" * 300, "é/", "鳥"])
DATA = st.sampled_from([0, 1, 511, 512, 513, 8193, 70_000, CHUNK_BYTES, CHUNK_BYTES + 1]).map(bytes)
MEMBERS = st.dictionaries(
    st.sampled_from(["bin", "cls", "seg.png", "鳥"]),
    DATA | DATA.map(memoryview) | st.text(max_size=3).map(str.encode),
    min_size=1,
)


def written(samples: list[dict[str, Any]]) -> tuple[bytes, dict[str, bytes]]:
    """The tar of samples, and what is published beside it."""
    pending, shard, beside = Pending(), None, {}
    shard = ShardBuilder("memory://s/0.tar", pending)
    for sample in samples:
        shard.add(pack_sample(sample))
    shard.end(lambda info, objects: beside.update(objects))
    shard.result()
    return pending.data, beside


def by_tarfile(data: bytes) -> KeyIndex:
    """Keys and members, as Python finds them."""
    samples: dict[str, list[tuple[str, int, int]]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            folder, slash, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")
            samples.setdefault(folder + slash + stem, []).append((extension, member.offset_data, member.size))
    return key_index(list(samples.items()))


@settings(max_examples=60)
@given(keys=st.lists(KEYS, min_size=1, max_size=6), data=st.data())
def test_the_keys_are_those_that_tarfile_finds(keys: list[str], data: st.DataObject) -> None:
    """Of short and of long names, of empty members and of samples that are written in pieces."""
    samples = [{"__key__": f"{key}{number}", **data.draw(MEMBERS)} for number, key in enumerate(keys)]
    tar, beside = written(samples)
    assert beside["memory://s/0.tar.keys"] == dump_keys(by_tarfile(tar))
    found = parse_keys(beside["memory://s/0.tar.keys"], num_samples=len(samples), shard_bytes=len(tar))
    assert found.keys == [sample["__key__"] for sample in samples]


def test_a_compressed_shard_has_nothing_beside_it() -> None:
    """Its members cannot be read by ranges."""
    beside: list[object] = []
    shard = ShardBuilder("memory://s/0.tar.gz", Pending())
    shard.add(pack_sample({"__key__": "a", "cls": 1}))
    shard.end(lambda info, objects: beside.append(dict(objects)))
    assert (shard.result().keys_crc32, beside) == (None, [{}])


def test_a_builder_that_is_dropped_is_collected() -> None:
    """The thread that records members does not keep it, so its upload is aborted."""
    pending = Pending()
    shard = ShardBuilder("memory://s/0.tar", pending)
    shard.add(pack_sample({"__key__": "a", "bin": bytes(CHUNK_BYTES)}))
    shard.add(pack_sample({"__key__": "b", "cls": 1}))
    shard._flush()
    reference = weakref.ref(shard)
    shard.upload.abort()
    del shard
    gc.collect()
    assert reference() is None
    assert not pending.committed


@pytest.mark.parametrize("key", ["a\0b", "\ud800"])
def test_a_key_that_the_file_cannot_hold_is_refused(key: str) -> None:
    """Keys are separated by NUL there."""
    with pytest.raises(ValueError, match="cannot be written"):
        pack_sample({"__key__": key, "cls": 1})
