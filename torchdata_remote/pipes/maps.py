"""Pipes that yield one item for each: ``parallel_map``, ``decode_sample``, ``label_from_path``, ``to_tuple``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from typing_extensions import TypeVar

from ..core import arguments as check
from ..core.arguments import seed_of
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.stats import DECODE
from ..errors import LabelError, StorageError
from ..formats.decoders import DEFAULT_DECODERS, Decoder, checked_decoders, decode_error, decoder_of, takes_files
from ..formats.error_policy import OnBadSample, raise_error
from ..formats.labels import Classes, Labeller, from_pattern, labeller_of
from ..formats.member_file import MemberFile
from ..formats.sample import KEY, Sample, describe, require_key, require_sample, sample_url
from .draws import Draws
from .env import Env
from .members import alternatives, member_named, no_member
from .passes import Pass, PipePass
from .threaded import OneForOne, ThreadedMap, works_ahead

T = TypeVar("T")
U = TypeVar("U")
# A tuple as long as the names, from the chained form; see `.ci/make_typed.py`
Items = TypeVar("Items", bound=tuple[Any, ...], default=tuple[Any, ...], covariant=True)


@functional_datapipe("parallel_map")
class ParallelMap(ThreadedMap[U]):
    """Call a function with each item, in threads, in order (functional name: ``parallel_map``).

    The results have the order of the items. An error of the function is raised in the place of its item, after the
    results before it. The state is that of the source after the item that was handed out last: it is the same with any
    number of threads, and with ``map``, and loads with any other.

    Threads are faster where the function releases Python's global lock: decoders of images, NumPy, OpenCV and torch do
    for the most part, loops in Python do not. All pipes of a process with the same number of threads share them, as all
    streams of a ``Resumable`` do. They are started by the first item and ended with the pass.

    The function is called in several threads at once, in no certain order, so it must not change what they share.
    Random numbers from ``random``, ``numpy.random`` or torch's default generator differ from run to run then: pass
    ``seed``, and draw from the generator that the function gets. What a library allows in one thread only, such as one
    open file or database handle, belongs into a ``threading.local``.

    Args:
        source_datapipe: any items.
        function: called with an item, and with ``seed`` also with a ``numpy.random.Generator``; what it returns is
            handed out. With worker processes, what it refers to has to pickle.
        seed: of the random numbers, any int. They are determined by the seed, the epoch, the sample's key and the path
            of its shard below the source, so they are the same in every world, after a resume, and in a copy of the
            folder. A ``torch.Generator`` is made by ``torch.Generator().manual_seed(int(rng.integers(2**63)))``.
        num_threads: that call it. The thread that iterates calls it as well, with an item that it needs and that none
            of them has begun. 0 calls it in that thread only, and takes nothing ahead. ``None`` for those that the
            loader gives, as ``thread_loader`` does, or 0. Each worker of a ``DataLoader`` has as many.
        max_ahead: number of items that are taken from the source before they are asked for, which bounds the memory.
            ``None`` for twice the threads. The streams of a ``Resumable`` in one process share it; each has one at
            least.
        on_bad_sample: called with the error of the function for a sample: as of ``decode_sample``.

    Yields:
        What the function returns.

    Raises:
        SampleError: with ``seed`` for an item without a key: put it before ``to_tuple``.
        Exception: of the function.

    Example:
        >>> list(ParallelMap(IterableWrapper(["a", "b", "c"]), str.upper, num_threads=2))
        ['A', 'B', 'C']
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        function: Callable[..., U],
        *,
        seed: int | None = None,
        num_threads: int | None = None,
        max_ahead: int | None = None,
        on_bad_sample: OnBadSample = raise_error,
    ) -> None:
        super().__init__(source_datapipe, num_threads, max_ahead, on_bad_sample, "items")
        self._function = check.function("function", function, example="transform")
        self.seed = None if seed is None else seed_of(seed, or_none="a function of one argument")

    def open(self, env: Env) -> Pass[U]:
        return super().open(env if self.seed is None else replace(env, says_pass=True))

    def function_of(self, env: Env) -> Callable[[Any], U]:
        return self._function if self.seed is None else Draws(self, self.seed, env.epoch).given_to(self._function)


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
        super().__init__(source_datapipe, num_threads, on_bad_sample=on_bad_sample)
        self._decoders = {**DEFAULT_DECODERS, **checked_decoders(decoders)}

    def function_of(self, env: Env) -> Callable[[Any], Sample]:
        return self._decoded

    def _decoded(self, sample: Any) -> Sample:
        if not isinstance(sample, dict):
            require_sample(sample, of="decode_sample")
        began_s = time.perf_counter()
        decoded = {name: self._decode(name, value, sample) for name, value in sample.items()}
        num_bytes = sum(len(value) for value in sample.values() if isinstance(value, bytes | memoryview))
        DECODE.worked(began_s, num_bytes, items=1, wait=not works_ahead())
        return decoded

    def _decode(self, name: str, value: object, sample: Sample) -> object:
        if not isinstance(value, bytes | memoryview | MemberFile):
            return value
        decoder = decoder_of(name.lower(), self._decoders)
        if decoder is None:
            return value
        try:
            return decoder(value if isinstance(value, MemberFile) and takes_files(decoder) else bytes(value))
        except Exception as error:
            if isinstance(value, MemberFile) and isinstance(error, StorageError):
                raise
            raise decode_error(sample, name, error) from error


