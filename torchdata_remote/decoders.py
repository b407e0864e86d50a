"""Decoders: bytes of a member to a value, chosen by extension. None of them unpickles anything."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from PIL import Image

Decoder = Callable[[bytes], Any]

# What Pillow may try. Leaving out the rest keeps its rarer and less tested parsers away from files of strangers.
_IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")
MAX_PIXELS = 1 << 26  # 67 million, 200 MB as RGB; ImageNet's largest has 13 million. Pillow warns above 89 million.


def rgb(data: bytes) -> Image.Image:
    """Decode an image to RGB, 8 bits per channel, whatever its mode: gray, 16-bit gray, palette, CMYK, alpha.

    Alpha is dropped, as torchvision's loader does; 16-bit gray is scaled, where Pillow alone would clip it.

    Raises:
        ValueError: if it has more than ``MAX_PIXELS`` pixels, or 32 bits a pixel in one channel.
        OSError: if it is not an image, or cut short.
    """
    try:
        opened = Image.open(io.BytesIO(data), formats=_IMAGE_FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(f"more pixels than the limit of {MAX_PIXELS:,}: {error}") from error
    with opened:
        image: Image.Image = opened
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise ValueError(f"{width} x {height} are more pixels than the limit of {MAX_PIXELS:,}")
        image.load()
        if image.mode == "F" or (image.mode == "I" and opened.format not in ("PNG", "PPM")):
            raise ValueError(
                f"mode {image.mode} has no range that could be scaled to 8 bits; pass a decoder of your own"
            )
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
        elif image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        return image.convert("RGB")


def integer(data: bytes) -> int:
    """Decode a decimal number, such as the class number in a ``cls`` member."""
    return int(data)


def text(data: bytes) -> str:
    """Decode UTF-8 text."""
    return data.decode("utf-8")


def npy(data: bytes) -> np.ndarray[Any, Any]:
    """Decode an array in NumPy's ``npy`` format (NEP 1).

    Raises:
        ValueError: if it holds pickled objects, is shorter than its header says, or is an ``npz`` archive.
    """
    if data[:6] != b"\x93NUMPY":
        raise ValueError(f"it begins with {data[:6]!r}, where an npy array was expected; allow_pickle is off")
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would need unpickling (allow_pickle is off)")
    left, claimed = len(data) - file.tell(), math.prod(shape) * dtype.itemsize
    if claimed > left:
        raise ValueError(f"an array of shape {shape} and {dtype} has {claimed:,} bytes, of which {left:,} are there")
    array = np.frombuffer(data, dtype, math.prod(shape), file.tell())
    return array.reshape(shape, order="F" if fortran_order else "C").copy(order="K")


DEFAULT_DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(_IMAGE_EXTENSIONS, rgb),
    "cls": integer,
    "json": json.loads,
    "txt": text,
    "npy": npy,
}
