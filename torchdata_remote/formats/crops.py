"""Which part of an image a training sample shows, and decoding no more than that.

Crops are as torchvision's, from random numbers of the sample.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .decoders._pictures import (
    Orientation,
    Pixels,
    decode_by_pillow,
    decode_image,
    decode_jpeg,
    divisor,
    orientation_of,
    size_of_plain_jpeg,
)

_ATTEMPTS = 10
NUM_DRAWS = 3 + 2 * _ATTEMPTS
"""Random numbers that a sample needs: the first one for its flip."""

# Of each thread; larger images are decoded into memory of their own
_MAX_SCRATCH_BYTES = 32 << 20
_START_OF_FRAME = b"\xc0\xc1"  # of JPEGs with one pass over the image: baseline and extended
_WITHOUT_LENGTH = bytes([0x00, 0x01, *range(0xD0, 0xDB)])  # and the start of a scan, behind which pixels are
# Decoding ends at a row of blocks, which have 8 or 16 rows
_MIN_ROWS_SAVED = 16
# Chroma of the next rows is used where it is interpolated
_ROWS_BELOW = 2
_of_thread = threading.local()


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Region(NamedTuple):
    """What a sample shows of an image.

    Args:
        box: in pixels of the image.
        least: height and width that the box must keep, where it has them, if the image is decoded at a lower scale.
    """

    box: Box
    least: tuple[int, int]


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draws: Sequence[float]
) -> Box:
    """Return a crop with the distribution of torchvision's ``RandomResizedCrop`` (Szegedy et al., 2015).

    Its area is uniform in ``scale``, the logarithm of its aspect ratio in ``ratio``, and each position as likely. If
    the crop does not fit into the image ten times, it is the largest one in the middle with a ratio in ``ratio``.

    Args:
        height: of the image.
        width: of the image.
        scale: least and largest share of the image's area.
        ratio: least and largest width / height.
        draws: random numbers of the sample, from 0 to below 1.
    """
    area, low, high = height * width, math.log(ratio[0]), math.log(ratio[1])
    for at in range(3, NUM_DRAWS, 2):
        target = area * (scale[0] + (scale[1] - scale[0]) * draws[at])
        aspect = math.exp(low + (high - low) * draws[at + 1])
        crop_width, crop_height = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top, left = int(draws[1] * (height - crop_height + 1)), int(draws[2] * (width - crop_width + 1))
            return Box(top, left, crop_height, crop_width)
    crop_height = max(1, min(height, round(width / ratio[0])))
    crop_width = max(1, min(width, round(height * ratio[1])))
    return Box((height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width)


def resized_shape(height: int, width: int, shorter: int) -> tuple[int, int]:
    """Return height and width after torchvision's ``Resize(shorter)``, which keeps the aspect ratio.

    Example:
        >>> resized_shape(375, 500, 256)
        (256, 341)
    """
    if width <= height:
        return max(1, int(shorter * height / width)), shorter
    return shorter, max(1, int(shorter * width / height))


def center_box(height: int, width: int, size: tuple[int, int]) -> Box:
    """Return the box of torchvision's ``CenterCrop(size)`` in an image that is at least as large."""
    return Box(round((height - size[0]) / 2), round((width - size[1]) / 2), *size)


def decode_region(
    data: bytes | memoryview, choose: Callable[[int, int], Region], *, exif_orientation: bool = False
) -> Pixels:
    """Decode a part of an image to RGB, 8 bits per channel.

    A JPEG is decoded at a half, a quarter or an eighth of its width and height, if the part has the size that is needed
    then, too; its edges are rounded to pixels of that scale. simplejpeg, where it is installed, decodes the rows of a
    baseline JPEG down to the part's end only. Pixels do not depend on that, nor on the library.

    Args:
        data: a whole file.
        choose: called with height and width of the image; returns what of it is needed.
        exif_orientation: whether the image is turned first as its EXIF data ask for.

    Returns:
        Shape ``(height, width, 3)``, valid until the next call in the same thread.

    Raises:
        ValueError: as :func:`rgb`.
        OSError: if the data are not an image, or incomplete.
    """
    orientation = orientation_of(bytes(data)) if exif_orientation else Orientation()
    found: list[Region] = []

    def divide(height: int, width: int) -> int:
        found[:] = [choose(width, height) if orientation.transposed else choose(height, width)]
        return divisor(found[0].box[2:], found[0].least)

    if orientation == Orientation():
        size = size_of_plain_jpeg(data)
        if size is not None:
            by = divide(*size)
            pixels = _decode_rows(data, size, found[0].box, by)
            if pixels is not None:
                return _part(pixels, found[0].box, by)
        image, by = decode_by_pillow(bytes(data), divide)
    else:
        image, by = decode_image(bytes(data), divide)
    # Pillow's array cannot be written, which torch warns of
    return _part(orientation.applied(np.asarray(image)), found[0].box, by).copy()


def _part(pixels: Pixels, box: Box, by: int) -> Pixels:
    rows, columns = (
        _scaled(begin, length, by, limit) for begin, length, limit in zip(box[:2], box[2:], pixels.shape, strict=False)
    )
    return pixels[rows, columns]


def _scaled(begin: int, length: int, by: int, limit: int) -> slice:
    start = min((begin + by // 2) // by, limit - 1)
    return slice(start, max(start + 1, min((begin + length + by // 2) // by, limit)))


def _decode_rows(data: bytes | memoryview, size: tuple[int, int], box: Box, by: int) -> Pixels | None:
    """Decode a JPEG by simplejpeg, at least down to the box's end; return ``None`` if Pillow has to."""
    height, width = size
    memory = _memory(-(-height // by) * -(-width // by) * 3)
    rows = min(height, box.top + box.height + by * _ROWS_BELOW)
    at = _height_field(data, height) if height - rows >= _MIN_ROWS_SAVED else None
    if at is not None:
        cut = b"".join((data[:at], rows.to_bytes(2, "big"), data[at + 2 :]))
        pixels, warning = decode_jpeg(cut, (rows, width), by, memory)
        # libjpeg stops after these rows and skips what follows: the first warning shows that all before was sound
        if not warning or warning.endswith("extraneous bytes before marker 0xd9"):
            return pixels
    pixels, warning = decode_jpeg(data, size, by, memory)
    return None if warning else pixels


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
