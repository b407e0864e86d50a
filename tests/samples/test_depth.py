"""Depth maps and other images: all bits of a file, turned as they are shown, beside profiles and texts."""

from __future__ import annotations

import struct
import warnings
import zlib
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin
from PIL.TiffImagePlugin import ImageFileDirectory_v2

import torchdata_remote as tdr
from tests.support.photographs import encoded, photograph
from torchdata_remote.errors import DecodeError

DEPTH = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) % 4096


def decoded(name: str, data: bytes, decoder: Any = None) -> Any:
    """A member, by the decoder of its extension."""
    pipe = tdr.IterableWrapper([{"__key__": "a", name: data}])
    (sample,) = pipe.decode_sample({name: decoder} if decoder else None)
    return sample[name]


def by_ffmpeg(codec: str, pixel_format: str, values: np.ndarray[Any, Any]) -> bytes:
    """An image of 16 bits in several channels, which Pillow does not write."""
    context = av.CodecContext.create(codec, "w")
    context.height, context.width = values.shape[:2]
    context.pix_fmt, context.time_base = pixel_format, 1
    frame = av.VideoFrame.from_ndarray(values, format=pixel_format)
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def few_bits(bits: int, colour: int, rows: list[bytes], width: int) -> bytes:
    """A PNG of rows that are packed."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, len(rows), bits, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))),
        (b"IEND", b""),
    ]
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff(data: bytes, bits: int, *, width: int = 4, white: int = 1, sample_format: int = 1) -> bytes:
    """A TIFF of one channel and one row, not compressed, whose white is the largest value or 0."""
    tags = {
        256: width,
        257: 1,
        258: bits,
        259: 1,
        262: white,
        273: 8,
        277: 1,
        278: 1,
        279: len(data),
        339: sample_format,
    }
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    data += bytes(len(data) % 2)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


RGB = np.random.default_rng(0).integers(0, 1 << 16, (6, 8, 3), np.uint16)
RGBA = np.random.default_rng(0).integers(0, 1 << 16, (6, 8, 4), np.uint16)
ALL = np.stack([np.arange(255 * 257), np.arange(255 * 257)[::-1]], -1).reshape(255, 257, 2).astype(np.uint16)
FLOATS = (DEPTH / 7).astype(np.float32)
WHOLE = {
    "16-bit PNG": ("png", encoded(Image.fromarray(DEPTH), "PNG"), DEPTH),
    "16-bit TIFF": ("tif", encoded(Image.fromarray(DEPTH), "TIFF"), DEPTH),
    "16-bit PGM": ("pgm", b"P5 64 48 65535\n" + DEPTH.astype(">u2").tobytes(), DEPTH),
    "12-bit PGM": ("pgm", b"P5 64 48 4095\n" + DEPTH.astype(">u2").tobytes(), DEPTH),
    "text PGM": ("pgm", b"P2 4 1 1000\n0 1 500 1000\n", np.array([[0, 1, 500, 1000]], np.uint16)),
    "16-bit RGB PNG": ("png", by_ffmpeg("png", "rgb48be", RGB), RGB),
    "16-bit RGBA PNG": ("png", by_ffmpeg("png", "rgba64be", RGBA), RGBA),
    "16-bit RGB TIFF": ("tif", by_ffmpeg("tiff", "rgb48le", RGB), RGB),
    "16-bit RGB PPM": ("ppm", b"P6 8 6 65535\n" + RGB.astype(">u2").tobytes(), RGB),
    **{
        f"RGB PPM to {white}": (
            "ppm",
            b"P6 8 6 %d\n" % white + (RGB % (white + 1)).astype(">u2").tobytes(),
            RGB % (white + 1),
        )
        for white in (256, 32768, 60000, 65534)
    },
    "16-bit gray and alpha PNG": ("png", few_bits(16, 4, [row.astype(">u2").tobytes() for row in ALL], 257), ALL),
}
OTHERS = {
    "float TIFF": ("tif", encoded(Image.fromarray(FLOATS), "TIFF"), FLOATS),
    "int32 TIFF": (
        "tif",
        encoded(Image.fromarray(-DEPTH.astype(np.int32) * 70_000), "TIFF"),
        -DEPTH.astype(np.int32) * 70_000,
    ),
    "8-bit RGBA": ("png", encoded(Image.fromarray(RGBA.astype(np.uint8)), "PNG"), RGBA.astype(np.uint8)),
    "gray": ("png", encoded(Image.fromarray(DEPTH.astype(np.uint8)), "PNG"), DEPTH.astype(np.uint8)),
    "2-bit gray": ("png", few_bits(2, 0, [b"\x1b"], 4), np.array([[0, 1, 2, 3]], np.uint8)),
    "4-bit gray": ("png", few_bits(4, 0, [bytes.fromhex("0123456789abcdef")], 16), np.arange(16, dtype=np.uint8)[None]),
    "4-bit TIFF, white is 0": ("tif", tiff(b"\x1f\x03", 4, white=0), np.array([[1, 15, 0, 3]], np.uint8)),
    "int8 TIFF": ("tif", tiff(b"\xff\1\x80\x7f", 8, sample_format=2), np.array([[-1, 1, -128, 127]], np.int8)),
    "uint32 TIFF": (
        "tif",
        tiff(np.array([0, 1, 3_000_000_000, 2**32 - 1], "<u4").tobytes(), 32),
        np.array([[0, 1, 3_000_000_000, 2**32 - 1]], np.uint32),
    ),
    **{
        f"PGM to {white}": ("pgm", b"P5 %d 1 %d\n" % (white + 1, white) + values.tobytes(), values[None])
        for white in (7, 254, 255)
        for values in [np.arange(white + 1, dtype=np.uint8)]
    },
    "bits": ("png", encoded(Image.fromarray(DEPTH % 2 == 1), "PNG"), DEPTH % 2 == 1),
    "palette": (
        "png",
        encoded(Image.fromarray((DEPTH % 7).astype(np.uint8)).convert("P"), "PNG"),
        (DEPTH % 7).astype(np.uint8),
    ),
}


@pytest.mark.parametrize("kind", [*WHOLE, *OTHERS])
def test_pixels_are_the_values_of_the_file(kind: str) -> None:
    """In a type of the processor that holds them, not scaled."""
    name, data, values = {**WHOLE, **OTHERS}[kind]
    array = decoded(name, data, tdr.decoders.pixels)
    assert array.dtype == values.dtype
    assert array.dtype.isnative
    assert np.array_equal(array, values)


@pytest.mark.parametrize("kind", WHOLE)
def test_8_bits_made_of_more_are_said_once(kind: str) -> None:
    """By all that make them."""
    name, data, _ = WHOLE[kind]
    sample = {"__key__": "a", name: data}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        image, _ = (item[name] for item in tdr.IterableWrapper([sample] * 2).decode_sample())
        list(tdr.IterableWrapper([sample] * 2).decode_image(4, crop="center", members=name))
    assert [str(warning.message) for warning in caught if "8 bits" in str(warning.message)] == [str(caught[0].message)]
    assert "decoders.pixels" in str(caught[0].message)
    assert image.mode == "RGB"


@pytest.mark.parametrize("kind", ["gray", "8-bit RGBA", "bits"])
def test_images_of_8_bits_are_decoded_without_a_word(kind: str) -> None:
    name, data, _ = OTHERS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decoded(name, data).mode == "RGB"


def shown(number: int, kind: str) -> tuple[bytes, Image.Image]:
    """A file with an orientation, and the image as viewers show it."""
    exif = Image.Exif()
    exif[0x0112] = number
    stored = photograph(70, 40)
    file = encoded(stored, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {"lossless": True}))
    order = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_270],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_90],
    }
    image = tdr.decoders.rgb(file)
    for step in order.get(number, []):
        image = image.transpose(step)
    return file, image


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("number", range(1, 9))
def test_exif_orientation_is_applied_on_request(number: int, kind: str) -> None:
    """To whole images, to smaller ones, and before the crop: each crop is that of the image that was turned before."""
    file, image = shown(number, kind)
    upright = decoded("jpg", file, tdr.decoders.rgb(exif_orientation=True))
    assert np.array_equal(np.asarray(upright), np.asarray(image))
    assert tdr.decoders.rgb(file, exif_orientation=True).size == image.size
    small = tdr.decoders.rgb(min_size=20, exif_orientation=True)(file)
    assert (small.width > small.height) == (image.width > image.height)
    samples = [{"__key__": str(at), "jpg": data} for at in range(3) for data in (file, encoded(image, "PNG"))]
    for options in ({"seed": 1}, {"crop": "center"}, {"crop": None}):
        pipe = tdr.IterableWrapper(samples).decode_image((24, 32), exif_orientation=True, dtype=torch.uint8, **options)
        tensors = [sample["jpg"].int() for sample in pipe]
        for turned, expected in zip(tensors[::2], tensors[1::2], strict=True):
            assert (turned - expected).abs().max() <= 1


def test_the_orientation_of_tiff_is_applied_once() -> None:
    """Pillow does so itself."""
    directory = ImageFileDirectory_v2()
    directory[0x0112] = 6
    file = encoded(photograph(70, 40), "TIFF", tiffinfo=directory)
    image = tdr.decoders.rgb(file)
    assert image.size == (40, 70)
    assert np.array_equal(np.asarray(tdr.decoders.rgb(file, exif_orientation=True)), np.asarray(image))


def png(kind: str, num_bytes: int) -> bytes:
    """A valid PNG with so many bytes of what is not decoded, which compress well."""
    if kind == "profile":
        return encoded(photograph(16, 8), "PNG", icc_profile=bytes(num_bytes))
    texts = PngImagePlugin.PngInfo()
    if kind == "text":
        texts.add_text("comment", "a" * num_bytes, zip=True)
    else:
        texts.add_itxt("comment", "a" * num_bytes, zip=True)
    return encoded(photograph(16, 8), "PNG", pnginfo=texts)


@pytest.mark.parametrize("kind", ["profile", "text", "unicode"])
def test_a_png_with_a_large_profile_or_text_is_decoded(kind: str) -> None:
    """Neither is used. What would fill the memory is refused."""
    data = png(kind, 2 << 20)
    assert np.array_equal(np.asarray(decoded("png", data)), np.asarray(photograph(16, 8)))
    (sample,) = tdr.IterableWrapper([{"__key__": "a", "png": data}]).decode_image(8)
    assert sample["png"].shape == (3, 8, 8)
    with pytest.raises(DecodeError, match="too large"):
        decoded("png", png(kind, 70 << 20))
