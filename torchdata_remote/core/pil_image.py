"""Recognise a ``PIL.Image`` without importing PIL."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from PIL.Image import Image


def is_pil_image(value: Any) -> TypeGuard[Image]:
    """Return whether a value is a ``PIL.Image``: none can be one before PIL has been imported.

    While another thread imports PIL, its module is there without its class.
    """
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return kind is not None and isinstance(value, kind)
