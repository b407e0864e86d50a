"""Which part of an image a training sample shows: crops as torchvision's, from random numbers of the sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_ATTEMPTS = 10
NUM_DRAWS = 3 + 2 * _ATTEMPTS
"""Random numbers that a sample needs: the first one for its flip."""


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


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
    crop_height, crop_width = height, width
    if width / height < ratio[0]:
        crop_height = min(height, max(1, round(width / ratio[0])))
    elif width / height > ratio[1]:
        crop_width = min(width, max(1, round(height * ratio[1])))
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
