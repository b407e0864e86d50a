"""Decoders: bytes of a member to a value, chosen by extension. None of them unpickles anything."""

from __future__ import annotations

import io
import json
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
        ValueError: if it has more than ``MAX_PIXELS`` pixels.
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
    """Decode an array in NumPy's ``npy`` format; one that holds pickled objects is refused."""
    array = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("an npz archive, where one npy array was expected")  # the data's fault
    return array


DEFAULT_DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(_IMAGE_EXTENSIONS, rgb),
    "cls": integer,
    "json": json.loads,
    "txt": text,
    "npy": npy,
}
