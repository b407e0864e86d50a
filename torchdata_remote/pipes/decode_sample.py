"""``decode_sample``: decode the members of samples."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TypeGuard

from ..core.frameworks.collating import check_item
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.stats.counters import DECODE
from ..errors import DecodeError
from ..fetch.listing.source_argument import pipe_of
from ..formats.decoders import DEFAULT_DECODERS, Decoder, checked_decoders
from ..formats.sample import Sample, describe, require_sample, sample_url
from .base.datapipe import OneForOne


@functional_datapipe("decode_sample")
class DecodeSample(OneForOne[Sample]):
    """Decode members by their extension (functional name: ``decode_sample``).

    By default, images (jpg, jpeg, png, webp, bmp, gif, tif, tiff, ppm, ...) become ``PIL.Image`` in mode RGB,
    ``cls`` an int, ``json`` its value, ``txt`` a str, ``npy`` an array (one that requires unpickling is refused). For
    an extension of several parts, such as ``seg.png``, a decoder of the complete extension takes precedence over one of
    its last part. Other members stay ``bytes``; values that are not ``bytes`` are unchanged.

    Args:
        source_datapipe: samples.
        decoders: extension -> function from bytes to a value, in addition to the defaults or in place of them;
            ``bytes`` leaves a member undecoded.

    Yields:
        dict: a new sample.

    Raises:
        CollateError: for an image that goes to torch's default ``collate_fn``.
        DecodeError: names member, sample and shard; the decoder's own error is its ``__cause__``.

    Example:
        >>> samples = IterableWrapper([{"__key__": "1", "cls": b"3", "bin": b"12"}])
        >>> list(DecodeSample(samples, {"bin": len}))
        [{'__key__': '1', 'cls': 3, 'bin': 2}]
    """

    def __init__(self, source_datapipe: IterDataPipe[Sample], decoders: Mapping[str, Decoder] | None = None) -> None:
        self.source_datapipe = pipe_of(source_datapipe, of="decode_sample", holds="samples")
        self._decoders = {**DEFAULT_DECODERS, **checked_decoders(decoders)}

    def __iter__(self) -> Iterator[Sample]:
        is_first = True
        for sample in self.source_datapipe:
            if not isinstance(sample, dict):
                require_sample(sample, of="decode_sample")
            began_s = time.perf_counter()
            decoded = {name: self._decode(name, value, sample) for name, value in sample.items()}
            DECODE.worked(began_s, sum(map(len, filter(_is_data, sample.values()))), items=1, wait=True)
            if is_first:
                is_first = False
                check_item(self, decoded, where=describe(sample))
            yield decoded

    def _decode(self, name: str, value: object, sample: Sample) -> object:
        if not _is_data(value):
            return value
        decoder = self._decoders.get(name) or self._decoders.get(name.rpartition(".")[2])
        if decoder is None:
            return value
        try:
            return decoder(bytes(value))
        except Exception as error:
            raise DecodeError(
                f"{describe(sample)}: the {len(value):,} bytes of {name!r} cannot be decoded: "
                f"{type(error).__name__}: {error}",
                url=sample_url(sample),
            ) from error


def _is_data(value: object) -> TypeGuard[bytes | memoryview]:
    return isinstance(value, bytes | memoryview)
