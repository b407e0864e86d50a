from __future__ import annotations

import io
import json
import math
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from torchdata_remote.decoders import DEFAULT_DECODERS, MAX_PIXELS, integer, npy, rgb, text


def _saved(image: Image.Image, image_format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=image_format, **options)
    return buffer.getvalue()


def _pixels(data: bytes) -> npt.NDArray[np.uint8]:
    image = rgb(data)
    assert image.mode == "RGB"
    return np.asarray(image)


def _noise(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def _png_that_claims(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header is sound and tells this size."""
    data = _saved(Image.new("L", (1, 1)), "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def test_gray_becomes_three_equal_channels() -> None:
    """A pixel keeps its brightness."""
    gray = _noise(5, 7)
    assert np.array_equal(_pixels(_saved(Image.fromarray(gray), "PNG")), np.stack([gray] * 3, axis=-1))


@pytest.mark.parametrize("image_format", ["PNG", "TIFF", "PPM"])
def test_16_bit_gray_is_scaled(image_format: str) -> None:
    """0 to 65,535 becomes 0 to 255, in every format that stores it; Pillow alone would clip all to white."""
    gray = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    got = _pixels(_saved(Image.fromarray(gray), image_format))
    assert got[0, :, 0].tolist() == [0, 0, 1, 128, 255]
    assert np.array_equal(got[..., 0], got[..., 1])
    assert np.array_equal(got[..., 0], got[..., 2])


def test_a_bitmap_becomes_black_and_white() -> None:
    """One bit per pixel is 0 or 255."""
    bits = Image.fromarray(np.array([[0, 255], [255, 0]], dtype=np.uint8)).convert("1")
    assert _pixels(_saved(bits, "PNG"))[..., 0].tolist() == [[0, 255], [255, 0]]


def _palette() -> Image.Image:
    image = Image.new("P", (3, 1))
    image.putdata([0, 1, 2])
    image.putpalette([250, 10, 20, 30, 240, 50, 60, 70, 230])
    return image


@pytest.mark.parametrize("image_format", ["PNG", "GIF", "BMP", "TIFF"])
def test_a_palette_is_looked_up(image_format: str) -> None:
    """Numbers of colours become the colours."""
    assert _pixels(_saved(_palette(), image_format)).tolist() == [[[250, 10, 20], [30, 240, 50], [60, 70, 230]]]


@pytest.mark.parametrize("transparency", [1, bytes([255, 0, 128])])
def test_a_palette_with_transparency_keeps_its_colours(transparency: int | bytes) -> None:
    """Both ways in which PNG says it; the colour under a transparent pixel stays; nothing warns."""
    data = _saved(_palette(), "PNG", transparency=transparency)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _pixels(data).tolist() == [[[250, 10, 20], [30, 240, 50], [60, 70, 230]]]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_dropped(mode: str) -> None:
    """The colour is what is stored, not a blend with some background."""
    image = Image.new(mode, (2, 2), (200, 100, 50, 7) if mode == "RGBA" else (200, 7))
    expected = [200, 100, 50] if mode == "RGBA" else [200, 200, 200]
    assert _pixels(_saved(image, "PNG"))[0, 0].tolist() == expected


def test_a_cmyk_jpeg_has_the_colours_that_it_was_made_from() -> None:
    """Red stays red and white stays white, within what JPEG loses."""
    for colour in ((255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)):
        data = _saved(Image.new("RGB", (16, 16), colour).convert("CMYK"), "JPEG", quality=95)
        assert Image.open(io.BytesIO(data)).mode == "CMYK"
        assert np.abs(_pixels(data)[8, 8].astype(int) - colour).max() <= 4


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_a_cut_image_is_an_error_at_any_byte(image_format: str) -> None:
    """Never a picture with a grey lower half: less than all pixels is an error."""
    data = _saved(Image.fromarray(_noise(12, 12, 3)), image_format)
    whole = _pixels(data)
    refused = 0
    for end in range(len(data)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow, about the damage
                got = _pixels(data[:end])
        except (OSError, ValueError):
            refused += 1
        else:
            assert np.array_equal(got, whole), f"cut at byte {end}"
    assert refused > len(data) * 0.9


@pytest.mark.parametrize("data", [b"", b"not an image", b"<svg/>", b"%PDF-1.4", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_what_is_no_image_is_an_error(data: bytes) -> None:
    """Among them formats that Pillow would try and this package does not let it."""
    with pytest.raises(OSError, match="cannot identify"):
        rgb(data)


@pytest.mark.parametrize(("width", "height"), [(20_000, 20_000), (MAX_PIXELS + 1, 1), (2**31 - 1, 2**31 - 1)])
def test_too_many_pixels_are_refused_before_memory_is_taken(width: int, height: int) -> None:
    """The limit is ours and in the message; the file has less than 100 bytes."""
    data = _png_that_claims(width, height)
    with pytest.raises(ValueError, match=f"{MAX_PIXELS:,}"):
        rgb(data)


def test_pixels_within_the_limit_are_not_refused() -> None:
    """Pillow's own lower limit neither refuses nor warns: this file only lacks its pixels."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(OSError, match="truncated"):
            rgb(_png_that_claims(math.isqrt(MAX_PIXELS), math.isqrt(MAX_PIXELS)))


@given(st.integers())
def test_integers_are_decimal(number: int) -> None:
    """As written, and with the newline that an editor puts after it."""
    assert integer(str(number).encode()) == number
    assert integer(f"{number}\n".encode()) == number


@pytest.mark.parametrize("data", [b"", b"cat", b"1.5", b"0x10", b"1 2"])
def test_what_is_no_integer_is_an_error(data: bytes) -> None:
    """No value is made up."""
    with pytest.raises(ValueError, match="invalid literal"):
        integer(data)


@given(st.text())
def test_text_is_utf8(string: str) -> None:
    """Every str comes back; other bytes are an error."""
    assert text(string.encode()) == string
    with pytest.raises(UnicodeDecodeError):
        text(b"\xff" + string.encode())


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda j: st.lists(j), max_leaves=5))
def test_json_is_json(value: Any) -> None:
    """What was dumped is loaded."""
    assert DEFAULT_DECODERS["json"](json.dumps(value).encode()) == value


