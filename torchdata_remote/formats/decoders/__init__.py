"""Decode members to values, by extension. No decoder unpickles anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..images import IMAGE_FORMATS
from ._rgb import RgbAtLeast, rgb
from ._turbojpeg import MAX_PIXELS
from ._values import integer, npy, text

__all__ = ["DEFAULT_DECODERS", "MAX_PIXELS", "Decoder", "RgbAtLeast", "integer", "npy", "rgb", "text"]

Decoder = Callable[[bytes], Any]

DEFAULT_DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(IMAGE_FORMATS, rgb),
    "cls": integer,
    "json": json.loads,
    "txt": text,
    "npy": npy,
}
