"""Images with the detail of photographs, for comparisons of decoders."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image


@lru_cache
def photograph(width: int = 250, height: int = 188) -> Image.Image:
    """Return an image with gradients, edges and noise in each channel."""
    source = np.random.default_rng(0)
    down, right = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)[None, :]
    channels = []
    for waves in (2, 3, 5):
        smooth = 128 + 60 * np.sin(waves * (down + right)) + 40 * np.cos(2 * waves * (down - right))
        edges = 50.0 * ((down * waves * 2 + right * waves).astype(int) % 2)
        channels.append(smooth + edges + source.normal(0, 6, (height, width)))
    return Image.fromarray(np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, image_format: str = "JPEG", **options: Any) -> bytes:
    """Return the image as a file."""
    file = io.BytesIO()
    image.save(file, image_format, **options)
    return file.getvalue()
