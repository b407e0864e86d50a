"""Labellers for numbered images, whose labels are in a separate file."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.arguments import explained, int_of, whole
from ..errors import LabelError
from ._paths import Labeller
from ._sources import Location, Origin, is_location, origin_of, read_bytes, read_json

_DIGITS = re.compile(r"(?<![0-9])[0-9]{1,18}\Z")  # more digits are a hash
_IS_NUMBER = re.compile(r"[0-9]{1,18}")


@explained
def by_number(
    source: Location | Mapping[str, int] | Mapping[int, int],
    *,
    number_base: int,
    id_base: int = 1,
    storage_options: Mapping[str, Any] | None = None,
) -> Labeller:
    """Create a labeller from a JSON object ``{"0": 490, "1": 361, ...}``: number of an image -> number of its class.

    An image's number is the digits at the end of its name without the extension. Images count from 1, always; the
    object's keys count from ``number_base``, and its values from ``id_base``. So image ``n`` has the key
    ``n - 1 + number_base`` and the label ``value - id_base``: with ``number_base=0`` the first image, ``..._00000001``,
    has the key ``"0"``, with ``number_base=1`` it has the key ``"1"``.

    Args:
        source: a URL, a path, or the object itself.
        number_base: the number that the keys count from.
        id_base: the number that the classes count from.
        storage_options: for the store of a URL, in fsspec's vocabulary.

    Returns:
        A labeller.

    Raises:
        LabelError: if the source is not of this form, or has a number below its base; and when it is called with a
            file without a number, or with one that the source does not have. Names the source.
        StorageError: if the URL cannot be read.

    Example:
        >>> labeller = by_number({"0": 490, "1": 361}, number_base=0, id_base=1)
        >>> labeller("ILSVRC2012_val_00000001.JPEG"), labeller("val/ILSVRC2012_val_00000002.JPEG")
        (489, 360)
    """
    number_base = whole("number_base", number_base, at_least=None)
    id_base = whole("id_base", id_base, at_least=None)
    origin = origin_of(source, "by_number")
    document = read_json(source, origin, storage_options)
    if not isinstance(document, Mapping):
        raise origin.error(f'expected {{"{number_base}": {id_base}, ...}}, got a {type(document).__name__}.')
    labels: dict[int, int] = {}
    for key, value in document.items():
        number = int(key) if isinstance(key, str) and _IS_NUMBER.fullmatch(key) else int_of(key)
        if number is None or number < number_base:
            raise origin.error(f"the key {key!r:.100} is not a number from number_base={number_base} on.")
        image = number - number_base + 1
        if image in labels:
            raise origin.error(f"the number {number} occurs more than once.")
        labels[image] = origin.label(value, id_base=id_base, what=f"the class of number {number}")
    return ByNumber(labels, number_base, origin)


@explained
def ground_truth(
    source: Location | Iterable[int],
    *,
    base_name: str,
    id_base: int = 1,
    storage_options: Mapping[str, Any] | None = None,
) -> Labeller:
    """Create a labeller from a text file with one class number per line: line ``i``, counted from 1, for image ``i``.

    Image ``i`` is called ``base_name``, then ``i`` with eight digits, then ``.JPEG`` in capitals or not, in any folder.
    The label is the number minus ``id_base``.

    Args:
        source: a URL, a path, or the numbers as a list. Empty lines at the end are ignored.
        base_name: how the images' names begin, such as ``"ILSVRC2012_val_"``.
        id_base: the number that the classes count from.
        storage_options: for the store of a URL, in fsspec's vocabulary.

    Returns:
        A labeller.

    Raises:
        LabelError: if a line is not a number, or below ``id_base``; and when it is called with a file that is not so
            called, or whose line does not exist. Names the source.
        StorageError: if the URL cannot be read.

    Example:
        >>> labeller = ground_truth([490, 361], base_name="ILSVRC2012_val_")
        >>> labeller("val/ILSVRC2012_val_00000002.JPEG")
        360
    """
    id_base = whole("id_base", id_base, at_least=None)
    if not isinstance(base_name, str) or "/" in base_name:
        raise ValueError(f"base_name is the beginning of a file's name, without folders, got {base_name!r}")
    origin = origin_of(source, "ground_truth")
    numbers = _lines(read_bytes(source, storage_options), origin) if is_location(source) else source
    if isinstance(numbers, (Mapping, bytes)) or not isinstance(numbers, Iterable):
        raise origin.error("expected the class numbers as a list.")
    labels = array("i")
    for line, number in enumerate(numbers, start=1):
        labels.append(origin.label(number, id_base=id_base, what=f"line {line}"))
    if not labels:
        raise origin.error("no class numbers in it, expected one for each image.")
    return GroundTruth(labels, base_name, origin)


def _lines(data: bytes, origin: Origin) -> Iterable[int]:
    for line, text in enumerate(data.rstrip().splitlines(), start=1):
        word = text.strip()
        if not word.isdigit() or len(word) > 18:
            raise origin.error(f"line {line} is {text!r:.60}, expected the number of a class.")
        yield int(word)


@dataclass(frozen=True)
class ByNumber:
    """The labeller of :func:`by_number`.

    Args:
        labels: number of an image, counted from 1 -> label, counted from 0.
        number_base: the number that the source's keys count from.
        origin: of the labels, for errors.
    """

    labels: Mapping[int, int] = field(repr=False)
    number_base: int
    origin: Origin

    def __call__(self, path: str) -> int:
        digits = _DIGITS.search(os.path.splitext(path.rpartition("/")[2])[0])
        if digits is None:
            raise LabelError(
                f"{path!r} has no number at the end of its name, expected one such as ILSVRC2012_val_00000001.JPEG.",
                url=self.origin.url,
            )
        number = int(digits[0])
        if number not in self.labels:
            raise LabelError(
                f"{path!r} is image {number}, counted from 1, which has the key {number - 1 + self.number_base} with "
                f"number_base={self.number_base}: {self.origin.shown} has {len(self.labels):,} keys, and not this one.",
                url=self.origin.url,
            )
        return self.labels[number]


@dataclass(frozen=True)
class GroundTruth:
    """The labeller of :func:`ground_truth`.

    Args:
        labels: of the images in order, counted from 0.
        base_name: how their names begin.
        origin: of the labels, for errors.
    """

    labels: Sequence[int] = field(repr=False)
    base_name: str
    origin: Origin

    def __call__(self, path: str) -> int:
        stem, extension = os.path.splitext(path.rpartition("/")[2])
        digits = stem[len(self.base_name) :]
        if (
            not stem.startswith(self.base_name)
            or extension.lower() != ".jpeg"
            or not _IS_NUMBER.fullmatch(digits)
            or f"{int(digits):08d}" != digits
        ):
            raise LabelError(
                f"{path!r} is not one of the images {self.base_name}00000001.JPEG, ... that {self.origin.shown} has "
                "the classes of. Give the beginning of their names as base_name.",
                url=self.origin.url,
            )
        if not 1 <= int(digits) <= len(self.labels):
            raise LabelError(
                f"{path!r} would be line {int(digits)} of {self.origin.shown}, which has lines 1 to "
                f"{len(self.labels):,}.",
                url=self.origin.url,
            )
        return self.labels[int(digits) - 1]
