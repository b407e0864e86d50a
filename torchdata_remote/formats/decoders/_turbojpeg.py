"""Decode JPEG by simplejpeg (extra ``turbo``): libjpeg-turbo, from memory into an array; and limits of all images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

try:
    import simplejpeg  # type: ignore[import-untyped]
except (ImportError, ValueError):  # the latter if it was built for another numpy
    simplejpeg = None

# 67 million, 200 MB as RGB. ImageNet's largest image has 13 million; Pillow warns above 89 million.
MAX_PIXELS = 1 << 26
_COLOURS = ("RGB", "YCbCr", "Gray")
# For smaller images several scales of libjpeg-turbo result in the same size
_MIN_SIDE = 8


def check_size(width: int, height: int) -> None:
    """Check the number of pixels, before memory is allocated for them.

    Raises:
        ValueError: if there are more than ``MAX_PIXELS``.
    """
    if width * height > MAX_PIXELS:
        raise ValueError(f"{width} x {height} are more pixels than the limit of {MAX_PIXELS:,}")


def divisor(width: int, height: int, min_size: int | None) -> int:
    """Return the largest of 8, 4 and 2 by which both sides can be divided and keep ``min_size``, else 1.

    Example:
        >>> divisor(500, 375, 224), divisor(500, 448, 224), divisor(500, 448, None)
        (1, 2, 1)
    """
    if min_size is None:
        return 1
    return next((by for by in (8, 4, 2) if min(width, height) // by >= min_size), 1)


def header_of_plain_jpeg(data: bytes | memoryview) -> tuple[int, int] | None:
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
    check_size(width, height)
    if colours not in _COLOURS or min(width, height) < _MIN_SIDE:
        return None
    return height, width


def decode_plain_jpeg(data: bytes, min_size: int | None) -> Image | None:
    """Decode a plain JPEG; return ``None`` if Pillow has to.

    Pillow decodes everything that is not plain (other formats, CMYK, YCCK) and everything that simplejpeg refuses,
    which is all that libjpeg warns of. So the same files raise the same errors with and without simplejpeg.

    Raises:
        ValueError: for more than ``MAX_PIXELS`` pixels.
    """
    header = header_of_plain_jpeg(data)
    if header is None:
        return None
    height, width = header
    by = divisor(width, height, min_size)
    least = {} if by == 1 else {"min_width": -(-width // by), "min_height": -(-height // by)}
    try:
        pixels = simplejpeg.decode_jpeg(data, **least)
    except ValueError:
        return None
    from PIL.Image import fromarray  # imported by the first image that is decoded

    return fromarray(pixels)


def decode_into(
    memory: np.ndarray[Any, np.dtype[np.uint8]], data: bytes | memoryview, shape: tuple[int, ...], *, is_scaled: bool
) -> str:
    """Decode a plain JPEG into memory, as RGB of this shape; return libjpeg's first warning or error, or ``""``.

    After a warning, the pixels are those that libjpeg made before and after it.
    """
    least = {"min_height": shape[0], "min_width": shape[1]} if is_scaled else {}
    try:
        found = simplejpeg.decode_jpeg(data, buffer=memory, **least).shape
    except ValueError as error:
        return str(error) or "unknown"
    return "" if found == shape else f"decoded to {found}, not {shape}"
