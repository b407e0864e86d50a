"""``rgb``: decode images of all common formats to ``PIL.Image`` in mode RGB."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from ...core import arguments as check
from ...core.arguments import explained, whole
from ..images import IMAGE_FORMATS
from ._orientation import Orientation, orientation_of_exif
from ._turbojpeg import MAX_PIXELS, check_size, decode_plain_jpeg, divisor

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

# Formats that Pillow may try. Its rarer and less tested parsers are kept away from untrusted files.
_FORMATS = tuple(dict.fromkeys(IMAGE_FORMATS.values()))
_EXIF_ORIENTATION, _BITS_PER_SAMPLE = 0x112, 0x102
_PNG_BITS, _BITS = 24, 8
_SCALED = (
    "An image of more than 8 bits per channel is scaled to 8 bits. Keep its values, as of a depth map, by the decoder "
    'pixels: decode_sample({"png": decoders.pixels}).'
)


@dataclass(frozen=True)
class RgbAtLeast:
    """The decoder that ``rgb(min_size=...)`` and ``rgb(exif_orientation=True)`` return.

    Args:
        min_size: minimum of both sides in pixels, for images that are as large; ``None`` for all pixels.
        exif_orientation: whether the image is turned as its EXIF data ask for.

    Raises:
        ValueError: if ``min_size`` is less than one.
    """

    min_size: int | None = None
    exif_orientation: bool = False

    def __post_init__(self) -> None:
        if self.min_size is not None:
            object.__setattr__(self, "min_size", whole("min_size", self.min_size))
        object.__setattr__(self, "exif_orientation", check.flag("exif_orientation", self.exif_orientation))

    def __call__(self, data: bytes) -> Image.Image:
        image = _decode(data, self.min_size)
        if not self.exif_orientation or (orientation := orientation_of(data)) == Orientation():
            return image
        from PIL.Image import fromarray

        return fromarray(np.ascontiguousarray(orientation.applied(np.asarray(image))))


@overload
def rgb(data: bytes, *, min_size: int | None = None, exif_orientation: bool = False) -> Image.Image: ...


@overload
def rgb(*, min_size: int | None = None, exif_orientation: bool = False) -> RgbAtLeast: ...


@explained
def rgb(
    data: bytes | None = None, *, min_size: int | None = None, exif_orientation: bool = False
) -> Image.Image | RgbAtLeast:
    """Decode an image to RGB, 8 bits per channel, whatever its mode: gray, 16-bit gray, palette, CMYK, alpha.

    Alpha is dropped, as in torchvision's loader. 16 bits per channel are scaled to 8, with a warning: ``pixels`` keeps
    them. Pixels are returned as they are stored: colour profiles are dropped, and EXIF data without
    ``exif_orientation``. JPEG is decoded by simplejpeg if it is installed (``pip install 'torchdata_remote[turbo]'``),
    else by Pillow, to the same pixels. Both release the GIL.

    Args:
        data: a whole file. Without it, ``rgb(min_size=...)`` returns a decoder, for example for ``decode_sample``.
        min_size: allows an image that will be scaled down anyway to be decoded at a half, a quarter or an eighth of its
            width and height (rounded up), as long as both are at least this many pixels. That makes JPEG faster; other
            formats, and images that are too small, are decoded in full.
        exif_orientation: turn and mirror the image as its EXIF data ask for, as a camera writes them that was held
            upright. Those of TIFF are always applied.

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
    if data is not None and min_size is None and not exif_orientation:
        return _decode(data, None)
    decoder = RgbAtLeast(min_size, exif_orientation)
    if data is not None:
        return decoder(data)
    if decoder == RgbAtLeast():
        raise TypeError("rgb needs the bytes of an image, rgb(data), or makes a decoder, rgb(min_size=224)")
    return decoder


def _decode(data: bytes, min_size: int | None) -> Image.Image:
    image = decode_plain_jpeg(data, min_size)
    if image is not None:
        return image
    return decode_by_pillow(data, lambda width, height: divisor(width, height, min_size))[0]


def open_image(data: bytes) -> ImageFile:
    """Read the header of an image by Pillow.

    Raises:
        ValueError, OSError: as :func:`rgb`.
    """
    from PIL import Image, PngImagePlugin, UnidentifiedImageError  # imported by the first image that is decoded

    # Of colour profiles and texts, which are not used: else 1 MiB of one is an error
    PngImagePlugin.MAX_TEXT_CHUNK = max(PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY)
    try:
        return Image.open(io.BytesIO(data), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise ValueError(f"more pixels than the limit of {MAX_PIXELS:,}: {error}") from error
    except UnidentifiedImageError:  # whose message is the address of a BytesIO
        raise UnidentifiedImageError(f"not an image of a known format ({', '.join(_FORMATS)})") from None


def orientation_of(data: bytes) -> Orientation:
    """Return how an image is to be shown, of its EXIF data.

    Raises:
        ValueError, OSError: as :func:`rgb`.
    """
    with open_image(data) as opened:
        # Pillow applies it to TIFF
        number = 1 if opened.format == "TIFF" else opened.getexif().get(_EXIF_ORIENTATION, 1)
        return orientation_of_exif(number if number in range(1, 9) else 1)


def has_deep_channels(opened: ImageFile, data: bytes) -> bool:
    """Return whether several channels have more than the 8 bits that Pillow makes of them."""
    if opened.mode.startswith(("I", "F")):
        return False
    if opened.format == "TIFF":
        return bool(max(opened.tag_v2.get(_BITS_PER_SAMPLE, (1,))) > _BITS)  # type: ignore[attr-defined]
    return (opened.format == "PNG" and data[_PNG_BITS] > _BITS) or maxval_of(opened) > 0xFF


def maxval_of(opened: ImageFile) -> int:
    """Return the white of an image of the PPM family that was opened and not loaded, where Pillow scales it, else 0."""
    parameters = opened.tile[0][3] if opened.format == "PPM" else None
    return int(parameters[1]) if isinstance(parameters, tuple) else 0


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
    from PIL.Image import fromarray  # imported by the first image that is decoded

    with open_image(data) as opened:
        image: Image.Image = opened
        width, height = image.size
        check_size(width, height)
        by = divide(width, height)
        if by > 1:
            # Affects JPEG only, whose sides become at least these
            opened.draft(None, (width // by, height // by))
        is_deep = image.mode.startswith("I") or has_deep_channels(opened, data)
        image.load()
        if image.size == (width, height):
            by = 1
        if image.mode == "F" or (image.mode == "I" and opened.format not in ("PNG", "PPM")):
            raise ValueError(f"mode {image.mode} has no range that could be scaled to 8 bits; pass decoders.pixels")
        if is_deep:
            # One place, whatever calls: Python shows it once
            warnings.warn(_SCALED, RuntimeWarning, stacklevel=1)
        if image.mode.startswith("I"):
            image = fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
        elif image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        image = image.convert("RGB")
        # simplejpeg has none
        image.info = {}
        return image, by
