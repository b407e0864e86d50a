"""``decode_sample``: decode the members of samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.stats.counters import DECODE
from ..errors import StorageError
from ..fetch.listing.source_argument import pipe_of
from ..formats.decoders import DEFAULT_DECODERS, Decoder, checked_decoders, takes_files
from ..formats.decoders._compressed import compressed_decoder
from ..formats.decoders._failure import decode_error
from ..formats.error_policy import OnBadSample, raise_error
from ..formats.member_file import MemberFile
from ..formats.sample import Sample, require_sample
from .base.calls import works_ahead
from .base.threaded import ThreadedMap


@functional_datapipe("decode_sample")
class DecodeSample(ThreadedMap[Sample]):
    """Decode members by their extension (functional name: ``decode_sample``).

    By default, images (jpg, jpeg, png, webp, avif, bmp, gif, tif, tiff, ppm, ...) become ``PIL.Image`` in mode RGB, 8
    bits per channel (``decoders.pixels`` keeps 16 bits and floats), ``cls`` an int, ``json`` its value, ``txt`` a str,
    ``npy`` an array, ``npz`` a dict of arrays, ``safetensors`` a dict of tensors (extra ``[tensors]``), ``pt`` and
    ``pth`` what ``torch.load(weights_only=True)`` returns. What would need unpickling is refused. For an extension of
    several parts, such as ``seg.png``, a decoder of the complete extension takes precedence over one of its last part.
    Members that are compressed by gzip, bzip2, xz or zstd, such as ``json.gz`` and ``npy.zst``, are decompressed for
    the decoder of the extension before it, up to 1 GiB. Other members stay ``bytes``; values that are neither ``bytes``
    nor the file of a lazy member are unchanged.

    For training, ``decode_image`` makes tensors of images, with crop, resize, flip and normalisation, in about half of
    the time; chain it before this pipe, which decodes the other members.

    Args:
        source_datapipe: samples.
        decoders: extension, in any case -> function from bytes to a value, in addition to the defaults or in place of
            them; ``bytes`` leaves a member undecoded. The function gets the file of a lazy member, in place of its
            bytes.
        num_threads: that decode, as those of ``parallel_map`` do; order and state do not depend on it. ``None`` for
            those that the loader gives, as ``thread_loader`` does, or none.
        on_bad_sample: called with the error of a sample that cannot be decoded. It raises, as ``raise_error`` does; or
            it returns, as ``skip_with_warning`` does, and the sample is left out: ``skipped.bad_samples`` has its key,
            URL and error, and a warning at the end of the epoch says how many there were. The errors of a store are
            raised. There is no ``len`` then, and ``equalize_ranks`` is refused.

    Yields:
        dict: a new sample.

    Raises:
        CollateError: for an image that goes to torch's default ``collate_fn``.
        DecodeError: names member, sample and shard; the decoder's own error is its ``__cause__``.
        StorageError: if the file of a lazy member cannot be fetched.

    Example:
        >>> samples = IterableWrapper([{"__key__": "1", "cls": b"3", "bin": b"12"}])
        >>> list(DecodeSample(samples, {"bin": len}))
        [{'__key__': '1', 'cls': 3, 'bin': 2}]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Sample],
        decoders: Mapping[str, Decoder] | None = None,
        *,
        num_threads: int | None = None,
        on_bad_sample: OnBadSample = raise_error,
    ) -> None:
        self.source_datapipe = pipe_of(source_datapipe, of="decode_sample", holds="samples")
        super().__init__(num_threads, on_bad_sample=on_bad_sample)
        self._decoders = {**DEFAULT_DECODERS, **checked_decoders(decoders)}

    def function_of_pass(self) -> Callable[[Any], Sample]:
        return self._decoded

    def _decoded(self, sample: Any) -> Sample:
        if not isinstance(sample, dict):
            require_sample(sample, of="decode_sample")
        began_s = time.perf_counter()
        decoded = {name: self._decode(name, value, sample) for name, value in sample.items()}
        DECODE.worked(began_s, sum(map(len, filter(_is_data, sample.values()))), items=1, wait=not works_ahead())
        return decoded

    def _decode(self, name: str, value: object, sample: Sample) -> object:
        if not isinstance(value, bytes | memoryview | MemberFile):
            return value
        extension = name.lower()
        decoder: Decoder | None = self._decoders.get(extension) or self._decoders.get(extension.rpartition(".")[2])
        if decoder is None and (decoder := compressed_decoder(extension, self._decoders)) is None:
            return value
        try:
            return decoder(value if isinstance(value, MemberFile) and takes_files(decoder) else bytes(value))
        except Exception as error:
            if isinstance(value, MemberFile) and isinstance(error, StorageError):
                raise
            raise decode_error(sample, name, error) from error


def _is_data(value: object) -> TypeGuard[bytes | memoryview]:
    return isinstance(value, bytes | memoryview)
