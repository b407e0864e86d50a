"""``decode_image``: decode, crop, resize, flip and normalise images for training, straight into batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from ..core.arguments import check
from ..core.arguments.amounts import seed_of
from ..core.frameworks.plain_tensors import new_tensor
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.stats.counters import DECODE
from ..errors import MissingMemberError
from ..fetch.listing.source_argument import pipe_of
from ..formats.crops.boxes import NUM_DRAWS
from ..formats.decoders._failure import decode_error
from ..formats.error_policy import OnBadSample, raise_error
from ..formats.sample import Sample, describe, extensions, require_sample, sample_url
from .draws import Draws
from .env import Env
from .image_options import RATIO, SCALE, image_tensors, member_names
from .image_tensors import ImageTensors
from .members import member_named
from .passes import Pass
from .threaded import ThreadedMap, works_ahead


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
        scale: Sequence[float] = SCALE,
        ratio: Sequence[float] = RATIO,
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
        source = pipe_of(source_datapipe, of="decode_image", holds="samples")
        super().__init__(source, num_threads, on_bad_sample=on_bad_sample)
        self._tensors = image_tensors(
            size,
            crop=crop,
            resize=resize,
            scale=scale,
            ratio=ratio,
            flip=flip,
            dtype=dtype,
            mean=mean,
            std=std,
            layout=layout,
            exif_orientation=exif_orientation,
        )
        self._members, self._names = members, member_names(members)
        self.seed = seed_of(seed)

    def open(self, env: Env) -> Pass[Sample]:
        return super().open(replace(env, says_pass=True))

    def preparation_of(self, env: Env) -> Callable[[Any], Any]:
        """Return a function that takes the row of a sample, in the order of the samples, as a batch needs them."""
        shape, dtype, rows, names = self._tensors.shape, self._tensors.dtype, env.shared.rows, self._names

        def prepared(item: Any) -> _Task:
            if not isinstance(item, dict):
                require_sample(item, of="decode_image")
            name = member_named(item, names)
            if name is None:
                return _Task(item, None, None)
            if rows is None:
                return _Task(item, name, new_tensor(shape, dtype))
            return _Task(item, name, rows.take(shape, dtype, member=self._members))

        return prepared

    def function_of(self, env: Env) -> Callable[[Any], Sample]:
        return _Decoder(self._tensors, self._names, Draws(self, self.seed, env.epoch))


class _Decoder:
    """Decodes the images of one pass."""

    def __init__(self, tensors: ImageTensors, names: Sequence[str], draws: Draws) -> None:
        self._tensors, self._names, self._draws = tensors, names, draws

    def __call__(self, task: _Task) -> Sample:
        began_s = time.perf_counter()
        sample, name, row = task
        if name is None or row is None:
            raise MissingMemberError(
                f"{describe(sample)} has no {' or '.join(map(repr, self._names))}. It has {list(extensions(sample))}. "
                'Name the images by decode_image(size, members="...").',
                url=sample_url(sample),
            )
        draws = self._draws.of(sample).random(NUM_DRAWS).tolist() if self._tensors.is_random else ()
        data = sample[name]
        try:
            if not isinstance(data, bytes | memoryview):
                raise TypeError(_NOT_ENCODED.format(check.a_kind(data)))
            self._tensors.write(data, row, draws)
        except Exception as error:
            raise decode_error(sample, name, error) from error
        DECODE.worked(began_s, len(data), items=1, wait=not works_ahead())
        return {**sample, name: row}


_NOT_ENCODED = "expected the bytes of an image, got {}. Chain decode_image() before decode_sample() and map()"
