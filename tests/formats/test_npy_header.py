"""Headers of arrays are those that numpy reads, also while other threads parse Python."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.support.parsing_threads import fail_literal_eval
from torchdata_remote.formats.decoders import npy
from torchdata_remote.formats.key_index import dump_keys, key_index, parse_keys
from torchdata_remote.formats.npy_header import npy_header


def _saved(array: Any, version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


@pytest.fixture
def other_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let ``literal_eval`` fail, as by chance where other threads use it; the list has the number of failures left."""
    return fail_literal_eval(monkeypatch)


@pytest.mark.usefixtures("other_threads")
def test_keys_are_read_while_other_threads_parse() -> None:
    """Files of keys are read in 16 threads: an intact one was an error now and then, which called it damaged."""
    index = key_index([("a", [("jpg", 512, 3)])])
    assert list(parse_keys(dump_keys(index)).keys) == ["a"]


@pytest.mark.usefixtures("other_threads")
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", ["<f4", "|u1", "<i8", "<U5", "<M8[ns]", "|b1", "<c16", ">f8"])
def test_arrays_are_decoded_while_other_threads_parse(shape: tuple[int, ...], dtype: str) -> None:
    """``decode_sample`` decodes in threads, and would skip such a sample under ``skip_with_warning``."""
    array = np.zeros(shape, dtype)
    for order in "CF":
        got = npy(_saved(np.asarray(array, order=order)))  # type: ignore[call-overload]
        assert got.dtype == array.dtype.newbyteorder("=")
        assert got.shape == shape


def test_other_headers_are_tried_again(other_threads: list[int]) -> None:
    """Those of structured arrays are parsed by numpy."""
    array = np.zeros(2, [("x", "<f4"), ("y", "<i2", (2,))])
    other_threads[0] = 3
    assert npy(_saved(array)).dtype == array.dtype


@given(
    arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0)), st.sampled_from([None, (2, 0)])
)
def test_headers_are_those_that_numpy_reads(array: Any, version: Any) -> None:
    data = _saved(array, version)
    shape, fortran_order, dtype, size = npy_header(data)
    file = io.BytesIO(data)
    read = np.lib.format.read_array_header_2_0 if np.lib.format.read_magic(file) == (2, 0) else None
    assert (shape, fortran_order, dtype) == (read or np.lib.format.read_array_header_1_0)(file)
    assert size == file.tell()


@given(st.integers(6, 127), st.binary(min_size=1, max_size=4))
def test_damaged_headers_are_those_of_numpy_or_errors(place: int, damage: bytes) -> None:
    data = _saved(np.zeros((2, 3), "<f4"))
    data = data[:place] + damage + data[place + len(damage) :]
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        expected = getattr(np.lib.format, f"read_array_header_{1 if version == (1, 0) else 2}_0")(file)
    except Exception:
        with pytest.raises(Exception, match=r"."):
            npy_header(data)
    else:
        assert npy_header(data) == (*expected, file.tell())
