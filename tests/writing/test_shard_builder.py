"""A shard while it is filled."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import EncodeError, ShardWriteError
from torchdata_remote.formats.manifest import ShardInfo
from torchdata_remote.formats.tar import END_OF_ARCHIVE
from torchdata_remote.writing.packed_sample import join_samples, pack_sample
from torchdata_remote.writing.shard_builder import CHUNK_BYTES, ShardBuilder


class Pending:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.data = b""
        self.committed = False

    def write(self, data: bytes) -> None:
        self.data += data

    def commit(self) -> None:
        self.committed = True

    def abort(self) -> None:
        self.data = b""


@given(st.lists(st.binary(max_size=2_000), max_size=20))
def test_the_info_holds_samples_bytes_and_md5_of_the_object(payloads: list[bytes]) -> None:
    """Samples, bytes and MD5 are those of the object."""
    pending = Pending()
    shard = ShardBuilder("memory://s/0.tar", pending)
    for index, payload in enumerate(payloads):
        sample = {"__key__": f"{index}", "bin": payload, "cls": index}
        shard.add(pack_sample({**sample, "__key__": f"{index}"}))
    reported: list[ShardInfo] = []
    shard.end(lambda info, beside: reported.append(info))
    info = shard.result()
    assert pending.committed
    assert reported == [info]
    assert shard.upload.settled
    assert info.url == "memory://s/0.tar"
    assert info.num_samples == len(payloads)
    assert info.num_bytes == len(pending.data)
    assert info.md5 == hashlib.md5(pending.data).hexdigest()


@given(st.lists(st.binary(max_size=2_000), max_size=20))
def test_offsets_are_where_samples_begin(payloads: list[bytes]) -> None:
    """Each at the first header of its sample, also where that name needs a header of its own; none for the end."""
    pending = Pending()
    shard = ShardBuilder("memory://s/0.tar", pending)
    packed = [pack_sample({"__key__": f"{'n' * 60 * i}{i}", "bin": data}) for i, data in enumerate(payloads)]
    for index, sample in enumerate(packed):
        shard.add(sample)
        assert shard.num_samples == index + 1
    shard.end()
    shard.result()
    assert len(shard.offsets) == len(packed)
    ends = [*shard.offsets, shard.num_bytes][1:]
    for begin, end, sample in zip(shard.offsets, ends, packed, strict=True):
        assert pending.data[begin:end] == join_samples([sample])
    assert pending.data[shard.num_bytes :] == END_OF_ARCHIVE


def test_packed_size_counts_headers_and_padding() -> None:
    """What limits are compared with is what is written."""
    packed = pack_sample({"__key__": "a", "bin": b"x" * 513, "cls": 1})
    assert packed.num_bytes == len(join_samples([packed])) == 512 + 1024 + 512 + 512


def test_second_sample_with_a_key_is_refused() -> None:
    """The message names the shard and the key."""
    shard = ShardBuilder("memory://s/0.tar", Pending())
    shard.add(pack_sample({"__key__": "a", "cls": 1}))
    with pytest.raises(ShardWriteError, match=r"memory://s/0\.tar.*'a'"):
        shard.check_key("a")


def test_member_without_encoding_names_its_sample() -> None:
    """Among a million samples, the message says which."""
    with pytest.raises(EncodeError, match=r"Sample 'cats/7'.*'cls'"):
        pack_sample({"__key__": "cats/7", "cls": 1.5})


@given(
    sizes=st.lists(st.sampled_from([0, 1, 511, 512, 513, 8191, 8192, 8193, 20_000]), min_size=1, max_size=6),
    key=st.sampled_from(["a", "n" * 96, "n" * 101, "é", "p" * 99 + "/b"]),
)
def test_packing_does_not_depend_on_size_or_name(sizes: list[int], key: str) -> None:
    """Members that are joined at once, and others, are what tarfile reads, in order."""
    sample = {"__key__": key, **{f"m{i}": bytes([i]) * size for i, size in enumerate(sizes)}}
    packed = pack_sample(sample)
    data = join_samples([packed])
    assert packed.num_bytes == len(data)
    with tarfile.open(fileobj=io.BytesIO(data + END_OF_ARCHIVE)) as archive:
        for (name, value), member in zip(list(sample.items())[1:], archive, strict=True):
            file = archive.extractfile(member)
            assert file is not None
            assert (member.name, file.read()) == (f"{key}.{name}", value)


def test_the_extension_decides_about_compression() -> None:
    """Offsets and size so far are the tar's, size and MD5 of the info the object's."""
    pending, plain = Pending(), Pending()
    for url, taking in (("memory://s/0.tar.gz", pending), ("memory://s/0.tar", plain)):
        shard = ShardBuilder(url, taking)
        shard.add(pack_sample({"__key__": "a", "txt": b"wren " * 1000}))
        shard.end()
        info = shard.result()
        assert (shard.offsets, shard.num_bytes) == ([0], 512 + 5120)
        assert (info.num_bytes, info.md5) == (len(taking.data), hashlib.md5(taking.data).hexdigest())
    assert gzip.decompress(pending.data) == plain.data


def test_a_dropped_shard_leaves_no_object() -> None:
    """What was handed over before is taken back."""
    pending = Pending()
    shard = ShardBuilder("memory://s/0.tar", pending)
    shard.add(pack_sample({"__key__": "a", "bin": bytes(CHUNK_BYTES)}))
    shard.upload.abort()
    assert (pending.data, pending.committed) == (b"", False)
