"""Decode members to values, by extension. No decoder unpickles anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ...core import arguments as check
from ..images import IMAGE_FORMATS
from ._audio import AudioSection, audio
from ._compressed import Decompressing
from ._pixels import pixels
from ._rgb import RgbAtLeast, rgb
from ._tensors import npz, safetensors, torch_file
from ._turbojpeg import MAX_PIXELS
from ._values import integer, npy, text
from ._video import VideoFrames, video, video_clips

__all__ = [
    "DEFAULT_DECODERS",
    "MAX_PIXELS",
    "AudioSection",
    "Decoder",
    "RgbAtLeast",
    "VideoFrames",
    "audio",
    "checked_decoders",
    "integer",
    "npy",
    "npz",
    "pixels",
    "rgb",
    "safetensors",
    "takes_files",
    "text",
    "torch_file",
    "video",
    "video_clips",
]

Decoder = Callable[[Any], Any]
"""Makes a value of the bytes of a member, or of the file of a lazy one."""

DEFAULT_DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(IMAGE_FORMATS, rgb),
    "cls": integer,
    "json": json.loads,
    "txt": text,
    "npy": npy,
    "npz": npz,
    "safetensors": safetensors,
    **dict.fromkeys(("pt", "pth"), torch_file),
}
_OF_BYTES = frozenset({*DEFAULT_DECODERS.values(), pixels})


def takes_files(decoder: Decoder) -> bool:
    """Return whether a decoder is given the file of a lazy member; those of this package that decode bytes are not."""
    if isinstance(decoder, RgbAtLeast | Decompressing):
        return False
    try:
        return decoder not in _OF_BYTES
    except TypeError:  # of the user, without a hash
        return True


def checked_decoders(decoders: Mapping[str, Decoder] | None) -> dict[str, Decoder]:
    """Return the decoders of a ``decoders=`` argument, by extension in lower case.

    Raises:
        TypeError: if it is not a dict of functions.
        ValueError: for an extension with a dot before it, which no member has, and for two that differ in case only.
    """
    example = '{"jpg": decoders.rgb}'
    if decoders is None:
        return {}
    if not isinstance(decoders, Mapping):
        raise check.marked(
            TypeError(
                f"decoders must be a dict from extension to function such as {example}, got {check.shown(decoders)}."
            )
        )
    found: dict[str, Decoder] = {}
    for written, decoder in decoders.items():
        extension = check.extension("the extension of a decoder", written, example="jpg")
        if extension in found:
            raise check.marked(ValueError(f"decoders differ in case only: {' and '.join(map(repr, decoders))}."))
        found[extension] = check.function(f"decoders[{written!r}]", decoder, example="decoders.rgb")
    return found
