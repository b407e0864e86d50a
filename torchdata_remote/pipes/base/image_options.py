"""Check the options of ``decode_image``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch

from ...core.arguments.amounts import real, whole
from ...core.arguments.check import marked, shown
from .image_tensors import Crop, ImageTensors, Layout

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
# Of mean and std, which someone may have in values of 0 to 255
_MOST = 16
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
) -> ImageTensors:
    """Return how images become tensors.

    Raises:
        TypeError, ValueError: name the argument.
    """
    height, width = (whole("size", side) for side in _parts("size", size, 2, "an int, or (height, width)"))
    if crop is not None and crop not in get_args(Crop):
        raise marked(ValueError(f"crop must be 'random', 'center' or None, got {shown(crop)}."))
    if layout not in get_args(Layout):
        raise marked(ValueError(f"layout must be 'CHW' or 'HWC', got {shown(layout)}."))
    if dtype not in _DTYPES:
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
        scale=_range("scale", scale, at_most=1.0),
        ratio=_range("ratio", ratio),
        flip=_probability(flip, crop),
        dtype=dtype,
        mean=_channels("mean", _IMAGENET_MEAN if mean is None else mean, positive=False),
        std=_channels("std", _IMAGENET_STD if std is None else std, positive=True),
        layout=layout,
    )


def _shorter(resize: Any, crop: Any, side: int) -> int:
    if resize is None:
        return round(side * 8 / 7)
    shorter = whole("resize", resize, or_none=True)
    if crop != "center":
        raise marked(ValueError(f"resize is for crop='center', got crop={crop!r}: the size is made at once."))
    if shorter < side:
        raise marked(ValueError(f"resize must be at least {side}, the larger side of size, got {shorter}."))
    return shorter


def _parts(name: str, value: Any, count: int, expected: str) -> list[Any]:
    """Return several values, from a sequence of them or one for all."""
    if isinstance(value, str | bytes) or (not isinstance(value, Sequence | torch.Tensor) and hasattr(value, "keys")):
        raise marked(TypeError(f"{name} must be {expected}, got {shown(value)}."))
    parts = list(value) if hasattr(value, "__len__") else [value] * count
    if len(parts) != count:
        raise marked(ValueError(f"{name} must be {expected}, got {shown(value)}."))
    return parts


def _range(name: str, value: Any, at_most: float | None = None) -> tuple[float, float]:
    expected = "(least, most)"
    if not hasattr(value, "__len__"):
        raise marked(TypeError(f"{name} must be {expected}, got {shown(value)}."))
    low, high = (float(real(name, part)) for part in _parts(name, value, 2, expected))
    if low > high or (at_most is not None and high > at_most):
        limit = "" if at_most is None else f", at most {at_most:g}"
        raise marked(ValueError(f"{name} must be {expected}{limit}, got {shown(value)}."))
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
    return red, green, blue
