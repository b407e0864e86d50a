"""Check the options of ``decode_image``."""

from __future__ import annotations

from typing import Any, get_args

import torch

from ..core.arguments import check
from ..core.arguments.amounts import real, whole
from ..core.arguments.check import marked, shown
from ..formats.decoders import MAX_PIXELS
from .image_tensors import Crop, ImageTensors, Layout
from .members import alternatives

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
# Of mean and std, which a user may have in values of 0 to 255
_MOST = 16
# Normalised values are then finite in all types
_LEAST_STD = 0.001
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_LEAST_SCALE, _MOST_RATIO = 1e-6, 1000.0
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def image_tensors(
    size: Any,
    *,
    crop: Any,
    resize: Any,
    scale: Any,
    ratio: Any,
    flip: Any,
    dtype: Any,
    mean: Any,
    std: Any,
    layout: Any,
    exif_orientation: Any,
) -> ImageTensors:
    """Return how images become tensors.

    Raises:
        TypeError, ValueError: name the argument.
    """
    height, width = _size(size)
    if crop is not None and not _is_one_of(crop, get_args(Crop)):
        raise marked(ValueError(f"crop must be 'random', 'center' or None, got {shown(crop)}."))
    if not _is_one_of(layout, get_args(Layout)):
        raise marked(ValueError(f"layout must be 'CHW' or 'HWC', got {shown(layout)}."))
    if not (isinstance(dtype, torch.dtype) and dtype in _DTYPES):
        raise marked(ValueError(f"dtype must be one of {', '.join(map(str, _DTYPES))}, got {shown(dtype)}."))
    if dtype == torch.uint8 and (mean is not None or std is not None):
        raise marked(
            ValueError(
                "mean and std are for floats: leave them out, or pass dtype=torch.float32; got dtype torch.uint8."
            )
        )
    return ImageTensors(
        size=(height, width),
        crop=crop,
        shorter=_shorter(resize, crop, max(height, width)),
        scale=_range("scale", scale, crop, default=SCALE, least=_LEAST_SCALE, most=1.0),
        ratio=_range("ratio", ratio, crop, default=RATIO, least=1 / _MOST_RATIO, most=_MOST_RATIO),
        flip=_probability(flip, crop),
        dtype=dtype,
        mean=_channels("mean", _IMAGENET_MEAN if mean is None else mean, positive=False),
        std=_channels("std", _IMAGENET_STD if std is None else std, positive=True),
        layout=layout,
        exif_orientation=check.flag("exif_orientation", exif_orientation),
    )


def member_names(members: str) -> tuple[str, ...]:
    """Return the extensions of a ``members=`` argument.

    Raises:
        ValueError: if there is none, or one that no member has.
    """
    names = alternatives(check.text("members", members, example="jpg;png"))
    if not names:
        raise marked(ValueError(f"members must name one, such as 'jpg;png', got {members!r}."))
    for name in names:
        check.extension("members (separated by ';')", name, example="jpg")
    return names


def _is_one_of(value: Any, names: tuple[str, ...]) -> bool:
    # An array would be compared with each name, element by element
    return isinstance(value, str) and value in names


def _size(size: Any) -> tuple[int, int]:
    height, width = (whole("size", side) for side in _parts("size", size, 2, "an int, or (height, width)"))
    if height * width > MAX_PIXELS:
        raise marked(ValueError(f"size must have at most {MAX_PIXELS:_} pixels, got {height} x {width}."))
    return height, width


def _shorter(resize: Any, crop: Any, side: int) -> int:
    if resize is None:
        return round(side * 8 / 7)
    shorter = whole("resize", resize, or_none=True)
    if crop != "center":
        raise marked(ValueError(f"resize is for crop='center', got crop={crop!r}: the size is made at once."))
    if not side <= shorter <= MAX_PIXELS:
        limit = f"at least {side}, the larger side of size" if shorter < side else f"at most {MAX_PIXELS:_}"
        raise marked(ValueError(f"resize must be {limit}, got {shorter}."))
    return shorter


def _parts(name: str, value: Any, count: int, expected: str) -> list[Any]:
    """Return several values, from a sequence of them or one for all."""
    is_ordered = hasattr(value, "__getitem__") and not hasattr(value, "keys")
    if isinstance(value, str | bytes) or (hasattr(value, "__iter__") and not is_ordered):
        raise marked(TypeError(f"{name} must be {expected}, got {shown(value)}."))
    # Arrays and tensors without dimensions have a length, too, which is an error
    is_one = not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0
    parts = [value] * count if is_one else list(value)
    if len(parts) != count:
        raise marked(ValueError(f"{name} must be {expected}, got {shown(value)}."))
    return parts


def _range(
    name: str, value: Any, crop: Any, *, default: tuple[float, float], least: float, most: float
) -> tuple[float, float]:
    expected = "(least, most)"
    if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        raise marked(TypeError(f"{name} must be {expected}, got {shown(value)}."))
    low, high = (float(real(name, part)) for part in _parts(name, value, 2, expected))
    if not least <= low <= high <= most:
        raise marked(ValueError(f"{name} must be {expected}, from {least:g} to {most:g}, got {shown(value)}."))
    if crop != "random" and (low, high) != default:
        raise marked(ValueError(f"{name} is for crop='random', got crop={crop!r}. Leave it out."))
    return low, high


def _probability(flip: Any, crop: Any) -> float:
    if flip is None:
        return 0.5 if crop == "random" else 0.0
    if isinstance(flip, bool):
        raise marked(TypeError(f"flip must be a probability, got {flip}. Write {0.5 if flip else 0}."))
    probability = float(real("flip", flip, positive=False, unit="a probability"))
    if probability > 1:
        raise marked(ValueError(f"flip must be a probability of at most 1, got {shown(flip)}."))
    return probability


def _channels(name: str, value: Any, *, positive: bool) -> tuple[float, float, float]:
    parts = _parts(name, value, 3, "a number, or one for each of the three channels")
    red, green, blue = (float(real(name, part, positive=positive)) for part in parts)
    largest = max(red, green, blue)
    if largest > _MOST:
        raise marked(ValueError(f"{name} must be from 0 to 1, where 1 is white, got {largest:g}. Divide by 255."))
    if positive and min(red, green, blue) < _LEAST_STD:
        raise marked(ValueError(f"{name} must be at least {_LEAST_STD:g}, got {min(red, green, blue):g}."))
    return red, green, blue
