"""``rgb``: decode images of all common formats to ``PIL.Image`` in mode RGB."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from ...core.arguments.amounts import whole
from ...core.arguments.calls import explained
from ..images import IMAGE_FORMATS
from ._turbojpeg import MAX_PIXELS, check_size, decode_plain_jpeg, divisor

if TYPE_CHECKING:
    from PIL import Image

# Formats that Pillow may try. Its rarer and less tested parsers are kept away from untrusted files.
_FORMATS = tuple(dict.fromkeys(IMAGE_FORMATS.values()))


@dataclass(frozen=True)
class RgbAtLeast:
    """The decoder that ``rgb(min_size=...)`` returns.

    Args:
        min_size: minimum of both sides in pixels, for images that are as large.

    Raises:
        ValueError: if ``min_size`` is less than one.
    """

    min_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_size", whole("min_size", self.min_size))

    def __call__(self, data: bytes) -> Image.Image:
        return _decode(data, self.min_size)


@overload
def rgb(data: bytes, *, min_size: int | None = None) -> Image.Image: ...


@overload
def rgb(*, min_size: int) -> RgbAtLeast: ...


@explained
def rgb(data: bytes | None = None, *, min_size: int | None = None) -> Image.Image | RgbAtLeast:
    """Decode an image to RGB, 8 bits per channel, whatever its mode: gray, 16-bit gray, palette, CMYK, alpha.

    Alpha is dropped, as in torchvision's loader; 16-bit gray is scaled, where Pillow alone would clip it. Pixels are
    returned as they are stored: EXIF and colour profiles are dropped, and images are not rotated by them. JPEG is
    decoded by simplejpeg if it is installed (``pip install 'torchdata_remote[turbo]'``), else by Pillow, to the same
    pixels. Both release the GIL.

    Args:
        data: a whole file. Without it, ``rgb(min_size=...)`` returns a decoder, for example for ``decode_sample``.
        min_size: allows an image that will be scaled down anyway to be decoded at a half, a quarter or an eighth of its
            width and height (rounded up), as long as both are at least this many pixels. That makes JPEG faster; other
            formats, and images that are too small, are decoded in full.

    Raises:
        ValueError: if the image has more than ``MAX_PIXELS`` pixels, or 32 bits per pixel in one channel.
        OSError: if the data are not an image, or incomplete.

    Example:
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("L", (1000, 501)).save(file, "JPEG")
        >>> image = rgb(file.getvalue())
        >>> image.mode, image.size
        ('RGB', (1000, 501))
        >>> decoder = rgb(min_size=224)
        >>> decoder(file.getvalue()).size
        (500, 251)
    """
    if data is None:
        if min_size is None:
            raise TypeError("rgb needs the bytes of an image, rgb(data), or makes a decoder, rgb(min_size=224)")
        return RgbAtLeast(min_size)
    return _decode(data, None) if min_size is None else RgbAtLeast(min_size)(data)


def _decode(data: bytes, min_size: int | None) -> Image.Image:
    image = decode_plain_jpeg(data, min_size)
    if image is not None:
        return image
    return decode_by_pillow(data, lambda width, height: divisor(width, height, min_size))[0]


def decode_by_pillow(data: bytes, divide: Callable[[int, int], int]) -> tuple[Image.Image, int]:
    """Decode an image by Pillow.

    Args:
        data: a whole file.
        divide: called with width and height; returns by which of 1, 2, 4 and 8 both may be divided.

    Returns:
        The image in mode RGB, and by what it was divided: JPEG only is.

    Raises:
        ValueError, OSError: as :func:`rgb`.
    """
    from PIL import Image, UnidentifiedImageError  # imported by the first image that is decoded

    try:
        opened = Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(f"more pixels than the limit of {MAX_PIXELS:,}: {error}") from error
    except UnidentifiedImageError:  # whose message is the address of a BytesIO
        raise UnidentifiedImageError(f"not an image of a known format ({', '.join(_FORMATS)})") from None
    with opened:
        image: Image.Image = opened
        width, height = image.size
        check_size(width, height)
        by = divide(width, height)
        if by > 1:
            # Affects JPEG only, whose sides become at least these
            opened.draft(None, (width // by, height // by))
        image.load()
        if image.size == (width, height):
            by = 1
        if image.mode == "F" or (image.mode == "I" and opened.format not in ("PNG", "PPM")):
            raise ValueError(
                f"mode {image.mode} has no range that could be scaled to 8 bits; pass a decoder of your own"
            )
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
        elif image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        image = image.convert("RGB")
        # simplejpeg has none
        image.info = {}
        return image, by
