from __future__ import annotations

import io
import json
import math
import pickle
import struct
import subprocess
import sys
import warnings
import zlib
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from torchdata_remote.formats.decoders import DEFAULT_DECODERS, MAX_PIXELS, RgbAtLeast, integer, npy, rgb, text
from torchdata_remote.formats.decoders import _turbojpeg as _turbo


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
    """A PNG of a few bytes with a valid header of this size."""
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


def test_a_bitmap_is_decoded_to_black_and_white() -> None:
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
def test_an_image_truncated_at_any_byte_is_an_error(image_format: str) -> None:
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
    """Including formats that Pillow would try by itself. The message has no address of an object."""
    with pytest.raises(OSError, match="not an image of a known format") as caught:
        rgb(data)
    assert "0x" not in str(caught.value)


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
    """Every str is preserved; other bytes are an error."""
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
def test_npy_preserves_arrays(array: npt.NDArray[Any]) -> None:
    """Shape, type and values, an empty array and one number included, in the byte order of this machine."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    got = npy(buffer.getvalue())
    expected = array.astype(array.dtype.newbyteorder("="))
    assert got.dtype == expected.dtype
    assert got.shape == array.shape
    assert got.tobytes() == expected.tobytes()


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


def test_a_truncated_array_is_an_error() -> None:
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
    with pytest.raises(ValueError, match=rf"mode {mode}.*decoders\.pixels"):
        rgb(buffer.getvalue())


def test_an_array_that_claims_more_than_is_there_is_refused() -> None:
    """Before memory is taken for it."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(8))
    claims = buffer.getvalue().replace(b"(8,), }", b"(9999999999999,), }").replace(b" " * 12 + b"\n", b"\n")
    with pytest.raises(ValueError, match="79,999,999,999,992 bytes, of which 64"):
        npy(claims)
    with pytest.raises(ValueError, match=r"an array of shape \(-1,\)"):
        npy(buffer.getvalue().replace(b"(8,), }", b"(-1,), }").replace(b" " * 12 + b"\n", b" " * 11 + b"\n"))


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


simplejpeg = pytest.importorskip("simplejpeg")
TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # orientation 6: by 90 degrees


def _smooth(width: int, height: int, num_channels: int, seed: int) -> npt.NDArray[np.uint8]:
    """Spots of colour with some noise on them, as photographs have."""
    random = np.random.default_rng(seed)
    few = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, num_channels), dtype=np.uint8)
    layers = [np.asarray(Image.fromarray(few[..., c]).resize((width, height))) for c in range(num_channels)]
    spots = np.stack(layers, axis=-1)
    return (spots + random.normal(0, 9, spots.shape)).clip(0, 255).astype(np.uint8)


