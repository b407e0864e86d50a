"""``decode_image``: decode, crop, resize, flip and normalise images for training, straight into batches.

Pixels are copied and scaled by NumPy, because torch divides work of this size among threads of its own, which compete
with those that decode. ``interpolate`` handles an image of 8 bits in the calling thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn.functional import interpolate

from ..core import arguments as check
from ..core.arguments import marked, real, seed_of, shown, whole
from ..core.batch_memory import new_tensor
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.stats import DECODE
from ..formats.crops import NUM_DRAWS, Box, Region, center_box, decode_region, random_box, resized_shape
from ..formats.decoders import MAX_PIXELS, Pixels, decode_error
from ..formats.error_policy import OnBadSample, raise_error
from ..formats.sample import Sample, require_sample
from .draws import Draws
from .env import Env
from .members import alternatives, member_named, no_member
from .passes import Pass
from .threaded import ThreadedMap, works_ahead

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.uint8)
# Of mean and std, which a user may have in values of 0 to 255
_MOST = 16
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
_LEAST_SCALE, _MOST_RATIO = 1e-6, 1000.0
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Below the number of elements for which torch starts threads
_COPIED_AT_ONCE = 1 << 14
# Of each thread and use; larger ones are not kept
_MAX_SCRATCH_BYTES = 32 << 20
_of_thread = threading.local()


class _Task(NamedTuple):
    sample: Sample
    name: str | None  # and no row, if it has none of the members
    row: torch.Tensor | None


@functional_datapipe("decode_image")
class DecodeImage(ThreadedMap[Sample]):
    """Decode images to tensors: crop, resize, flip and normalise in one step (functional name: ``decode_image``).

    It does the work of torchvision's ``RandomResizedCrop``, ``RandomHorizontalFlip``, ``ToTensor`` and ``Normalize``
    in about half of the CPU time, and writes the result where the batch of ``thread_loader`` needs it.

    Crop and flip of a sample are determined by the seed, the epoch, the key and the path of its shard below the source:
    they are the same with any number of ranks, workers, threads and streams, in any order, after a resume, and in a
    copy of the folder. Their distribution is torchvision's. Epochs are counted as by ``shuffle_shards``.

    Images become RGB, 8 bits per channel, as :func:`decoders.rgb` makes them: gray, palette, CMYK and, with a warning,
    16-bit images are converted, alpha is dropped. JPEGs are decoded by simplejpeg if it is installed
    (``pip install 'torchdata_remote[turbo]'``), else by Pillow, to the same pixels. Where simplejpeg decodes, it stops
    below the crop. Damage in the middle of a JPEG is noticed only if Pillow refuses the file. An image at least twice
    as large as needed is decoded at a half, a quarter or an eighth of its size. Resizing is bilinear with antialiasing.

    Compared with Pillow's ``crop`` and ``resize``, no value of 0 to 255 differs by more than 1 at full scale. Where the
    scale is reduced, the edges of a crop are rounded to pixels of that scale, and values of photographs
    differ by about 3 on average.

    Args:
        source_datapipe: samples.
        size: height and width of the tensors; an int for both.
        crop: ``"random"`` shows a random part, for training. ``"center"`` resizes the shorter side to ``resize`` and
            shows the middle, for evaluation. ``None`` shows all, and does not keep the aspect ratio.
        resize: shorter side in pixels before the crop in the middle; ``None`` for 8/7 of the size, 256 for 224.
        scale: share of the area that a random crop has, at least and at most: from 1e-6 to 1.
        ratio: width / height of a random crop, at least and at most: from 0.001 to 1000.
        flip: probability of a horizontal flip; ``None`` for 0.5 with ``crop="random"``, else 0.
        dtype: ``torch.float32``, ``torch.float16`` or ``torch.bfloat16``, normalised; ``torch.uint8`` for 0 to 255,
            to be normalised on the GPU.
        mean: of the channels, where 1 is white; a number for all. ``None`` for ImageNet's: 0.485, 0.456, 0.406.
        std: of the channels; ``None`` for ImageNet's: 0.229, 0.224, 0.225.
        layout: ``"CHW"`` or ``"HWC"``, the order of the dimensions.
        exif_orientation: turn and mirror images as their EXIF data ask for, before the crop.
        members: extensions separated by ``;``, in any case, of which the first that the sample has is decoded. Its name
            stays.
        seed: any int.
        num_threads: that decode, as those of ``parallel_map`` do. ``None`` for those that the loader gives, as
            ``thread_loader`` does, or none.
        on_bad_sample: called with the error of a sample: as of ``decode_sample``.

    Yields:
        dict: a new sample, whose image is a tensor of shape ``(3, height, width)``, or ``(height, width, 3)``.

    Raises:
        DecodeError: names member, sample and shard; the decoder's own error is its ``__cause__``. Also for more than
            ``decoders.MAX_PIXELS`` pixels, of the file or while it is resized.
        MissingMemberError: names the sample, the requested members and the existing ones.
        SampleError: for a sample without a key, which random crops and flips need.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> Image.new("RGB", (500, 375), "red").save(file := io.BytesIO(), "JPEG")
        >>> samples = IterableWrapper([{"__key__": "1", "jpg": file.getvalue(), "cls": b"3"}])
        >>> (sample,) = DecodeImage(samples, 224).decode_sample()
        >>> sample["jpg"].shape, sample["jpg"].dtype, sample["cls"]
        (torch.Size([3, 224, 224]), torch.float32, 3)
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Sample],
        size: int | Sequence[int],
        *,
        crop: Literal["random", "center"] | None = "random",
        resize: int | None = None,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        flip: float | None = None,
        dtype: torch.dtype = torch.float32,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        layout: Literal["CHW", "HWC"] = "CHW",
        exif_orientation: bool = False,
        members: str = "jpg;jpeg;png;webp;avif",
        seed: int = 0,
        num_threads: int | None = None,
        on_bad_sample: OnBadSample = raise_error,
    ) -> None:
        super().__init__(source_datapipe, num_threads, on_bad_sample=on_bad_sample)
        height, width = (whole("size", side) for side in _several("size", size, 2, "an int, or (height, width)"))
        if height * width > MAX_PIXELS:
            raise marked(ValueError(f"size must have at most {MAX_PIXELS:_} pixels, got {height} x {width}."))
        self._size = height, width
        self._crop = _one_of("crop", crop, ("random", "center", None))
        self._layout = _one_of("layout", layout, ("CHW", "HWC"))
        self._dtype = _one_of("dtype", dtype, _DTYPES)
        if dtype == torch.uint8 and (mean is not None or std is not None):
            advice = "leave them out, or pass dtype=torch.float32; got dtype torch.uint8."
            raise marked(ValueError(f"mean and std are for floats: {advice}"))
        if resize is not None and crop != "center":
            raise marked(ValueError(f"resize is for crop='center', got crop={crop!r}: the size is made at once."))
        side = max(height, width)
        self._shorter = round(side * 8 / 7) if resize is None else whole("resize", resize, at_least=side, or_none=True)
        self._scale = self._range("scale", scale, _SCALE, _LEAST_SCALE, 1.0)
        self._ratio = self._range("ratio", ratio, _RATIO, 1 / _MOST_RATIO, _MOST_RATIO)
        usual = 0.5 if crop == "random" else 0.0
        self._flip = usual if flip is None else real("flip", flip, positive=False, unit="a probability")
        if self._flip > 1:
            raise marked(ValueError(f"flip must be a probability of at most 1, got {shown(flip)}."))
        means = _channels("mean", _IMAGENET_MEAN if mean is None else mean, positive=False)
        deviations = _channels("std", _IMAGENET_STD if std is None else std, positive=True)
        factors = (1 / (255 * deviations)).astype(np.float32), (-means / deviations).astype(np.float32)
        if layout == "CHW":
            self._factors = tuple(factor[:, None, None] for factor in factors)
        else:
            # A row of pixels as one line, for which NumPy's inner loops are long
            self._factors = tuple(np.tile(factor, width) for factor in factors)
        self._shape = (3, height, width) if layout == "CHW" else (height, width, 3)
        self._exif_orientation = check.flag("exif_orientation", exif_orientation)
        self._members = check.text("members", members, example="jpg;png")
        self._names = alternatives(members)
        if not self._names:
            raise marked(ValueError(f"members must name one, such as 'jpg;png', got {members!r}."))
        self.seed = seed_of(seed)

    def _range(
        self, name: str, value: Any, default: tuple[float, float], least: float, most: float
    ) -> tuple[float, float]:
        if np.shape(value) != (2,):
            raise marked(TypeError(f"{name} must be (least, most), got {shown(value)}."))
        low, high = (float(real(name, part)) for part in value)
        if not least <= low <= high <= most:
            limits = f"from {least:g} to {most:g}"
            raise marked(ValueError(f"{name} must be (least, most), {limits}, got {shown(value)}."))
        if self._crop != "random" and (low, high) != default:
            raise marked(ValueError(f"{name} is for crop='random', got crop={self._crop!r}. Leave it out."))
        return low, high

    def open(self, env: Env) -> Pass[Sample]:
        return super().open(replace(env, says_pass=True))

    def preparation_of(self, env: Env) -> Callable[[Any], Any]:
        """Return a function that takes the row of a sample, in the order of the samples, as a batch needs them."""
        shape, dtype, rows, names = self._shape, self._dtype, env.shared.rows, self._names
        take = partial(new_tensor, shape, dtype)
        if rows is not None:
            take = partial(rows.take, shape, dtype, member=self._members)

        def prepared(item: Any) -> _Task:
            if not isinstance(item, dict):
                require_sample(item, of="decode_image")
            name = member_named(item, names)
            return _Task(item, name, None if name is None else take())

        return prepared

    def function_of(self, env: Env) -> Callable[[Any], Sample]:
        return partial(self._decoded, Draws(self, self.seed, env.epoch))

    def _decoded(self, draws: Draws, task: _Task) -> Sample:
        began_s = time.perf_counter()
        sample, name, row = task
        if name is None or row is None:
            raise no_member(sample, self._names, ' Name the images by decode_image(size, members="...").')
        is_random = self._crop == "random" or self._flip > 0
        drawn = draws.of(sample).random(NUM_DRAWS).tolist() if is_random else ()
        data = sample[name]
        try:
            if not isinstance(data, bytes | memoryview):
                advice = "Chain decode_image() before decode_sample() and map()"
                raise TypeError(f"expected the bytes of an image, got {check.a_kind(data)}. {advice}")
            self.write(data, row, drawn)
        except Exception as error:
            raise decode_error(sample, name, error) from error
        DECODE.worked(began_s, len(data), items=1, wait=not works_ahead())
        return {**sample, name: row}

    def write(self, data: bytes | memoryview, row: torch.Tensor, draws: Sequence[float]) -> None:
        """Decode an image into a tensor.

        Args:
            data: a whole file.
            row: contiguous, of the shape and dtype of this pipe.
            draws: ``NUM_DRAWS`` random numbers of the sample, from 0 to below 1; none without crop and flip.

        Raises:
            ValueError, OSError: as :func:`rgb`.
        """

        def choose(height: int, width: int) -> Region:
            if self._crop == "random":
                return Region(random_box(height, width, self._scale, self._ratio, draws), self._size)
            least = resized_shape(height, width, self._shorter) if self._crop == "center" else self._size
            chosen.append(least)
            return Region(Box(0, 0, height, width), least)

        chosen: list[tuple[int, int]] = []
        pixels = decode_region(data, choose, exif_orientation=self._exif_orientation)
        if self._crop == "center":
            top, left, height, width = center_box(*chosen[0], self._size)
            pixels = _resized(pixels, chosen[0])[top : top + height, left : left + width]
        else:
            pixels = _resized(pixels, self._size)
        if self._flip and draws[0] < self._flip:
            pixels = pixels[:, ::-1]
        self._copy(pixels, row)

    def _copy(self, pixels: Pixels, row: torch.Tensor) -> None:
        if self._dtype == torch.uint8:
            self._arrange(pixels, row.numpy())
        elif self._dtype == torch.float32:
            self._normalize(pixels, row.numpy())
        else:
            # NumPy has no bfloat16, and is slow at float16
            normalized = _scratch("floats", self._shape, np.float32)
            self._normalize(pixels, normalized)
            source, target = torch.from_numpy(normalized).view(-1), row.view(-1)
            for at in range(0, len(source), _COPIED_AT_ONCE):
                target[at : at + _COPIED_AT_ONCE].copy_(source[at : at + _COPIED_AT_ONCE])

    def _normalize(self, pixels: Pixels, target: Floats) -> None:
        arranged = _scratch("pixels", self._shape, np.uint8)
        self._arrange(pixels, arranged)
        np.copyto(target, arranged)
        lines = target if self._layout == "CHW" else target.reshape(self._size[0], -1)
        factor, offset = self._factors
        np.multiply(lines, factor, out=lines)
        np.add(lines, offset, out=lines)

    def _arrange(self, pixels: Pixels, target: Pixels) -> None:
        if self._layout == "CHW":
            np.copyto(target, pixels.transpose(2, 0, 1))
        elif pixels.strides[1] > 0:
            np.copyto(target, pixels)
        else:
            # NumPy copies mirrored pixels one by one, channels much faster
            for channel in range(3):
                np.copyto(target[..., channel], pixels[..., channel])


