"""Write an encoded image into a tensor: decode, crop, resize, flip and normalise.

Pixels are copied and scaled by NumPy, because torch divides work of this size among threads of its own, which compete
with those that decode. ``interpolate`` handles an image of 8 bits in the calling thread.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch.nn.functional import interpolate

from ...formats.crops.boxes import Box, Draws, center_box, is_flipped, random_box, resized_shape
from ...formats.crops.region import Pixels, Region, decode_region

Crop = Literal["random", "center"]
Layout = Literal["CHW", "HWC"]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

# Below the number of elements for which torch starts threads
_COPIED_AT_ONCE = 1 << 14
# Of each thread and use; larger ones are not kept
_MAX_SCRATCH_BYTES = 32 << 20
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

    def write(self, data: bytes | memoryview, row: torch.Tensor, *, seed: int, epoch: int, key: object) -> None:
        """Decode an image into a tensor.

        Args:
            data: a whole file.
            row: contiguous, of this shape and dtype.
            seed: of the random choices.
            epoch: of the random choices.
            key: of the random choices.

        Raises:
            ValueError, OSError: as :func:`rgb`.
        """
        draws = Draws(seed, epoch, key)

        def choose(height: int, width: int) -> Region:
            if self.crop == "random":
                return Region(random_box(height, width, self.scale, self.ratio, draws), self.size)
            least = resized_shape(height, width, self.shorter) if self.crop == "center" else self.size
            chosen.append(least)
            return Region(Box(0, 0, height, width), least)

        chosen: list[tuple[int, int]] = []
        pixels = resized(decode_region(data, choose), chosen[0] if chosen else self.size)
        if self.crop == "center":
            top, left, height, width = center_box(*chosen[0], self.size)
            pixels = pixels[top : top + height, left : left + width]
        if self.flip and is_flipped(draws, self.flip):
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
    # torch has a fast way for images whose channels are last in memory
    image = torch.from_numpy(np.ascontiguousarray(pixels)[None]).permute(0, 3, 1, 2)
    made: Pixels = interpolate(image, size, mode="bilinear", antialias=True).permute(0, 2, 3, 1).numpy()[0]
    return made


def _scratch(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an array of this thread, which is used again: new memory costs page faults. Its content is undefined."""
    memory = getattr(_of_thread, name, None)
    length = math.prod(shape)
    if memory is None or len(memory) < length:
        memory = np.empty(length, dtype)
        if memory.nbytes <= _MAX_SCRATCH_BYTES:
            setattr(_of_thread, name, memory)
    return memory[:length].reshape(shape)