@st.composite
def _jpegs(draw: st.DrawFn, max_side: int = 120) -> bytes:
    """JPEG of the usual kinds: gray, colour with any subsampling, stored as RGB, CMYK; progressive; EXIF; restarts."""
    width, height = draw(st.integers(1, max_side)), draw(st.integers(1, max_side))
    kind = draw(st.sampled_from(["gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "rgb", "cmyk"]))
    quality = draw(st.integers(30, 97))
    pixels = _smooth(width, height, {"gray": 1, "cmyk": 4}.get(kind, 3), draw(st.integers(0, 9)))
    if kind in ("4:4:0", "4:1:1"):  # which Pillow cannot write
        return bytes(simplejpeg.encode_jpeg(pixels, quality, colorsubsampling=kind.replace(":", "")))
    options: dict[str, Any] = {
        "quality": quality,
        "progressive": draw(st.booleans()),
        "restart_marker_rows": draw(st.sampled_from([0, 1])),
        "exif": draw(st.sampled_from([b"", TURNED])),
    }
    if kind == "rgb":
        options["keep_rgb"] = True
    elif kind.startswith("4"):
        options["subsampling"] = kind
    image = Image.fromarray(pixels[..., 0]) if kind == "gray" else Image.fromarray(pixels[..., :3])
    return _saved(image.convert("CMYK") if kind == "cmyk" else image, "JPEG", **options)


def _by_pillow(data: bytes, min_size: int | None = None) -> Image.Image:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_turbo, "simplejpeg", None)
        return rgb(data, min_size=min_size)


def _outcome(decode: Any, data: bytes) -> Any:
    """The pixels, or the kind of error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about the damage
        try:
            return np.asarray(decode(data)).astype(int)
        except (OSError, ValueError) as error:
            return type(error)


def _assert_alike(left: Any, right: Any) -> None:
    """The same error, or the same pixels within what two builds of libjpeg differ by."""
    assert isinstance(left, np.ndarray) == isinstance(right, np.ndarray), f"{left} and {right}"
    if not isinstance(left, np.ndarray):
        assert left == right
        return
    assert left.shape == right.shape
    assert np.abs(left - right).max() <= 8
    assert np.abs(left - right).mean() <= 0.5


@given(data=_jpegs(), min_size=st.none() | st.integers(1, 130))
def test_pillow_and_simplejpeg_decode_the_same_image(data: bytes, min_size: int | None) -> None:
    """Size and pixels do not depend on what is installed, reduced or not; EXIF neither turns it nor stays with it."""
    with_turbo, without = rgb(data, min_size=min_size), _by_pillow(data, min_size)
    for image in (with_turbo, without):
        assert (type(image), image.mode, image.info) == (Image.Image, "RGB", {})
        assert not image.getexif()
    _assert_alike(np.asarray(with_turbo).astype(int), np.asarray(without).astype(int))


@given(data=_jpegs(), min_size=st.integers(1, 130))
def test_images_decoded_at_reduced_size_keep_min_size(data: bytes, min_size: int) -> None:
    """By 1, 2, 4 or 8, the most that leaves both sides ``min_size`` pixels; one that has fewer keeps its size."""
    whole, reduced = rgb(data), rgb(min_size=min_size)(data)
    by = max(each for each in (1, 2, 4, 8) if each == 1 or min(whole.size) // each >= min_size)
    assert reduced.size == tuple(math.ceil(side / by) for side in whole.size)
    assert min(reduced.size) >= min(min_size, *whole.size)


@pytest.mark.parametrize("by", [2, 4, 8])
@pytest.mark.parametrize("decode", [rgb, _by_pillow])
def test_an_image_decoded_at_reduced_size_is_similar(by: int, decode: Any) -> None:
    """Each pixel is the mean of those that it stands for."""
    pixels = _smooth(64, 48, 3, seed=1)
    data = _saved(Image.fromarray(pixels), "JPEG", quality=97, subsampling=0)
    expected = pixels.reshape(48 // by, by, 64 // by, by, 3).mean(axis=(1, 3))
    got = np.asarray(decode(data, min_size=48 // by))
    assert got.shape == expected.shape
    assert np.abs(got - expected).mean() < 3


@pytest.mark.parametrize("image_format", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_min_size_does_not_change_other_formats(image_format: str) -> None:
    """Only JPEG can be decoded smaller."""
    data = _saved(Image.fromarray(_noise(40, 50, 3)), image_format)
    assert np.array_equal(np.asarray(rgb(min_size=10)(data)), _pixels(data))


@given(data=_jpegs(max_side=60), where=st.floats(0, 1, exclude_max=True))
def test_a_truncated_jpeg_is_the_same_error_with_and_without_simplejpeg(data: bytes, where: float) -> None:
    """And what is accepted lacks no pixel."""
    cut = data[: int(len(data) * where)]
    outcome = _outcome(rgb, cut)
    _assert_alike(outcome, _outcome(_by_pillow, cut))
    assert not isinstance(outcome, np.ndarray) or np.array_equal(outcome, _outcome(rgb, data))


@given(data=_jpegs(max_side=60), damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=9))))
def test_a_damaged_jpeg_has_the_same_result_with_and_without_simplejpeg(
    data: bytes, damage: list[tuple[float, bytes]]
) -> None:
    """Whatever is overwritten: an error, or a picture, but not the one here and the other there."""
    for where, junk in damage:
        start = 3 + int((len(data) - 3) * where)
        data = data[:start] + junk + data[start + len(junk) :]
    _assert_alike(_outcome(rgb, data), _outcome(_by_pillow, data))


@pytest.mark.parametrize("decode", [rgb, _by_pillow])
@pytest.mark.parametrize("min_size", [None, 8])
def test_a_jpeg_with_too_many_pixels_is_refused(decode: Any, min_size: int | None) -> None:
    """By its header, also where it would be reduced, before memory is taken."""
    data = bytearray(_saved(Image.new("RGB", (8, 8)), "JPEG"))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", 9_000, 9_000)
    with pytest.raises(ValueError, match=f"9000 x 9000 are more pixels than the limit of {MAX_PIXELS:,}"):
        decode(bytes(data), min_size=min_size)


def test_the_decoder_is_a_value() -> None:
    """It can be pickled and compared, cannot be changed, and shows what it does."""
    decoder = rgb(min_size=224)
    assert pickle.loads(pickle.dumps(decoder)) == decoder == RgbAtLeast(224)
    assert repr(decoder) == "RgbAtLeast(min_size=224, exif_orientation=False)"
    with pytest.raises(FrozenInstanceError):
        decoder.min_size = 1  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "224"])
def test_an_invalid_min_size_is_refused(wrong: Any) -> None:
    """It is refused when the decoder is created, with the value."""
    with pytest.raises((TypeError, ValueError), match=f"min_size must be .*{wrong}"):
        rgb(min_size=wrong)
    with pytest.raises((TypeError, ValueError), match="min_size"):
        rgb(b"", min_size=wrong)


def test_rgb_without_data_and_min_size_is_refused() -> None:
    """The message shows both ways."""
    with pytest.raises(TypeError, match=r"rgb\(data\).*rgb\(min_size=224\)"):
        rgb()


@pytest.mark.parametrize("name", ["jpg", "jpeg"])
def test_jpeg_is_decoded_by_simplejpeg(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, and without Pillow's decoder, where it is installed."""
    data = _saved(Image.fromarray(_noise(20, 30, 3)), "JPEG")
    monkeypatch.setattr(Image, "open", None)
    assert DEFAULT_DECODERS[name](data).size == (30, 20)


def test_works_without_simplejpeg() -> None:
    """A missing package is none that is needed."""
    program = (
        "import sys, io; sys.modules['simplejpeg'] = None\n"
        "from PIL import Image; from torchdata_remote.formats.decoders import rgb, _turbojpeg\n"
        "file = io.BytesIO(); Image.new('L', (30, 20)).save(file, 'JPEG')\n"
        "print(_turbojpeg.simplejpeg, rgb(file.getvalue()).size, rgb(min_size=10)(file.getvalue()).size)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split(" ", 1) == ["None", "(30, 20) (15, 10)\n"]
