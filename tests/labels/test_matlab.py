"""MATLAB 5 files, beside scipy, and damaged."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import scipy.io  # type: ignore[import-untyped]
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchdata_remote.labels._matlab import read_structs

TEXTS = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), max_size=30)
NUMBERS = (
    st.sampled_from([0.0, 1.0, 1000.0, 2.5])
    | st.integers(0, 2**16 - 1).map(np.uint16)
    | st.integers(-5, 5).map(np.int32)
)


def mat(rows: list[tuple[Any, ...]], *, compressed: bool = True, name: str = "synsets") -> bytes:
    structs = np.empty((len(rows), 1), dtype=[(field, object) for field in ("id", "WNID", "words", "children")])
    for index, row in enumerate(rows):
        structs[index, 0] = row
    file = io.BytesIO()
    scipy.io.savemat(file, {"before": np.eye(3), name: structs, "after": "text"}, do_compression=compressed)
    return file.getvalue()


ROWS = [(float(i), f"n{i:08d}", f"word {i}, é" * (i % 7), np.zeros((1, i % 3))) for i in range(1, 30)]
FILES = {compressed: mat(ROWS, compressed=compressed) for compressed in (True, False)}


@given(rows=st.lists(st.tuples(NUMBERS, TEXTS, TEXTS, st.just(np.eye(2))), max_size=4), compressed=st.booleans())
def test_files_of_scipy_are_read(rows: list[tuple[Any, ...]], compressed: bool) -> None:
    """Numbers of any type, texts of any script; arrays are no value."""
    found = read_structs(mat(rows, compressed=compressed), "synsets")
    assert found == [dict(zip(("id", "WNID", "words", "children"), (*row[:3], None), strict=True)) for row in rows]
    assert read_structs(mat(rows, compressed=compressed), "other") is None


def _element(order: str, kind: int, data: bytes) -> bytes:
    return struct.pack(f"{order}2I", kind, len(data)) + data + bytes(-len(data) % 8)


def _array(order: str, array_class: int, name: bytes, *parts: bytes, size: int = 1) -> bytes:
    flags = _element(order, 6, struct.pack(f"{order}2I", array_class, 0))
    dimensions = _element(order, 5, struct.pack(f"{order}2i", 1, size))
    return _element(order, 14, flags + dimensions + _element(order, 1, name) + b"".join(parts))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders_are_read(order: str, compressed: bool) -> None:
    """Texts in UTF-16, and numbers that are stored as smaller ones."""
    text = "é\U0001f98a".encode("utf-16-le" if order == "<" else "utf-16-be")
    fields = _element(order, 5, struct.pack(f"{order}i", 5)) + _element(order, 1, b"id\0\0\0WNID\0")
    number = _array(order, 6, b"", _element(order, 3, struct.pack(f"{order}h", -300)))
    data = _array(order, 2, b"synsets", fields, number, _array(order, 4, b"", _element(order, 4, text), size=3))
    if compressed:
        packed = zlib.compress(data)
        data = struct.pack(f"{order}2I", 15, len(packed)) + packed
    head = b"MATLAB".ljust(124) + struct.pack(f"{order}H", 0x0100) + (b"IM" if order == "<" else b"MI")
    assert read_structs(head + data, "synsets") == [{"id": -300, "WNID": "é\U0001f98a"}]


def test_hdf5_is_refused_with_advice() -> None:
    """Version 7.3 is another format."""
    data = b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM" + bytes(384) + b"\x89HDF"
    with pytest.raises(ValueError, match=r"7\.3.*'-v7'"):
        read_structs(data, "synsets")


PLACES = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=3)


@settings(max_examples=500)
@given(compressed=st.booleans(), changes=PLACES, end=st.none() | st.integers(0, 1 << 20))
@example(compressed=True, changes=[(132, 255), (135, 255)], end=None)
def test_damaged_file_is_a_value_error_or_correct(
    compressed: bool, changes: list[tuple[int, int]], end: int | None
) -> None:
    """No other exception; data with a checksum are correct."""
    data = bytearray(FILES[compressed])
    for place, value in changes:
        data[place % len(data)] = value
    del data[len(data) if end is None else end % len(data) :]
    try:
        found = read_structs(bytes(data), "synsets")
    except ValueError:
        return
    if compressed:
        assert found in (None, read_structs(FILES[True], "synsets"))


@pytest.mark.parametrize("filling", [bytes(8), struct.pack("<2I", 14, 0), struct.pack("<2I", 1, 1 << 31)])
def test_decompression_bomb_is_an_error_in_bounded_memory(filling: bytes) -> None:
    """Compressed elements without end, or one that claims gigabytes."""
    packed = zlib.compress(filling * (1 << 22))
    data = b"MATLAB".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + struct.pack("<2I", 15, len(packed)) + packed
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"compressed data|elements|claims"):
            read_structs(data, "synsets")
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
