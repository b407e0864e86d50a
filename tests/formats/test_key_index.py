"""The file of keys beside a shard."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.formats.key_index import KeyIndex, dump_keys, key_index, keys_url, parse_keys

SAMPLES = [("a/1", [("cls", 512, 1), ("jpg", 1536, 700)]), ("a/2", [("jpg", 3584, 0)])]


@st.composite
def indexes(draw: st.DrawFn) -> KeyIndex:
    texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)
    keys = draw(st.lists(texts, max_size=20))
    at, samples = 0, []
    for key in keys:
        members = []
        for extension in draw(
            st.lists(st.sampled_from(["jpg", "cls", "seg.png"]), min_size=1, max_size=3, unique=True)
        ):
            start, size = at + 512 * draw(st.integers(1, 5)), draw(st.integers(0, 10_000))
            members.append((extension, start, size))
            at = start + size + -size % 512
        samples.append((key, members))
    return key_index(samples)


@given(index=indexes())
def test_comes_back(index: KeyIndex) -> None:
    """What was encoded is decoded, and the same keys give the same bytes."""
    found = parse_keys(dump_keys(index), num_samples=len(index.keys))
    assert (list(found.keys), list(found.extensions)) == (list(index.keys), list(index.extensions))
    for name in ("counts", "members", "starts", "sizes"):
        assert np.array_equal(getattr(found, name), getattr(index, name))
    assert dump_keys(found) == dump_keys(index)


def test_ranges_of_members() -> None:
    """A member takes its headers, its data and its padding; members follow each other."""
    index = key_index(SAMPLES)
    assert index.begins().tolist() == [0, 1024, 2560]
    assert index.stops().tolist() == [1024, 2560, 3584]
    assert index.firsts().tolist() == [0, 2, 3]


def test_name() -> None:
    """The file is beside the shard."""
    assert keys_url("s3://b/0.tar") == "s3://b/0.tar.keys"


def test_numpy_reads_it() -> None:
    """Other programs need numpy only."""
    with np.load(io.BytesIO(dump_keys(key_index(SAMPLES))), allow_pickle=False) as found:
        assert bytes(found["keys"]).split(b"\0") == [b"a/1", b"a/2"]


@pytest.mark.parametrize(
    ("data", "known", "message"),
    [
        (b"", {}, "is not a file of keys"),
        (dump_keys(key_index(SAMPLES))[:-40], {}, "is not a file of keys"),
        (dump_keys(key_index(SAMPLES)), {"num_samples": 3}, "of a shard of 3 samples"),
        (dump_keys(key_index(SAMPLES)), {"shard_bytes": 3000}, "of a shard of 3,000 bytes"),
    ],
)
def test_of_another_shard(data: bytes, known: dict[str, int], message: str) -> None:
    """What is damaged or of another shard is refused."""
    with pytest.raises(ValueError, match=message):
        parse_keys(data, **known)


@pytest.mark.parametrize(
    ("column", "value"), [("counts", [1, 1]), ("counts", [3, 0]), ("members", [0, 1, 9]), ("gaps", [512, 100, 512])]
)
def test_damaged_columns(column: str, value: list[int]) -> None:
    """Columns that do not fit each other are refused."""
    with np.load(io.BytesIO(dump_keys(key_index(SAMPLES)))) as found:
        columns = {**found, column: np.array(value, np.uint16)}
    buffer = io.BytesIO()
    np.savez(buffer, **columns)
    with pytest.raises(ValueError, match="has"):
        parse_keys(buffer.getvalue())
