"""The file of keys beside a shard."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

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


def _archive(**changed: np.ndarray | bytes) -> bytes:
    """Return a file of keys with other arrays, or other contents in their place."""
    with np.load(io.BytesIO(dump_keys(key_index(SAMPLES)))) as found:
        columns: dict[str, np.ndarray | bytes] = dict(found)
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


def _announced(*shape: int) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return header.getvalue()


def _array_file() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


HUGE = 1 << 62
HOSTILE = {
    "an array without an archive": _array_file(),
    "no array": _archive(sizes=b"text"),
    "announced values": _archive(sizes=_announced(10**14)),
    "announced values beyond 64 bits": _archive(sizes=_announced(10**30)),
    "counts whose sum overflows": _archive(
        keys=np.frombuffer(b"a\0b\0c\0d", np.uint8), counts=np.array([HUGE, HUGE, HUGE, HUGE + 3])
    ),
    "sizes whose sum overflows": _archive(sizes=np.array([HUGE, HUGE, 2])),
    "a size whose padding overflows": _archive(sizes=np.array([2**63 - 1, 2**63 - 1, 2**63 - 1])),
    "gaps whose sum overflows": _archive(gaps=np.array([HUGE, HUGE, 512])),
    "a negative size": _archive(sizes=np.array([1, -700, 0])),
    "encrypted": _archive().replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00"),
    "of a later zip": _archive().replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\xbf"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_file_is_an_error(data: bytes) -> None:
    """Whatever the file has, it is an error of the file, never another exception or numbers that overflowed."""
    assert len(parse_keys(_archive()).keys) == 2
    with pytest.raises(ValueError, match=r"^(is not a file of keys|has )"):
        parse_keys(data)


def test_memory_is_bounded_by_the_shard() -> None:
    """An archive that grows a thousandfold is an error before it is in memory."""
    data = _archive(keys=np.zeros(50_000_000, np.uint8))
    assert len(data) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"its arrays have more than 10,240 bytes"):
            parse_keys(data, shard_bytes=10_240)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
