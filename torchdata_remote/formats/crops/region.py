"""Decode the part of an image that a crop shows, no larger than it is needed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..decoders import _turbojpeg as turbojpeg
from ..decoders._orientation import Orientation
from ..decoders._rgb import decode_by_pillow, orientation_of
from .boxes import Box

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

# Of each thread; larger images are decoded into memory of their own
_MAX_SCRATCH_BYTES = 32 << 20
_START_OF_FRAME = b"\xc0\xc1"  # of JPEGs with one pass over the image: baseline and extended
_WITHOUT_LENGTH = bytes([0x00, 0x01, *range(0xD0, 0xDB)])  # and the start of a scan, behind which pixels are
# Decoding ends at a row of blocks, which have 8 or 16 rows
_MIN_ROWS_SAVED = 16
# Chroma of the next rows is used where it is interpolated
_ROWS_BELOW = 2
_of_thread = threading.local()


class Region(NamedTuple):
    """What a sample shows of an image.

    Args:
        box: in pixels of the image.
        least: height and width that the box must keep, where it has them, if the image is decoded at a lower scale.
    """

    box: Box
    least: tuple[int, int]


Choose = Callable[[int, int], Region]


def decode_shown_region(data: bytes | memoryview, choose: Choose) -> Pixels:
    """Decode a part of an image that is turned as its EXIF data ask for. Otherwise as :func:`decode_region`."""
    orientation = orientation_of(bytes(data))
    return orientation.applied(decode_region(data, lambda height, width: _stored(orientation, choose, height, width)))


def _stored(orientation: Orientation, choose: Choose, height: int, width: int) -> Region:
    """Return what is needed of the stored image of that size, for a part of the image as it is shown."""
    if orientation.transposed:
        height, width = width, height
    (top, left, rows, columns), least = choose(height, width)
    if orientation.upside_down:
        top = height - top - rows
    if orientation.mirrored:
        left = width - left - columns
    if orientation.transposed:
        return Region(Box(left, top, columns, rows), (least[1], least[0]))
    return Region(Box(top, left, rows, columns), least)


def decode_region(data: bytes | memoryview, choose: Choose) -> Pixels:
    """Decode a part of an image to RGB, 8 bits per channel.

    A JPEG is decoded at a half, a quarter or an eighth of its width and height, if the part has the size that is needed
    then, too; its edges are rounded to pixels of that scale. simplejpeg, where it is installed, decodes the rows of a
    baseline JPEG down to the part's end only. Pixels do not depend on that, nor on the library.

    Args:
        data: a whole file.
        choose: called with height and width of the image; returns what of it is needed.

    Returns:
        Shape ``(height, width, 3)``, valid until the next call in the same thread.

    Raises:
        ValueError: as :func:`rgb`.
        OSError: if the data are not an image, or incomplete.
    """
    header = turbojpeg.header_of_plain_jpeg(data)
    if header is not None:
        height, width = header
        region = choose(height, width)
        by = _divisor(region)
        pixels = _decode_rows(data, height, width, region.box, by)
        if pixels is not None:
            return _part(pixels, region.box, by)
    found: list[Region] = []

    def divisor(width: int, height: int) -> int:
        found.append(choose(height, width))
        return _divisor(found[0])

    image, by = decode_by_pillow(bytes(data), divisor)
    # Pillow's array cannot be written, which torch warns of
    return _part(np.asarray(image), found[0].box, by).copy()


def _divisor(region: Region) -> int:
    (_, _, height, width), least = region
    return next((by for by in (8, 4, 2) if height >= by * least[0] and width >= by * least[1]), 1)


def _part(pixels: Pixels, box: Box, by: int) -> Pixels:
    (top, bottom), (left, right) = (
        _scaled(box.top, box.height, by, pixels.shape[0]),
        _scaled(box.left, box.width, by, pixels.shape[1]),
    )
    return pixels[top:bottom, left:right]


def _scaled(begin: int, length: int, by: int, limit: int) -> tuple[int, int]:
    start = min((begin + by // 2) // by, limit - 1)
    return start, max(start + 1, min((begin + length + by // 2) // by, limit))


def _decode_rows(data: bytes | memoryview, height: int, width: int, box: Box, by: int) -> Pixels | None:
    """Decode a JPEG by simplejpeg, at least down to the box's end; return ``None`` if Pillow has to."""
    rows = min(height, box.top + box.height + by * _ROWS_BELOW)
    at = _height_field(data, height) if height - rows >= _MIN_ROWS_SAVED else None
    if at is not None:
        cut = b"".join((data[:at], rows.to_bytes(2, "big"), data[at + 2 :]))
        pixels, warning = _decode(cut, rows, width, by)
        # libjpeg stops after these rows and skips what follows: the first warning shows that all before was sound
        if not warning or warning.endswith("extraneous bytes before marker 0xd9"):
            return pixels
    pixels, warning = _decode(data, height, width, by)
    return None if warning else pixels


def _decode(data: bytes | memoryview, height: int, width: int, by: int) -> tuple[Pixels, str]:
    """Decode by simplejpeg; return the pixels, and its first warning or error."""
    shape = (-(-height // by), -(-width // by), 3)
    memory = _memory(math.prod(shape))
    warning = turbojpeg.decode_into(memory, data, shape, is_scaled=by > 1)
    return memory[: math.prod(shape)].reshape(shape), warning


def _memory(num_bytes: int) -> Pixels:
    memory: Pixels | None = getattr(_of_thread, "memory", None)
    if memory is None or len(memory) < num_bytes:
        memory = np.empty(num_bytes, np.uint8)
        if num_bytes <= _MAX_SCRATCH_BYTES:
            _of_thread.memory = memory
    return memory


def _height_field(data: bytes | memoryview, height: int) -> int | None:
    """Return where the height stands in a JPEG that is decoded in one pass, else ``None``."""
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in _START_OF_FRAME:
            return at + 5 if int.from_bytes(data[at + 5 : at + 7], "big") == height else None
        if marker in _WITHOUT_LENGTH:
            return None
        # Any marker may be preceded by more bytes of 0xFF
        at += 1 if marker == 0xFF else 2 + length
    return None