@functional_datapipe("label_from_path")
class LabelFromPath(OneForOne[Sample]):
    """Add ``"cls"``, the class number, from the sample's key (functional name: ``label_from_path``).

    Args:
        source_datapipe: samples.
        classes: class names in the order of their numbers, from 0, or a dict name -> int. A name that is not among
            them, but consists of digits, is the number itself; so is any name without ``classes``. Or a labeller of
            ``tdr.labels`` or your own, which is called with the key (it has no extension) and gives the number, or a
            name in its ``table``.
        pattern: a regular expression with one group, searched in the key: that group is the class's name. By default it
            is the key's parent directory. Not together with a labeller.

    Yields:
        dict: a new sample with ``"cls"`` (int).

    Raises:
        LabelError: for a label that is neither a class nor a number, for a key without one, and for a sample
            that has a ``cls`` already. Names the URL.
        SampleError: for a sample without a key.

    Example:
        >>> samples = IterableWrapper([{"__key__": "train/dog/7", "__url__": "s3://pets/train/dog/7.jpg", "jpg": b""}])
        >>> [sample["cls"] for sample in LabelFromPath(samples, classes=["cat", "dog"])]
        [1]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Sample],
        *,
        classes: Classes | Labeller | None = None,
        pattern: str | None = None,
    ) -> None:
        super().__init__(source_datapipe, "samples")
        name_of = None if pattern is None else from_pattern(pattern)
        self.labeller = labeller_of(classes, name_of=name_of, digits_are_numbers=True)

    def open(self, env: Env) -> Pass[Sample]:
        return _LabelledPass(self, env.open(self.source_datapipe))


class _LabelledPass(PipePass[Sample]):
    def items(self) -> Iterator[Sample]:
        for sample in self.sources[0]:
            if not isinstance(sample, dict) or KEY not in sample:
                require_key(sample, of="label_from_path")
            if (labelled := member_named(sample, ("cls",))) is not None:
                raise LabelError(
                    f"{describe(sample)} has {labelled!r} already: leave label_from_path out, or remove it first.",
                    url=sample_url(sample),
                )
            try:
                number = self._pipe.labeller(sample[KEY])
            except LabelError as error:
                raise LabelError(f"{describe(sample)}: {error}", url=sample_url(sample)) from error
            yield {**sample, "cls": number}


@functional_datapipe("to_tuple")
class ToTuple(OneForOne[Items]):
    """Select members as a tuple (functional name: ``to_tuple``).

    Args:
        source_datapipe: samples.
        *names: one per element of the tuple: extensions separated by ``;``, in any case, of which the first that the
            sample has is selected. ``"__key__"`` and ``"__url__"`` are valid names too.

    Yields:
        tuple: the values, as long as ``names``.

    Raises:
        CollateError: for an image that goes to torch's default ``collate_fn``. A label in bytes is a warning there.
        MissingMemberError: names the sample, the requested members and the existing ones.

    Example:
        >>> samples = IterableWrapper([{"__key__": "1", "png": "image", "cls": 3}])
        >>> list(ToTuple(samples, "jpg;jpeg;png", "cls"))
        [('image', 3)]
    """

    def __init__(self, source_datapipe: IterDataPipe[Sample], *names: str) -> None:
        if not names or not all(isinstance(name, str) and name.strip("; ") for name in names):
            raise ValueError(f"to_tuple needs names such as 'jpg;png', 'cls'; got {names!r:.200}.")
        super().__init__(source_datapipe, "samples")
        self.names, self.choices = names, [alternatives(name) for name in names]

    def open(self, env: Env) -> Pass[Items]:
        return _TuplePass(self, env.open(self.source_datapipe))


class _TuplePass(PipePass[Any]):
    def items(self) -> Iterator[Any]:
        # In one call, where each sample has the first name of each choice
        firsts = [choice[0] for choice in self._pipe.choices]
        take = itemgetter(*firsts) if len(firsts) > 1 else lambda sample: (sample[firsts[0]],)
        for sample in self.sources[0]:
            try:
                item = take(sample) if type(sample) is dict else self._picked(sample)
            except KeyError:
                item = self._picked(sample)
            yield item

    def _picked(self, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, Mapping):
            require_sample(sample, of="to_tuple")
        return tuple([sample[self._written(sample, choice)] for choice in self._pipe.choices])

    def _written(self, sample: Sample, choice: tuple[str, ...]) -> str:
        name = member_named(sample, choice)
        if name is None:
            advice = (
                " Separate alternatives by ';', and elements of the tuple by arguments: to_tuple('jpg;png', 'cls')."
            )
            raise no_member(sample, choice, advice if any(one in choice[0] for one in ", |") else "")
        return name
