"""Write an encoded image into a tensor: decode, crop, resize, flip and normalise.

Pixels are copied and scaled by NumPy, because torch divides work of this size among threads of its own, which compete
with those that decode. ``interpolate`` handles an image of 8 bits in the calling thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch.nn.functional import interpolate

from ..formats.crops.boxes import Box, center_box, random_box, resized_shape
from ..formats.crops.region import Pixels, Region, decode_region, decode_shown_region
from ..formats.decoders import MAX_PIXELS

Crop = Literal["random", "center"]
Layout = Literal["CHW", "HWC"]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

# Below the number of elements for which torch starts threads
_COPIED_AT_ONCE = 1 << 14
# Of each thread and use; larger ones are not kept
_MAX_SCRATCH_BYTES = 32 << 20
# Times as many pixels as the crop in the middle has, which are resized with it at the most
_MOST_UNUSED = 4
_of_thread = threading.local()


@dataclass(frozen=True)
class ImageTensors:
    """How images become tensors; checked by the pipe.

    Args:
        size: height and width.
        crop: which part is shown; ``None`` for all.
        shorter: side of the image before the crop in its centre.
        scale: of a random crop.
        ratio: of a random crop.
        flip: probability.
        dtype: of the tensors.
        mean: of each channel, for floats.
        std: of each channel, for floats.
        layout: order of the dimensions.
        exif_orientation: whether images are turned as their EXIF data ask for.
    """

    size: tuple[int, int]
    crop: Crop | None
    shorter: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float
    dtype: torch.dtype
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    layout: Layout
    exif_orientation: bool
    _factors: tuple[Floats, Floats] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        mean, std = np.array(self.mean), np.array(self.std)
        factors = (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)
        if self.layout == "CHW":
            broad = tuple(factor[:, None, None] for factor in factors)
        else:
            # A row of pixels as one line, for which NumPy's inner loops are long
            broad = tuple(np.tile(factor, self.size[1]) for factor in factors)
        object.__setattr__(self, "_factors", broad)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a tensor."""
        return (3, *self.size) if self.layout == "CHW" else (*self.size, 3)

    @property
    def is_random(self) -> bool:
        """Whether crop or flip need random numbers."""
        return self.crop == "random" or self.flip > 0

    def write(self, data: bytes | memoryview, row: torch.Tensor, draws: Sequence[float]) -> None:
        """Decode an image into a tensor.

        Args:
            data: a whole file.
            row: contiguous, of this shape and dtype.
            draws: ``NUM_DRAWS`` random numbers of the sample, from 0 to below 1; none without crop and flip.

        Raises:
            ValueError, OSError: as :func:`rgb`.
        """

        def choose(height: int, width: int) -> Region:
            if self.crop == "random":
                return Region(random_box(height, width, self.scale, self.ratio, draws), self.size)
            least = resized_shape(height, width, self.shorter) if self.crop == "center" else self.size
            chosen.append(least)
            return Region(Box(0, 0, height, width), least)

        chosen: list[tuple[int, int]] = []
        pixels = (decode_shown_region if self.exif_orientation else decode_region)(data, choose)
        if self.crop == "center":
            pixels = resized_part(pixels, chosen[0], center_box(*chosen[0], self.size))
        else:
            pixels = resized(pixels, self.size)
        if self.flip and draws[0] < self.flip:
            pixels = pixels[:, ::-1]
        self._copy(pixels, row)

    def _copy(self, pixels: Pixels, row: torch.Tensor) -> None:
        if self.dtype == torch.uint8:
            self._arrange(pixels, row.numpy())
        elif self.dtype == torch.float32:
            self._normalize(pixels, row.numpy())
        else:
            # NumPy has no bfloat16, and is slow at float16
            normalized = _scratch("floats", self.shape, np.float32)
            self._normalize(pixels, normalized)
            source, target = torch.from_numpy(normalized).view(-1), row.view(-1)
            for at in range(0, len(source), _COPIED_AT_ONCE):
                target[at : at + _COPIED_AT_ONCE].copy_(source[at : at + _COPIED_AT_ONCE])

    def _normalize(self, pixels: Pixels, target: Floats) -> None:
        arranged = _scratch("pixels", self.shape, np.uint8)
        self._arrange(pixels, arranged)
        np.copyto(target, arranged)
        lines = target if self.layout == "CHW" else target.reshape(self.size[0], -1)
        factor, offset = self._factors
        np.multiply(lines, factor, out=lines)
        np.add(lines, offset, out=lines)

    def _arrange(self, pixels: Pixels, target: Pixels) -> None:
        if self.layout == "CHW":
            np.copyto(target, pixels.transpose(2, 0, 1))
        elif pixels.strides[1] > 0:
            np.copyto(target, pixels)
        else:
            # NumPy copies mirrored pixels one by one, channels much faster
            for channel in range(3):
                np.copyto(target[..., channel], pixels[..., channel])


def resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize by bilinear interpolation with antialiasing, as Pillow's ``resize(size, Resampling.BILINEAR)``.

    Args:
        pixels: shape ``(height, width, 3)``.
        size: height and width to make.

    Returns:
        Shape ``(*size, 3)``; it may share memory with ``pixels``.
    """
    if pixels.shape[:2] == size:
        return pixels
    _check_memory(pixels.shape[0], size)
    # torch has a fast way for images whose channels are last in memory
    image = torch.from_numpy(np.ascontiguousarray(pixels)[None]).permute(0, 3, 1, 2)
    made: Pixels = interpolate(image, size, mode="bilinear", antialias=True).permute(0, 2, 3, 1).numpy()[0]
    return made


def resized_part(pixels: Pixels, size: tuple[int, int], box: Box) -> Pixels:
    """Resize, and return a part of what that makes.

    Args:
        pixels: shape ``(height, width, 3)``.
        size: height and width of the whole.
        box: the part.

    Returns:
        Shape ``(box.height, box.width, 3)``; it may share memory with ``pixels``.
    """
    top, left, height, width = box
    if size[0] * size[1] <= _MOST_UNUSED * height * width:
        return resized(pixels, size)[top : top + height, left : left + width]
    # Pillow makes the part alone, with the same pixels, but is slower than torch where most of the whole is needed
    from PIL import Image

    by_row, by_column = pixels.shape[0] / size[0], pixels.shape[1] / size[1]
    bottom, right = min((top + height) * by_row, pixels.shape[0]), min((left + width) * by_column, pixels.shape[1])
    _check_memory(math.ceil(height * by_row + 2 * max(1.0, by_row)), (height, width))
    image = Image.fromarray(np.ascontiguousarray(pixels))
    part = image.resize((width, height), Image.Resampling.BILINEAR, box=(left * by_column, top * by_row, right, bottom))
    return np.asarray(part).copy()


def _check_memory(rows: int, size: tuple[int, int]) -> None:
    """Check the memory that resizing needs: rows are made as wide as the result first.

    Raises:
        ValueError: if it is more than that of the largest image.
    """
    if rows * size[1] > MAX_PIXELS:
        raise ValueError(
            f"resizing {rows} rows to {size[0]} x {size[1]} needs {rows * size[1]:,} pixels, more than the limit of "
            f"{MAX_PIXELS:,}"
        )


def _scratch(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of this thread, which is used again: new memory costs page faults. Its content is undefined."""
    memory = getattr(_of_thread, name, None)
    length = math.prod(shape)
    if memory is None or len(memory) < length:
        memory = np.empty(length, dtype)
        if memory.nbytes <= _MAX_SCRATCH_BYTES:
            setattr(_of_thread, name, memory)
    return memory[:length].reshape(shape)