@given(
    hnp.arrays(
        st.sampled_from(["uint8", "<i8", ">i4", "<f4", "bool", "<U3", "complex128"]),
        hnp.array_shapes(min_dims=0, max_side=4, min_side=0),
    )
)
def test_arrays_come_back_equal(array: npt.NDArray[Any]) -> None:
    """Shape, type and values, an empty array and one number included."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    got = npy(buffer.getvalue())
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()


class _Bomb:
    """Anything that runs code when it is unpickled."""

    exploded = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (_Bomb, "exploded", True)


def test_an_array_that_needs_unpickling_is_refused() -> None:
    """And nothing in it has run; a bare pickle is refused as well."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([_Bomb()], dtype=object), allow_pickle=True)
    for data in (buffer.getvalue(), buffer.getvalue()[buffer.getvalue().index(b"\n") + 1 :]):
        with pytest.raises(ValueError, match="allow_pickle"):
            npy(data)
    assert not _Bomb.exploded


def test_a_cut_array_is_an_error() -> None:
    """At any byte."""
    buffer = io.BytesIO()
    np.save(buffer, np.arange(8))
    for end in range(len(buffer.getvalue())):
        with pytest.raises((ValueError, EOFError)):
            npy(buffer.getvalue()[:end])


def test_an_archive_of_arrays_is_no_array() -> None:
    """``npy`` promises an array: an ``npz`` under that name is an error, not an open zip file."""
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(3))
    with pytest.raises(ValueError, match=r"npz|npy|array"):
        npy(buffer.getvalue())


@pytest.mark.parametrize(("mode", "kind"), [("F", np.float32), ("I", np.int32)])
def test_pixels_without_a_known_range_are_refused(mode: str, kind: Any) -> None:
    """A float or 32-bit TIFF would become black or white; the message says what to do."""
    buffer = io.BytesIO()
    Image.fromarray(np.array([[0, 100], [200, 255]], dtype=kind)).save(buffer, format="TIFF")
    with pytest.raises(ValueError, match=f"mode {mode}.*decoder of your own"):
        rgb(buffer.getvalue())


def test_an_array_that_claims_more_than_is_there_is_refused() -> None:
    """Before memory is taken for it."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(8))
    claims = buffer.getvalue().replace(b"(8,), }", b"(9999999999999,), }").replace(b" " * 12 + b"\n", b"\n")
    with pytest.raises(ValueError, match="79,999,999,999,992 bytes, of which 64"):
        npy(claims)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back_writable_and_in_their_order(order: Any) -> None:
    """As ``np.load`` gives them."""
    array = np.asarray(np.arange(24).reshape(2, 3, 4), order=order)
    buffer = io.BytesIO()
    np.save(buffer, array)
    decoded = npy(buffer.getvalue())
    assert np.array_equal(decoded, array)
    assert decoded.flags.writeable
    assert decoded.flags.c_contiguous == array.flags.c_contiguous