def _one_of(name: str, value: Any, options: Sequence[Any]) -> Any:
    # An array would be compared element by element
    if not (isinstance(value, str | torch.dtype | None) and value in options):
        expected = ", ".join(map(repr, options))
        raise marked(ValueError(f"{name} must be one of {expected}, got {shown(value)}."))
    return value


def _several(name: str, value: Any, count: int, expected: str) -> list[Any]:
    """Return several values, from a sequence of them or one for all."""
    try:
        return list(np.broadcast_to(value, count))
    except ValueError:
        raise marked(ValueError(f"{name} must be {expected}, got {shown(value)}.")) from None


def _channels(name: str, value: Any, *, positive: bool) -> Floats:
    parts = _several(name, value, 3, "a number, or one for each of the three channels")
    channels = np.array([float(real(name, part, positive=positive)) for part in parts])
    if channels.max() > _MOST:
        raise marked(
            ValueError(f"{name} must be from 0 to 1, where 1 is white, got {channels.max():g}. Divide by 255.")
        )
    return channels


def _resized(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize by bilinear interpolation with antialiasing, as Pillow's ``resize(size, Resampling.BILINEAR)``.

    Args:
        pixels: shape ``(height, width, 3)``.
        size: height and width to make.

    Returns:
        Shape ``(*size, 3)``; it may share memory with ``pixels``.
    """
    if pixels.shape[:2] == size:
        return pixels
    # Rows are made as wide as the result first
    if (needed := max(pixels.shape[0], size[0]) * size[1]) > MAX_PIXELS:
        raise ValueError(
            f"resizing {pixels.shape[0]} rows to {size[0]} x {size[1]} needs {needed:,} pixels, more than the limit of "
            f"{MAX_PIXELS:,}"
        )
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
