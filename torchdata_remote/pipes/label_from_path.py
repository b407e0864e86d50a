"""``label_from_path``: the class number from where a sample lies."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import LabelError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import KEY, Sample, describe, sample_url
from ..labels import Classes, class_numbers, label_number, label_text
from .base.datapipe import OneForOne


@functional_datapipe("label_from_path")
class LabelFromPath(OneForOne[Sample]):
    """Add ``"cls"``, the class number, from the sample's key (functional name: ``label_from_path``).

    Args:
        source_datapipe: samples.
        classes: class names in the order of their numbers, from 0, or a dict name -> int. Without it, and for a name
            that is not in it, a directory named by an integer is its own number.
        pattern: a regular expression with one group, searched in the key: that group is the label. By default it is
            the key's parent directory.

    Yields:
        dict: a new sample with ``"cls"`` (int).

    Raises:
        LabelError: for a label that is neither in ``classes`` nor a number, for a key without one, and for a sample
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
        classes: Classes | None = None,
        pattern: str | None = None,
    ) -> None:
        self.source_datapipe = pipe_of(source_datapipe, of="label_from_path", holds="samples")
        self._numbers = class_numbers(classes) if classes is not None else {}
        self._pattern = re.compile(pattern) if pattern is not None else None
        if self._pattern is not None and self._pattern.groups != 1:
            raise ValueError(f"pattern must have exactly one group, {pattern!r} has {self._pattern.groups}")

    def __iter__(self) -> Iterator[Sample]:
        for sample in self.source_datapipe:
            if "cls" in sample:
                raise LabelError(
                    f"{describe(sample)} has a 'cls' already: leave label_from_path out, or remove the member first.",
                    url=sample_url(sample),
                )
            if not isinstance(sample.get(KEY), str):
                raise LabelError(
                    f"{describe(sample)}: no str under {KEY!r} to take a label from.", url=sample_url(sample)
                )
            try:
                number = label_number(label_text(sample[KEY], self._pattern), self._numbers)
            except LabelError as error:
                raise LabelError(f"{describe(sample)}: {error}", url=sample_url(sample)) from error
            yield {**sample, "cls": number}
