"""Members become values by their extension, and values members: what is written is read back equal."""

from __future__ import annotations

import builtins
import io
import json
import math
import pickle
import re
import zipfile
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from safetensors.torch import save

import torchdata_remote as tdr
from tests.support.archives import COMPRESS
from tests.support.parsing_threads import fail_literal_eval
from torchdata_remote.errors import DecodeError, EncodeError

encode = tdr.encoders.encode_member
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda leaves: st.lists(leaves, max_size=3) | st.dictionaries(st.text(max_size=3), leaves, max_size=3),
    max_leaves=6,
)
DTYPES = st.sampled_from(["uint8", "<i8", ">i4", "<f4", "bool", "<U3", "complex128", "<M8[ns]", ">f8"])


def decoded(name: str, data: Any, more: Any = None) -> Any:
    (sample,) = tdr.IterableWrapper([{"__key__": "a", "__url__": "s3://b/0.tar", name: data}]).decode_sample(more)
    return sample[name]


def refused(name: str, data: bytes, more: Any = None) -> str:
    """The message of the error, which names the member."""
    with pytest.raises(DecodeError) as caught:
        decoded(name, data, more)
    assert name in str(caught.value)
    assert "sample 'a' of s3://b/0.tar" in str(caught.value)
    return str(caught.value)


@given(data=st.binary(), extension=st.sampled_from(["jpg", "png", "cls", "json", "npy", "txt", "whatever", "a.b"]))
def test_bytes_are_written_as_they_are(data: bytes, extension: str) -> None:
    """Under every extension, whatever holds them: a JPEG is never encoded again."""
    for value in (data, bytearray(data), memoryview(data), memoryview(data + data)[: len(data)]):
        made = encode(extension, value)
        assert type(made) is bytes
        assert made == data


@given(st.integers(), st.sampled_from([np.int64, np.array, np.uint16, torch.tensor]))
def test_an_int_becomes_its_digits_and_back(number: int, kind: Any) -> None:
    """NumPy's integers are integers; so are tensors without dimensions; a line end after the digits is no matter."""
    assert decoded("cls", encode("cls", number)) == number
    assert encode("cls", kind(number % 1000)) == str(number % 1000).encode()
    assert decoded("left.cls", f"{number}\r\n".encode()) == number


@given(st.text())
def test_a_str_becomes_utf8_and_back(text: str) -> None:
    assert decoded("txt", encode("txt", text)) == text
    assert encode("cls", text) == text.encode()
    refused("txt", b"\xff" + text.encode())


@given(JSON)
def test_json_is_read_back_equal(value: Any) -> None:
    """And the same bytes are made of equal dicts; there is no NaN in JSON."""
    data = encode("json", value)
    assert decoded("json", data) == value
    json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    if isinstance(value, dict):
        assert encode("json", dict(reversed(value.items()))) == data


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@given(
    hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_side=4, min_side=0)),
    st.sampled_from("CF"),
    st.sampled_from([None, (2, 0)]),
)
def test_an_array_is_read_back_equal(array: npt.NDArray[Any], order: Any, version: Any) -> None:
    """Shape, values and order, in the byte order of this machine; it may be written to."""
    array = np.asarray(array, order=order)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    for data in (encode("npy", array), file.getvalue()):
        found = decoded("npy", data)
        expected = array.astype(array.dtype.newbyteorder("="))
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, array.shape, expected.tobytes())
        assert found.flags.writeable
        assert found.flags.c_contiguous == array.flags.c_contiguous


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_arrays_are_decoded_while_other_threads_parse(shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's parser failed by chance beside other threads; those of structured arrays are tried again."""
    left = fail_literal_eval(monkeypatch)
    for dtype in ("<f4", "|u1", "<U5", "<M8[ns]", ">f8"):
        assert decoded("npy", saved(np.zeros(shape, dtype))).shape == shape
    left[0] = 3
    structured = np.zeros(2, [("x", "<f4"), ("y", "<i2", (2,))])
    assert decoded("npy", saved(structured)).dtype == structured.dtype


@given(st.integers(6, 127), st.binary(min_size=1, max_size=4))
def test_a_damaged_header_of_an_array_is_what_numpy_reads_or_an_error(place: int, damage: bytes) -> None:
    data = saved(np.zeros((2, 3), "<f4"))
    data = data[:place] + damage + data[place + len(damage) :]
    try:
        found = decoded("npy", data)
    except DecodeError:
        return
    expected = np.load(io.BytesIO(data), allow_pickle=False)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype.newbyteorder("="))


class Harmful:
    """What a pickle may run."""

    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Harmful, "ran", True)


def torch_saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


