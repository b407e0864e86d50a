"""Decoding of a part of an image: the pixels of the whole image by every library, and its errors."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchdata_remote.formats.crops import region as module
from torchdata_remote.formats.crops.boxes import Box
from torchdata_remote.formats.crops.region import Pixels, Region, decode_region
from torchdata_remote.formats.decoders import MAX_PIXELS, rgb
from torchdata_remote.formats.decoders import _turbojpeg as turbojpeg

from ...support.photographs import encoded, photograph

pytest.importorskip("simplejpeg")


@pytest.fixture(params=["simplejpeg", "pillow"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pillow":
        monkeypatch.setattr(turbojpeg, "simplejpeg", None)
    return str(request.param)


def part(data: bytes | memoryview, box: Box, least: tuple[int, int] | None = None) -> Pixels:
    return decode_region(data, lambda _height, _width: Region(box, least or (box.height, box.width))).copy()


def cropped(image: Image.Image, box: Box) -> Pixels:
    return np.asarray(image)[box.top : box.top + box.height, box.left : box.left + box.width]


@given(
    shape=st.tuples(st.integers(8, 120), st.integers(8, 90)),
    subsampling=st.integers(0, 2),
    options=st.sampled_from([{}, {"progressive": True}, {"restart_marker_rows": 1}, {"optimize": True}]),
    gray=st.booleans(),
    data=st.data(),
)
def test_a_part_of_a_jpeg_has_the_pixels_of_the_whole_image(
    shape: tuple[int, int], subsampling: int, options: dict[str, Any], gray: bool, data: st.DataObject
) -> None:
    """Wherever it ends, with any subsampling of the chroma, in one pass over the image or several."""
    width, height = shape
    image = photograph().crop((0, 0, width, height)).convert("L" if gray else "RGB")
    if not gray:
        options = {**options, "subsampling": subsampling}
    file = encoded(image, quality=90, **options)
    box_height, box_width = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    box = Box(
        data.draw(st.integers(0, height - box_height)),
        data.draw(st.integers(0, width - box_width)),
        box_height,
        box_width,
    )
    assert np.array_equal(part(file, box), cropped(rgb(file), box))


def test_rows_below_the_part_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one pass over the image: the time is that of the rows above its end."""
    shapes = []
    original = turbojpeg.decode_into

    def recorded(memory: Pixels, data: bytes, shape: tuple[int, ...], *, is_scaled: bool) -> str:
        shapes.append(shape)
        return original(memory, data, shape, is_scaled=is_scaled)

    monkeypatch.setattr(turbojpeg, "decode_into", recorded)
    box = Box(10, 20, 60, 70)
    part(encoded(photograph()), box)
    part(encoded(photograph(), progressive=True), box)
    assert shapes == [(72, 250, 3), (188, 250, 3)]


@pytest.mark.parametrize("by", [2, 4, 8])
@pytest.mark.parametrize("top", [0, 37])
def test_a_lower_scale_is_used_where_the_part_keeps_its_size(by: int, top: int, library: str) -> None:
    """It is the part of Pillow's draft, by either library."""
    image = photograph(499, 401)
    file = encoded(image, quality=90)
    box = Box(top, 16, 200, 320)
    draft = Image.open(io.BytesIO(file))
    draft.draft(None, (499 // by, 401 // by))
    least = (200 // by, 320 // by)
    begin, end = (top + by // 2) // by, (top + 200 + by // 2) // by
    expected = np.asarray(draft)[begin:end, 16 // by : 336 // by]
    assert np.array_equal(part(file, box, least), expected)
    larger = part(file, box, (least[0] + 1, least[1]))
    assert larger.shape[0] >= least[0] + 1


def test_every_kind_of_image_is_rgb(library: str) -> None:
    """As by ``rgb``: gray, 16 bits, palette, alpha, CMYK; also of a size that JPEG libraries do not scale."""
    image = photograph(40, 30)
    files = [
        encoded(image.convert("L"), "PNG"),
        encoded(Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50), "PNG"),
        encoded(image.convert("P"), "PNG"),
        encoded(image.convert("RGBA"), "PNG"),
        encoded(image.convert("RGBA"), "WEBP", lossless=True),
        encoded(image.convert("CMYK")),
        encoded(image.convert("L")),
        encoded(image.crop((0, 0, 40, 7)), "PNG"),
    ]
    for file in files:
        box = Box(2, 3, 5, 30)
        assert np.array_equal(part(file, box), cropped(rgb(file), box))
        assert np.array_equal(part(memoryview(file), box), cropped(rgb(file), box))


def test_exif_orientation_is_not_applied(library: str) -> None:
    """As by ``rgb`` and torchvision's loaders: the part is one of the pixels as they are stored."""
    exif = Image.Exif()
    exif[0x0112] = 6
    file = encoded(photograph(40, 30), exif=exif)
    assert np.array_equal(part(file, Box(0, 0, 30, 40)), np.asarray(Image.open(io.BytesIO(file))))


@pytest.mark.parametrize("kept", [0.1, 0.3, 0.6, 0.95])
@pytest.mark.parametrize("bottom", [40, 120, 188])
def test_a_truncated_jpeg_is_an_error(kept: float, bottom: int, library: str) -> None:
    """Also if it ends below the part: not all of the image is there."""
    file = encoded(photograph(), quality=90)
    with pytest.raises(OSError, match="truncated"):
        part(file[: int(kept * len(file))], Box(0, 0, bottom, 250))


def test_what_rgb_refuses_is_refused(library: str) -> None:
    """The same files raise the same errors as by ``rgb``."""
    good = encoded(photograph(), quality=90)
    broken = [b"", b"\xff\xd8\xff", b"not an image" * 9, good[:2], good[:300]]
    for file in broken:
        with pytest.raises(Exception) as expected:  # noqa: PT011  # whatever it is
            rgb(file)
        with pytest.raises(expected.type) as caught:
            part(file, Box(0, 0, 188, 250))
        assert str(caught.value) == str(expected.value)


def test_more_pixels_than_the_limit_are_refused_before_they_are_decoded(library: str) -> None:
    """By the header, of which nothing is allocated."""
    file = bytearray(encoded(photograph()))
    at = file.index(b"\xff\xc0") + 5
    file[at : at + 4] = (60_000).to_bytes(2, "big") * 2
    with pytest.raises(ValueError, match=f"limit of {MAX_PIXELS:,}"):
        part(bytes(file), Box(0, 0, 1, 1))


@given(st.integers(20, 4_000), st.binary(min_size=1, max_size=4))
def test_damage_is_an_error_or_pixels_of_the_right_shape(at: int, noise: bytes) -> None:
    """Never a crash, nor pixels of another image."""
    file = bytearray(encoded(photograph(), quality=80))
    file[at : at + len(noise)] = noise
    try:
        pixels = part(bytes(file), Box(3, 5, 50, 60), (50, 60))
    except (OSError, ValueError, SyntaxError):
        return
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3


def test_memory_of_a_thread_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large images are decoded into memory that is freed."""
    monkeypatch.setattr(module, "_MAX_SCRATCH_BYTES", 1_000)
    part(encoded(photograph(20, 10)), Box(0, 0, 10, 20))
    before = module._of_thread.memory
    part(encoded(photograph()), Box(0, 0, 188, 250))
    assert module._of_thread.memory is before
