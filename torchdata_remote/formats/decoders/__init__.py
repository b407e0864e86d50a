"""Decode members to values, by extension. No decoder unpickles anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ...core.arguments import check
from ..images import IMAGE_FORMATS
from ._rgb import RgbAtLeast, rgb
from ._turbojpeg import MAX_PIXELS
from ._values import integer, npy, text

__all__ = [
    "DEFAULT_DECODERS",
    "MAX_PIXELS",
    "Decoder",
    "RgbAtLeast",
    "checked_decoders",
    "integer",
    "npy",
    "rgb",
    "text",
]

Decoder = Callable[[bytes], Any]

DEFAULT_DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(IMAGE_FORMATS, rgb),
    "cls": integer,
    "json": json.loads,
    "txt": text,
    "npy": npy,
}


def checked_decoders(decoders: Mapping[str, Decoder] | None) -> dict[str, Decoder]:
    """Return the decoders of a ``decoders=`` argument.

    Raises:
        TypeError: if it is not a dict of functions.
        ValueError: for an extension with a dot before it, or in upper case, which no member has.
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
    for extension, decoder in decoders.items():
        check.text("the extension of a decoder", extension, example="jpg")
        expected = extension.lstrip("*.").lower()
        if extension != expected:
            raise check.marked(
                ValueError(
                    f"no member has the extension {extension!r}: extensions are in lower case, without a dot. "
                    f"Write {expected!r}."
                )
            )
        check.function(f"decoders[{extension!r}]", decoder, example="decoders.rgb")
    return dict(decoders)
