"""Decode images of all common formats: to ``PIL.Image`` in mode RGB, and to arrays with all of their bits.

JPEG is decoded by simplejpeg (extra ``turbo``), where it is installed: libjpeg-turbo, from memory into an array.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np

from ...core import arguments as check
from ...core.arguments import explained, whole_or_none
from ..images import IMAGE_FORMATS
from ._containers import import_av

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

try:
    import simplejpeg  # type: ignore[import-untyped]
except (ImportError, ValueError):  # the latter if it was built for another numpy
    simplejpeg = None

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Divide = Callable[[int, int], int]
"""Called with height and width; returns by which of 1, 2, 4 and 8 both may be divided."""

# 67 million, 200 MB as RGB. ImageNet's largest image has 13 million; Pillow warns above 89 million.
MAX_PIXELS = 1 << 26
# Formats that Pillow may try. Its rarer and less tested parsers are kept away from untrusted files.
_FORMATS = tuple(dict.fromkeys(IMAGE_FORMATS.values()))
_PYAV_FORMATS = {"PNG": "png_pipe", "PPM": "ppm_pipe", "TIFF": "tiff_pipe"}
_EXIF_ORIENTATION, _BITS_PER_SAMPLE, _SAMPLE_FORMAT = 0x112, 0x102, 0x153
_PNG_BITS = 24
_COLOURS = ("RGB", "YCbCr", "Gray")
# For smaller images several scales of libjpeg-turbo result in the same size
_MIN_SIDE = 8
_SCALED = (
    "An image of more than 8 bits per channel is scaled to 8 bits. Keep its values, as of a depth map, by the decoder "
    'pixels: decode_sample({"png": decoders.pixels}).'
)


class Orientation(NamedTuple):
    """How stored pixels become those that are shown.

    Args:
        transposed: whether rows become columns first.
        upside_down: whether the rows are reversed then.
        mirrored: whether the columns are reversed then.
    """

    transposed: bool = False
    upside_down: bool = False
    mirrored: bool = False

    def applied(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the pixels that are shown, in the same memory.

        Args:
            pixels: shape ``(height, width, channels)``.
        """
        shown = pixels.swapaxes(0, 1) if self.transposed else pixels
        return shown[:: -1 if self.upside_down else 1, :: -1 if self.mirrored else 1]


@dataclass(frozen=True)
class RgbAtLeast:
    """The decoder that ``rgb(min_size=...)`` and ``rgb(exif_orientation=True)`` return.

    Args:
        min_size: minimum of both sides in pixels, for images that are as large; ``None`` for all pixels.
        exif_orientation: whether the image is turned as its EXIF data ask for.
    """

    min_size: int | None = None
    exif_orientation: bool = False

    def __call__(self, data: bytes) -> Image.Image:
        least = self.min_size or MAX_PIXELS
        image, _ = decode_image(data, lambda height, width: divisor((height, width), (least, least)))
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
    decoder = RgbAtLeast(whole_or_none("min_size", min_size), check.flag("exif_orientation", exif_orientation))
    if data is not None:
        return decoder(data)
    if decoder == RgbAtLeast():
        raise TypeError("rgb needs the bytes of an image, rgb(data), or makes a decoder, rgb(min_size=224)")
    return decoder


def divisor(size: tuple[int, int], least: tuple[int, int]) -> int:
    """Return the largest of 8, 4 and 2 by which both sides can be divided and keep the least ones, else 1.

    Example:
        >>> divisor((500, 375), (224, 224)), divisor((500, 448), (224, 224))
        (1, 2)
    """
    return next((by for by in (8, 4, 2) if size[0] >= by * least[0] and size[1] >= by * least[1]), 1)


def decode_image(data: bytes, divide: Divide) -> tuple[Image.Image, int]:
    """Decode an image to mode RGB; return it, and by what it was divided: JPEG only is.

    Pillow decodes everything that is not plain (other formats, CMYK, YCCK) and everything that simplejpeg refuses,
    which is all that libjpeg warns of. So the same files raise the same errors with and without simplejpeg.

    Raises:
        ValueError, OSError: as :func:`rgb`.
    """
    size = size_of_plain_jpeg(data)
    if size is not None:
        by = divide(*size)
        pixels, warning = decode_jpeg(data, size, by)
        if not warning:
            from PIL.Image import fromarray  # imported by the first image that is decoded

            return fromarray(pixels), by
    return decode_by_pillow(data, divide)


def size_of_plain_jpeg(data: bytes | memoryview) -> tuple[int, int] | None:
    """Return height and width of a plain JPEG; ``None`` if Pillow has to decode it.

    Raises:
        ValueError: for more than ``MAX_PIXELS`` pixels.
    """
    if simplejpeg is None or data[:3] != b"\xff\xd8\xff":
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except (ValueError, KeyError):  # the latter for colour spaces that it has no name for
        return None
    _check_size(width, height)
    return (height, width) if colours in _COLOURS and min(width, height) >= _MIN_SIDE else None


