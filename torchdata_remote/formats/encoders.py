"""Encode values as members, by extension. Bytes are not changed."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.arguments import int_of, is_pil_image
from ..errors import EncodeError
from .images import IMAGE_FORMATS
from .member_file import MemberFile

if TYPE_CHECKING:
    from PIL.Image import Image

_SAVE_OPTIONS: dict[str, dict[str, Any]] = {
    "AVIF": {"quality": 95},
    "JPEG": {"quality": 95},
    "WEBP": {"lossless": True, "exact": True},
}


def encode_member(extension: str, value: Any) -> bytes:
    """Encode ``value`` as the member with ``extension``.

    ``bytes``, ``memoryview`` and the files of lazy members, which are read whole, are not changed, so a JPEG is never
    encoded again. ``str`` becomes UTF-8, an integer
    (also of NumPy, or a tensor without dimensions) decimal digits, a ``PIL.Image`` a file of the format that the
    extension names (JPEG and AVIF at quality 95, WebP without loss), a NumPy array ``npy``. Under ``json`` every value
    but bytes, a ``str`` too, is written as JSON.

    Raises:
        EncodeError: if there is no encoding for this type under this extension.
    """
    if isinstance(value, bytes | bytearray | memoryview | MemberFile):
        return bytes(value)
    if not isinstance(extension, str):
        raise EncodeError(f"An extension is a str such as 'jpg', got {extension!r:.100}.")
    kind = extension.rpartition(".")[2]
    try:
        if is_pil_image(value) and kind in IMAGE_FORMATS:
            return _encode_image(IMAGE_FORMATS[kind], value)
        if kind == "json":
            return json.dumps(value, sort_keys=True, allow_nan=False).encode()
        if isinstance(value, np.ndarray) and kind == "npy":
            buffer = io.BytesIO()
            np.save(buffer, value, allow_pickle=False)
            return buffer.getvalue()
        if isinstance(value, str) and kind not in IMAGE_FORMATS and kind != "npy":
            return value.encode("utf-8")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise EncodeError(f"A {type(value).__name__} cannot be written as {extension!r}: {error}") from error
    number = int_of(value)
    if number is not None and kind not in IMAGE_FORMATS and kind != "npy":
        return str(number).encode()
    raise EncodeError(
        f"A {type(value).__name__} cannot be written as {extension!r}. Members are bytes, str, int, a PIL.Image "
        f"({', '.join(IMAGE_FORMATS)}), a NumPy array (npy), or anything that JSON knows (json)."
    )


def _encode_image(image_format: str, image: Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=image_format, **_SAVE_OPTIONS.get(image_format, {}))
    return buffer.getvalue()
