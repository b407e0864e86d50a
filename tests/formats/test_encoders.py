from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from torchdata_remote.errors import EncodeError
from torchdata_remote.formats.decoders import DEFAULT_DECODERS, npy, rgb, text
from torchdata_remote.formats.encoders import encode_member

LOSSLESS = ["png", "webp", "bmp", "tif", "tiff", "ppm", "seg.png"]
IMAGES = hnp.arrays(np.uint8, st.tuples(st.integers(1, 8), st.integers(1, 8), st.just(3)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda leaves: st.lists(leaves, max_size=3) | st.dictionaries(st.text(max_size=3), leaves, max_size=3),
    max_leaves=6,
)


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, "JPEG", quality=31)
    return buffer.getvalue()


@given(data=st.binary(), extension=st.sampled_from(["jpg", "png", "cls", "json", "npy", "txt", "whatever", "a.b"]))
def test_bytes_stay_as_they_are(data: bytes, extension: str) -> None:
    """Under every extension, and whatever holds them."""
    for value in (data, bytearray(data), memoryview(data), memoryview(data + data)[: len(data)]):
        encoded = encode_member(extension, value)
        assert type(encoded) is bytes
        assert encoded == data


def test_a_jpeg_is_never_encoded_again() -> None:
    """Each encoding loses something, so the bytes of a file go through untouched."""
    assert encode_member("jpg", _jpeg()) == _jpeg()


@given(pixels=IMAGES, extension=st.sampled_from(LOSSLESS))
def test_an_image_is_read_back_equal(pixels: npt.NDArray[np.uint8], extension: str) -> None:
    """Every pixel, in every format that promises it."""
    assert np.array_equal(np.asarray(rgb(encode_member(extension, Image.fromarray(pixels)))), pixels)


@pytest.mark.parametrize("extension", ["png", "webp", "tif"])
def test_the_colour_of_a_transparent_pixel_is_kept(extension: str) -> None:
    """Decoding drops alpha, so that this colour is what training sees: no encoder may blacken it."""
    image = Image.new("RGBA", (4, 4), (200, 100, 50, 0))
    assert np.asarray(rgb(encode_member(extension, image)))[0, 0].tolist() == [200, 100, 50]


def test_a_jpeg_is_close_to_its_image() -> None:
    """JPEG at a quality at which a smooth picture keeps its values within a few steps."""
    ramp = np.tile(np.linspace(0, 255, 32, dtype=np.uint8), (32, 1))
    for extension in ("jpg", "jpeg"):
        got = np.asarray(rgb(encode_member(extension, Image.fromarray(ramp))))[..., 0].astype(int)
        assert np.abs(got - ramp).max() <= 4


@pytest.mark.parametrize(
    ("extension", "image_format"),
    [
        ("jpg", "JPEG"),
        ("jpeg", "JPEG"),
        ("png", "PNG"),
        ("webp", "WEBP"),
        ("bmp", "BMP"),
        ("gif", "GIF"),
        ("tif", "TIFF"),
        ("tiff", "TIFF"),
        ("ppm", "PPM"),
        ("pgm", "PPM"),
        ("mask.png", "PNG"),
    ],
)
def test_the_extension_names_the_format(extension: str, image_format: str) -> None:
    """The last part of it does, and the same image gives the same bytes."""
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 12)).convert("L")
    data = encode_member(extension, image)
    assert Image.open(io.BytesIO(data)).format == image_format
    assert encode_member(extension, image.copy()) == data
    assert extension.rpartition(".")[2] in DEFAULT_DECODERS, "what is written can be read"


@given(st.integers())
def test_an_int_becomes_its_digits(number: int) -> None:
    """And ``cls`` reads it back; NumPy's integers are integers."""
    assert DEFAULT_DECODERS["cls"](encode_member("cls", number)) == number
    for integer in (np.int64, np.array):
        assert encode_member("cls", integer(number % 1000)) == str(number % 1000).encode()
    assert encode_member("cls", np.uint8(number % 256)) == str(number % 256).encode()


@given(st.text())
def test_a_str_becomes_utf8(string: str) -> None:
    """And ``txt`` reads it back."""
    assert text(encode_member("txt", string)) == string
    assert encode_member("cls", string) == string.encode()


@given(JSON)
def test_json_is_read_back_equal(value: Any) -> None:
    """Everything that JSON knows, ``None``, booleans and floats among it."""
    assert DEFAULT_DECODERS["json"](encode_member("json", value)) == value


def test_json_does_not_depend_on_the_order_of_a_dict() -> None:
    """Equal values give equal bytes."""
    assert encode_member("json", {"a": 1, "b": 2}) == encode_member("json", {"b": 2, "a": 1})


@given(hnp.arrays(st.sampled_from(["uint8", "<i8", "<f4", "bool"]), hnp.array_shapes(min_dims=0, max_side=4)))
def test_an_array_is_read_back_equal(array: npt.NDArray[Any]) -> None:
    """Shape, type and bytes."""
    got = npy(encode_member("npy", array))
    assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize(
    ("extension", "value"),
    [
        ("cls", True),
        ("cls", np.True_),
        ("cls", 1.0),
        ("cls", None),
        ("cls", [1]),
        ("cls", np.array([3])),
        ("jpg", np.zeros((2, 2, 3), np.uint8)),
        ("npy", np.array([object()])),
        ("npy", [1, 2]),
        ("bin", Image.new("L", (1, 1))),
        ("jpg", Image.new("RGBA", (1, 1))),
        ("json", {1, 2}),
        ("json", object()),
        ("txt", "\ud800"),
    ],
)
def test_a_value_without_a_plain_encoding_is_refused(extension: str, value: Any) -> None:
    """No guess is written; the error names type and extension."""
    with pytest.raises(EncodeError) as caught:
        encode_member(extension, value)
    assert type(value).__name__ in str(caught.value)
    assert repr(extension) in str(caught.value)


def test_the_cause_of_a_failed_encoding_is_kept() -> None:
    """What Pillow said is in the message and is the ``__cause__``."""
    with pytest.raises(EncodeError, match="RGBA") as caught:
        encode_member("jpg", Image.new("RGBA", (1, 1)))
    assert isinstance(caught.value.__cause__, OSError)


def test_what_is_written_as_json_can_be_read_as_json() -> None:
    """A str that is not JSON already is refused or made JSON, and there is no NaN in JSON."""
    for value in ("hello", '{"a": 1}', "3", float("nan"), float("inf")):
        try:
            data = encode_member("json", value)
        except EncodeError:
            continue
        json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