def decode_jpeg(
    data: bytes | memoryview, size: tuple[int, int], by: int, memory: Pixels | None = None
) -> tuple[Pixels, str]:
    """Decode a plain JPEG by simplejpeg; return its pixels, and libjpeg's first warning or error, or ``""``.

    Args:
        data: a whole file.
        size: height and width.
        by: what both are divided by.
        memory: for the pixels, which it holds after a warning, too: those that libjpeg made before and after it.
    """
    shape = (-(-size[0] // by), -(-size[1] // by), 3)
    least = {"min_height": shape[0], "min_width": shape[1]} if by > 1 else {}
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, buffer=memory, **least)
    except ValueError as error:
        known = np.empty(0, np.uint8) if memory is None else memory[: shape[0] * shape[1] * 3].reshape(shape)
        return known, str(error) or "unknown"
    return pixels, "" if pixels.shape == shape else f"decoded to {pixels.shape}, not {shape}"


def _check_size(width: int, height: int) -> None:
    """Check the number of pixels, before memory is allocated for them."""
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} x {height} are more pixels than the limit of {MAX_PIXELS:,}")


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
    if number not in range(1, 9):
        return Orientation()
    # https://www.cipa.jp/std/documents/e/DC-X008-Translation-2019-E.pdf, 4.6.5: in fours, clockwise
    turn = (number - 1) % 4
    return Orientation(number > 4, upside_down=turn >= 2, mirrored=turn in (1, 2))


def _has_deep_channels(opened: ImageFile, data: bytes) -> bool:
    """Return whether several channels have more than the 8 bits that Pillow makes of them."""
    if opened.mode.startswith(("I", "F")):
        return False
    if opened.format == "TIFF":
        return bool(max(opened.tag_v2.get(_BITS_PER_SAMPLE, (1,))) > 8)  # type: ignore[attr-defined]
    return (opened.format == "PNG" and data[_PNG_BITS] > 8) or _maxval_of(opened) > 0xFF


def _maxval_of(opened: ImageFile) -> int:
    """Return the white of an image of the PPM family that was opened and not loaded, where Pillow scales it, else 0."""
    parameters = opened.tile[0][3] if opened.format == "PPM" else None
    return int(parameters[1]) if isinstance(parameters, tuple) else 0


def decode_by_pillow(data: bytes, divide: Divide) -> tuple[Image.Image, int]:
    """Decode an image by Pillow. Otherwise as :func:`decode_image`."""
    from PIL.Image import fromarray

    with open_image(data) as opened:
        image: Image.Image = opened
        width, height = image.size
        _check_size(width, height)
        by = divide(height, width)
        if by > 1:
            # Affects JPEG only, whose sides become at least these
            opened.draft(None, (width // by, height // by))
        is_deep = image.mode.startswith("I") or _has_deep_channels(opened, data)
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


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    """Decode an image to a NumPy array with all of its bits, as of depth maps, masks, microscopy and satellites.

    Values are those of the file, in its units: a depth map in millimetres stays one. Nothing is scaled, cut off or
    turned, but AVIF of 10 and 12 bits, and BMP of 16 bits per pixel, become 8 bits per channel. 16 bits in more than
    one channel are decoded by PyAV (extra ``[media]``), all else by Pillow. Of several pages or frames, the first.

    Args:
        data: a whole file.

    Returns:
        Shape ``(height, width)`` for one channel, else ``(height, width, channels)``, with alpha as the last one.
        uint8 for 2 to 8 bits, uint16 for 9 to 16 bits, uint32 for 32 bits, float32 for floats, bool for one bit, where
        white is true. Signed integers of TIFF: int8 for 8 bits, int32 for others. Of a palette, the numbers of the
        colours.

    Raises:
        ImportError: if PyAV is needed and cannot be imported.
        ValueError: if the image has more than ``MAX_PIXELS`` pixels.
        OSError: if the data are not an image, or incomplete.

    Example:
        >>> from PIL import Image
        >>> depth = np.array([[0, 4095, 65535]], np.uint16)
        >>> Image.fromarray(depth).save(file := io.BytesIO(), "PNG")
        >>> pixels(file.getvalue())
        array([[    0,  4095, 65535]], dtype=uint16)
    """
    with open_image(data) as opened:
        _check_size(*opened.size)
        maxval = _maxval_of(opened)
        if maxval not in (0, 0xFF, 0xFFFF):
            # Both libraries scale others to these
            header = b"%b %d %d %d\n" % (data[:2], *opened.size, 0xFF if maxval < 0xFF else 0xFFFF)
            return pixels(header + data[opened.tile[0].offset :])
        if _has_deep_channels(opened, data):
            return _by_pyav(data, _PYAV_FORMATS[str(opened.format)])
        tags = getattr(opened, "tag_v2", {})  # of TIFF
        layout = str(opened.tile[:1])
        opened.load()
        array = np.array(opened)
        if array.dtype.kind in "iu":
            kind = "i" if 2 in tags.get(_SAMPLE_FORMAT, ()) else "u"
            array = array.astype(f"{kind}{min(array.itemsize, 4 if tags else 2)}", copy=False)
        if found := re.search("'L;([24]?)(I?)", layout):
            # Pillow has scaled 2 and 4 bits to 8, and inverted those with a white of 0
            array = (~array if found[2] else array) // {"2": 85, "4": 17, "": 1}[found[1]]
        return array


def _by_pyav(data: bytes, name: str) -> np.ndarray[Any, Any]:
    with import_av("16 bits in more than one channel").open(io.BytesIO(data), format=name) as container:
        frame = next(container.decode(video=0))
        is_gray_alpha = frame.format.name.startswith("ya16")  # of which PyAV makes no array
        array: np.ndarray[Any, Any] = frame.to_ndarray(format="rgba64" if is_gray_alpha else None)
        return array[..., [0, 3]] if is_gray_alpha else array
