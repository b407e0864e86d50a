"""``label_from_path``: add the class number, taken from a sample's key."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import LabelError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import KEY, Sample, describe, require_sample, sample_url
from ..labels import Classes, Labeller, from_pattern, labeller_of
from .base.datapipe import OneForOne
from .base.members import member_named


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
        self.source_datapipe = pipe_of(source_datapipe, of="label_from_path", holds="samples")
        name_of = None if pattern is None else from_pattern(pattern)
        self._labeller = labeller_of(classes, name_of=name_of, digits_are_numbers=True)

    def __iter__(self) -> Iterator[Sample]:
        for sample in self.source_datapipe:
            if not isinstance(sample, dict):
                require_sample(sample, of="label_from_path")
            if (labelled := member_named(sample, ("cls",))) is not None:
                raise LabelError(
                    f"{describe(sample)} has {labelled!r} already: leave label_from_path out, or remove it first.",
                    url=sample_url(sample),
                )
            if not isinstance(sample.get(KEY), str):
                raise LabelError(
                    f"{describe(sample)}: no str under {KEY!r} to take a label from.", url=sample_url(sample)
                )
            try:
                number = self._labeller(sample[KEY])
            except LabelError as error:
                raise LabelError(f"{describe(sample)}: {error}", url=sample_url(sample)) from error
            yield {**sample, "cls": number}