OBJECTS = saved(np.array([Harmful()], dtype=object), allow_pickle=True)
EIGHT = saved(np.zeros(8))
NPZ = io.BytesIO()
np.savez(NPZ, a=np.arange(3))
TWO_OF_ONE_NAME = io.BytesIO()
with zipfile.ZipFile(TWO_OF_ONE_NAME, "w") as archive:
    for member in ("a.npy", "a"):
        archive.writestr(member, EIGHT)
PICKLED = io.BytesIO()
np.savez(PICKLED, a=np.array([{}], object))
VALUE: dict[str, Any] = {"x": torch.ones(2), "n": [1, "a"]}
REFUSED: list[tuple[str, bytes, str]] = [
    *(("cls", data, "invalid literal") for data in (b"", b"cat", b"1.5", b"0x10", b"1 2")),
    ("json", b"{", "Expecting"),
    *(("npy", data, "allow_pickle") for data in (OBJECTS, OBJECTS[OBJECTS.index(b"\n") + 1 :])),
    ("npy", NPZ.getvalue(), "npy"),
    (
        "npy",
        EIGHT.replace(b"(8,), }", b"(9999999999999,), }").replace(b" " * 12 + b"\n", b"\n"),
        "79,999,999,999,992 bytes, of which 64",
    ),
    (
        "npy",
        EIGHT.replace(b"(8,), }", b"(-1,), }").replace(b" " * 12 + b"\n", b" " * 11 + b"\n"),
        "an array of shape (-1,)",
    ),
    *(("npy", EIGHT[:end], "") for end in range(0, len(EIGHT), 7)),
    ("npz", PICKLED.getvalue(), "allow_pickle is off"),
    ("npz", TWO_OF_ONE_NAME.getvalue(), "two of its arrays have the same name"),
    *(
        ("npz", data, "")
        for data in (b"", b"PK\x03\x04", NPZ.getvalue()[:-30], NPZ.getvalue().replace(b"NUMPY", b"NUMPX"))
    ),
    (
        "npz",
        NPZ.getvalue()
        .replace(b"PK\x03\x04\x2d\0\0", b"PK\x03\x04\x2d\0\1")
        .replace(b"PK\x01\x02\x2d\x03\x2d\0\0", b"PK\x01\x02\x2d\x03\x2d\0\1"),
        "no npz archive, or damaged",
    ),
    ("safetensors", save({"a": torch.ones(2)})[:-1], ""),
    *(
        (name, data, "which are not unpickled")
        for name in ("pt", "pth")
        for data in (torch_saved(Harmful()), pickle.dumps(Harmful()))
    ),
    *(("pt", data, "no file of torch.save") for data in (b"", torch_saved(VALUE)[:-20])),
    ("json.gz", b"{}", "gzip data were expected"),
    ("json.gz", COMPRESS["zstd"](b"{}"), "gzip data were expected"),
    ("json.gz", COMPRESS["gzip"](b"{}" * 500)[:-5], "json.gz"),
    ("txt.gz", COMPRESS["gzip"](bytes(100 << 20)), "max_ratio=100"),
]


@pytest.mark.parametrize(
    ("name", "data", "message"), REFUSED, ids=[f"{n}-{name}" for n, (name, *_) in enumerate(REFUSED)]
)
def test_what_cannot_be_decoded_is_refused_and_nothing_is_unpickled(name: str, data: bytes, message: str) -> None:
    """The error names member, sample and shard."""
    assert message in refused(name, data)
    assert not Harmful.ran


def test_an_npz_that_claims_more_than_4_gib_is_refused_before_memory_is_taken() -> None:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(100_000), b=np.zeros(100_000))
    claims = bytearray(file.getvalue())
    for found in re.finditer(b"PK\x01\x02", file.getvalue()):
        claims[found.start() + 24 : found.start() + 28] = (0x80000000).to_bytes(4, "little")
    assert decoded("npz", file.getvalue())["b"].shape == (100_000,)
    assert "no npz archive" in refused("npz", bytes(claims)[:-1])
    claims[file.getvalue().index(b"PK\x01\x02") + 24] = 1
    assert "claim 4,294,967,297 bytes (limit 4,294,967,296)" in refused("npz", bytes(claims))


@pytest.mark.parametrize("compress", [np.savez, np.savez_compressed])
def test_npz_is_a_dict_of_arrays(compress: Any) -> None:
    arrays = {"boxes": np.arange(8.0).reshape(2, 4), "cls": np.array(3), "none": np.zeros((0, 2), np.int8)}
    compress(file := io.BytesIO(), **arrays)
    found = decoded("npz", file.getvalue())
    assert list(found) == list(arrays)
    for name, one in arrays.items():
        assert found[name].dtype == one.dtype
        assert np.array_equal(found[name], one)
        assert found[name].flags.writeable


def test_files_of_tensors_are_loaded() -> None:
    tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    found = decoded("safetensors", save(tensors))
    assert sorted(found) == ["a", "b"]
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    for name in ("pt", "pth"):
        found = decoded(name, torch_saved(VALUE))
        assert torch.equal(found["x"], VALUE["x"])
        assert found["n"] == [1, "a"]


def test_without_a_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith(("safetensors", "av")):
            raise ImportError(name)
        return imported(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert "pip install 'torchdata_remote[tensors]'" in refused("safetensors", b"")
    for decoder in (tdr.decoders.video(), tdr.decoders.audio()):
        with pytest.raises(ImportError, match=r"pip install 'torchdata_remote\[media\]'"):
            decoder(b"")


@pytest.mark.parametrize(("ending", "name"), [("gz", "gzip"), ("bz2", "bzip2"), ("xz", "xz"), ("zst", "zstd")])
@given(value=JSON)
def test_a_compressed_member_is_decoded_by_the_inner_extension(ending: str, name: str, value: Any) -> None:
    """Complete extensions first."""
    data = COMPRESS[name](json.dumps(value).encode())
    assert decoded(f"json.{ending}", data) == value
    assert decoded(f"left.json.{ending}", data) == value
    assert decoded(f"left.json.{ending}", data, {"left.json": len}) == len(json.dumps(value))


def test_other_members_stay_bytes() -> None:
    """``nii.gz``, ``gz``; and those for which the user says so."""
    data = COMPRESS["gzip"](b"3")
    for name in ("nii.gz", "gz", "tar.gz", "bin"):
        assert decoded(name, data) == data
    assert decoded("cls.gz", data) == 3
    for more in ({"cls.gz": bytes}, {"gz": bytes}):
        assert decoded("cls.gz", data, more) == data
    assert decoded("nii.gz", data, {"nii": tdr.decoders.text}) == "3"
    for name in ("npz", "safetensors", "pt", "pth", "jpg"):
        assert decoded(name, b"x", {name: bytes}) == b"x"


UNWRITABLE = [
    *(("cls", value) for value in (True, np.True_, 1.0, None, [1], np.array([3]))),
    *(("jpg", value) for value in (np.zeros((2, 2, 3), np.uint8), Image.new("RGBA", (1, 1)), "path.jpg", 3)),
    *(("npy", value) for value in (np.array([object()]), [1, 2], "a", 3)),
    *(("json", value) for value in ({1, 2}, object(), math.nan, math.inf)),
    *(("bin", Image.new("L", (1, 1))), ("txt", "\ud800")),
]


@pytest.mark.parametrize(("extension", "value"), UNWRITABLE, ids=range(len(UNWRITABLE)))
def test_a_value_without_a_plain_encoding_is_refused(extension: str, value: Any) -> None:
    """No guess is written; the error names type and extension."""
    with pytest.raises(EncodeError) as caught:
        encode(extension, value)
    assert type(value).__name__ in str(caught.value)
    assert repr(extension) in str(caught.value)


# Size of samples


@dataclass
class Pair:
    """Two values."""

    first: Any
    second: Any


CONTENTS: list[Any] = [bytes(1_000_000), bytearray(1_000_000), memoryview(bytes(1_000_000)), "x" * 1_000_000]
CONTENTS += [np.zeros((10, 25_000), np.float32), torch.zeros(10, 25_000), Image.new("RGB", (600, 556))]
CONTENTS += [io.BytesIO(bytes(1_000_000)), array("f", range(250_000)), Pair(bytes(600_000), ["x" * 400_000])]
CONTENTS += [[bytes(500_000), bytes(500_000)], {"a": bytes(500_000), "b": (1, "x" * 500_000)}]


@pytest.mark.parametrize("value", CONTENTS, ids=[str(type(value).__name__) for value in CONTENTS])
def test_content_counts_in_a_buffer_wherever_it_is(value: Any) -> None:
    """``shuffle_samples(max_buffer_bytes=)`` holds as many samples as fit, of a MB each; a view counts with its own."""
    pulled = 0

    def source() -> Any:
        nonlocal pulled
        for number in range(20):
            pulled += 1
            yield {"__key__": str(number), "x": value, "view": np.zeros(1_000_000, np.uint8)[:10]}

    pipe = tdr.IterableWrapper(source(), deepcopy=False)
    samples = iter(pipe.shuffle_samples(buffer_size=1000, max_buffer_bytes=10_200_000, seed=0))
    next(samples)
    assert pulled in (5, 6)  # half of the memory is that of the next block
