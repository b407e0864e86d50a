"""Labels: map the path of a file to its class.

A *labeller* is a function ``path -> int | str``. The path is relative to the source: ``train/cat/1.jpg``, or, for a
file of a nested archive, ``n02119789/n02119789_17.JPEG`` with the inner archive's name as a folder. An ``int`` is a
class number, counted from 0. A ``str`` is the name of a class; the names are sorted and numbered from 0. A labeller may
have an attribute ``table``, a mapping ``key -> {"id": int, "name": str}`` of all its classes, with ids counted from 0.
Any function can be a labeller; with several processes it must be picklable.

============================================= ======================================================================
labeller                                      label
============================================= ======================================================================
:func:`parent_directory`                      the parent directory
:func:`from_pattern`                          the group of a regular expression
:func:`classes_json`                          the class whose key is a prefix of the file name or a folder
:func:`meta_mat`                              the same, for the classes of an ILSVRC development kit
:func:`by_number`                             the class in a JSON object image number -> class
:func:`ground_truth`                          the class in a text file with one line per image
============================================= ======================================================================
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core import arguments as check
from ..core.arguments import explained, int_of, whole
from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import LabelError
from ..storage import read_whole
from .class_table import (
    MAX_LABEL,
    ClassEntry,
    Labeller,
    Origin,
    assign_labels,
    call_labeller,
    dump_table,
    load_table,
    merged_tables,
    read_table,
)
from .manifest import CLASSES_NAME

__all__ = [
    "CLASSES_NAME",
    "ClassEntry",
    "Classes",
    "Labeller",
    "NumberedClasses",
    "assign_labels",
    "by_number",
    "class_numbers",
    "classes_json",
    "dump_table",
    "from_pattern",
    "ground_truth",
    "labeller_of",
    "load_table",
    "merged_tables",
    "meta_mat",
    "parent_directory",
]

Location = str | os.PathLike[str]
Classes = Sequence[str] | Mapping[str, int]
_NUMBER = re.compile(r"[0-9]{1,18}")
_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]{1,18})\.[^.]*\Z")  # more digits are a hash


@explained
def parent_directory() -> Labeller:
    """Create a labeller that returns the name of the parent directory.

    Raises:
        LabelError: when it is called with a path without a parent directory.

    Example:
        >>> parent_directory()("train/cat/1.jpg")
        'cat'
    """
    return ParentDirectory()


@explained
def from_pattern(regex: str | re.Pattern[str]) -> Labeller:
    r"""Create a labeller that returns the group of a regular expression.

    Args:
        regex: searched in the path; its only group is the name of the class.

    Raises:
        ValueError: if it has no group or several.
        LabelError: when it is called with a path without a match, or with an empty group.

    Example:
        >>> from_pattern(r"_([a-z]+)[0-9]*\.jpg$")("train/0001_cat7.jpg")
        'cat'
    """
    expected = "pattern must be a regular expression such as '^([^/]+)/', with exactly one group, the class"
    if not isinstance(getattr(regex, "pattern", regex), str):
        raise check.marked(TypeError(f"{expected}, got {check.shown(regex)}."))
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise check.marked(ValueError(f"{expected}, got {regex!r:.200}: {error}.")) from None
    if pattern.groups != 1:
        raise check.marked(ValueError(f"{expected}; {pattern.pattern!r:.200} has {pattern.groups}."))
    return FromPattern(pattern)


@dataclass(frozen=True)
class ParentDirectory:
    """The labeller of :func:`parent_directory`."""

    def __call__(self, path: str) -> str:
        name = path.rpartition("/")[0].rpartition("/")[2]
        if name in ("", ".", ".."):
            raise LabelError(
                f"{path!r} has no parent directory to take a label from. If the label is elsewhere in the path, use "
                "labels.from_pattern(regex), or pattern= of label_from_path."
            )
        return name


@dataclass(frozen=True)
class FromPattern:
    """The labeller of :func:`from_pattern`."""

    pattern: re.Pattern[str]

    def __call__(self, path: str) -> str:
        match = self.pattern.search(path)
        if match is None or not match[1]:
            raise LabelError(f"{self.pattern.pattern!r} finds no label in {path!r}.")
        return match[1]


# Classes that an argument names


def class_numbers(classes: Classes) -> dict[str, int]:
    """Return the mapping class name -> number.

    Args:
        classes: names in the order of their numbers, from 0; or the mapping.

    Raises:
        TypeError: if it is neither.
        ValueError: if there is no name, a name occurs twice, or a number is not an int from 0 to 2**31 - 1.
    """
    if isinstance(classes, Mapping):
        numbers = {name: -1 if (number := int_of(given)) is None else number for name, given in classes.items()}
        if wrong := {
            name: classes[name]
            for name, number in numbers.items()
            if not isinstance(name, str) or not 0 <= number <= MAX_LABEL
        }:
            raise check.marked(
                ValueError(f"classes must give each name its label, an int from 0 to {MAX_LABEL}, got {wrong!r:.200}.")
            )
    elif isinstance(classes, Sequence) and not isinstance(classes, str) and all(isinstance(n, str) for n in classes):
        numbers = {name: number for number, name in enumerate(classes)}
        if len(numbers) < len(classes):
            twice = sorted({name for name in classes if list(classes).count(name) > 1})
            raise check.marked(ValueError(f"classes names {twice} more than once."))
    else:
        # A set is numbered differently in each process, a str would be its letters
        raise check.marked(
            TypeError(f"classes must be a list of names or a dict name -> int, got {check.shown(classes)}.")
        )
    if not numbers:
        raise check.marked(
            ValueError(
                f"classes must name at least one class, got {classes!r}. Leave it out to number the parent directories."
            )
        )
    return numbers


def labeller_of(
    classes: Classes | Labeller | None, *, name_of: Labeller | None = None, digits_are_numbers: bool = False
) -> Labeller:
    """Return the labeller that a ``classes=`` argument stands for.

    Args:
        classes: a labeller, which is returned as it is; class names or a dict name -> number, which number what
            ``name_of`` finds; ``None`` for what ``name_of`` finds.
        name_of: from path to class name; the parent directory by default.
        digits_are_numbers: whether the labeller has to give a number for each path on its own, without having seen the
            other paths: then a name that is in no table of classes but consists of digits is the number itself, and any
            other one is an error.

    Raises:
        TypeError, ValueError: as :func:`class_numbers`, and for a labeller together with ``name_of``.

    Example:
        >>> labeller_of(["cat", "dog"])("train/dog/1.jpg"), labeller_of(None)("train/dog/1.jpg")
        (1, 'dog')
    """
    labeller = name_of or ParentDirectory()
    if callable(classes):
        if name_of is not None:
            raise check.marked(
                ValueError("classes= is a labeller, which takes no pattern=: use labels.from_pattern(regex) instead.")
            )
        if not digits_are_numbers:
            return classes
        table: Mapping[str, Any] = getattr(classes, "table", None) or {}
        return NumberedClasses(classes, {key: entry["id"] for key, entry in table.items()}, digits_are_numbers=True)
    if classes is None and not digits_are_numbers:
        return labeller
    numbers = {} if classes is None else class_numbers(classes)
    return NumberedClasses(labeller, numbers, digits_are_numbers=digits_are_numbers)


@dataclass(frozen=True)
class NumberedClasses:
    """A labeller: the number of the class that another labeller finds.

    Args:
        labeller: from path to class name; a number that it gives is handed on.
        numbers: class name -> number.
        digits_are_numbers: whether a name that is not in ``numbers`` may be a number in decimal digits.
    """

    labeller: Labeller
    numbers: Mapping[str, int] = field(repr=False)
    digits_are_numbers: bool = False

    def __call__(self, path: str) -> int:
        """The class number of a path.

        Raises:
            LabelError: if the label is neither the name of a class nor a number.
        """
        label = call_labeller(self.labeller, path)
        if not isinstance(label, str):
            return label
        if label in self.numbers:
            return self.numbers[label]
        if self.digits_are_numbers and _NUMBER.fullmatch(label) and int(label) <= MAX_LABEL:
            return int(label)
        no_number = f"no number from 0 to {MAX_LABEL}, and " * self.digits_are_numbers
        known = sorted(self.numbers)
        more = ", ..." if len(known) > 10 else ""
        raise LabelError(
            f"{path!r} has the label {label!r:.100}, which is {no_number}none of the {len(known)} classes "
            f"{', '.join(known[:10]) or 'of classes='}{more}."
        )


# Files of labels


def _origin(source: object, function: str) -> Origin:
    """Name the source argument of a function in errors."""
    if not isinstance(source, (str, os.PathLike)):
        return Origin(f"the {type(source).__name__} given to {function}")
    return Origin(redact(os.fspath(source)), redact(os.fspath(source)))


def _read(source: Location, storage_options: Mapping[str, Any] | None) -> bytes:
    return read_whole(os.fspath(source), StorageOptions(storage_options), RetryPolicy())


def _document(source: Any, origin: Origin, storage_options: Mapping[str, Any] | None) -> Any:
    """Read the document at a URL or path; return a parsed object unchanged."""
    return origin.json(_read(source, storage_options)) if isinstance(source, (str, os.PathLike)) else source


@explained
def classes_json(
    source: Location | Mapping[str, Mapping[str, Any]] | Mapping[str, int],
    *,
    id_base: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ByClassKey:
    """Create a labeller from a JSON object of classes, ``{"n02119789": {"id": 1, "name": "kit_fox"}}``, or of files.

    A file belongs to the class whose key is the file's name without its extension, or this up to a ``_`` (the longest
    first); or else to the one whose key is a folder's name, the innermost first. So ``n02119789_17.JPEG``,
    ``n02119789/17.JPEG`` and ``n02119789/images/17.JPEG`` are kit foxes. The label is ``id - id_base``.

    Of files, ``{"PiC1.JPEG": 1, ...}``, as ImageNetTools' ``ClassInfo.json`` has it, the names are those of files in
    any folder; where they have folders, those have to fit. The label is the number as it is, or less ``id_base``.

    Args:
        source: a URL, a path, or the object itself.
        id_base: the number that the source counts from. Classes need it; for files it is 0 by default.
        storage_options: for the store of a URL, in fsspec's vocabulary.

    Returns:
        A labeller; its ``table`` of classes, which is empty for files, has ids counted from 0.

    Raises:
        LabelError: if the source is not of this form, or an id comes twice, is less than ``id_base`` or above an
            int32; and when it is called with a file of none of the classes, or for a dataset in which two files
            cannot be told apart by the source's names. Names the source.
        TypeError: for classes without ``id_base``.
        StorageError: if the URL cannot be read.

    Example:
        >>> labeller = classes_json({"n02119789": {"id": 1, "name": "kit_fox"}}, id_base=1)
        >>> labeller("train/n02119789/n02119789_17.JPEG"), labeller.table
        (0, {'n02119789': {'id': 0, 'name': 'kit_fox'}})
        >>> classes_json({"PiC1.JPEG": 1, "PiC2.JPEG": 7})("train/PiC2.JPEG")
        7
    """
    origin = _origin(source, "classes_json")
    document = _document(source, origin, storage_options)
    if not _names_files(document):
        return ByClassKey(read_table(document, origin, id_base=whole("id_base", id_base, at_least=None)), origin)
    base = 0 if id_base is None else whole("id_base", id_base, at_least=None)
    labels: dict[str, int] = {}
    for key, value in document.items():
        path = key.removeprefix("./")
        if path in labels:
            raise origin.error(f"{key!r:.100} occurs twice, once with and once without './' before it.")
        labels[path] = origin.label(value, id_base=base, what=f"the class of {key!r:.100}")
    return ByFileName({}, origin, labels)


def _names_files(document: Any) -> bool:
    """Whether a document maps file names, which have an extension, to numbers."""
    return (
        isinstance(document, Mapping)
        and all(isinstance(key, str) and "." in key.rpartition("/")[2] for key in document)
        and any(int_of(value) is not None for value in document.values())
    )


@explained
def meta_mat(
    source: Location | Sequence[Mapping[str, Any]], *, storage_options: Mapping[str, Any] | None = None
) -> ByClassKey:
    """Create a labeller from ``meta.mat``, the classes of an ILSVRC development kit. Needs scipy.

    The file holds ``synsets``, an array of structs with the fields ``ILSVRC2012_ID``, ``WNID``, ``words``, ``gloss``,
    ``num_children``, ``children``, ``wordnet_height`` and ``num_train_images``. The classes are those without children.
    Their key is the WNID, found in paths as :func:`classes_json` does; their label is ``ILSVRC2012_ID - 1``, as in
    :func:`ground_truth`; their name is ``words``. Note that these are ILSVRC's numbers: those of torchvision's
    ``ImageFolder`` follow the sorted WNIDs.

    Args:
        source: a URL, a path, or the structs as dicts, of which four fields are needed.
        storage_options: for the store of a URL, in fsspec's vocabulary.

    Returns:
        A labeller; its ``table`` has ids counted from 0.

    Raises:
        ImportError: for a file, if scipy is not installed.
        LabelError: if the source is not of this form; and when it is called with a file of none of the classes.
        StorageError: if the URL cannot be read.

    Example:
        >>> labeller = meta_mat([
        ...     {"ILSVRC2012_ID": 1, "WNID": "n02119789", "words": "kit fox, Vulpes macrotis", "num_children": 0},
        ...     {"ILSVRC2012_ID": 1001, "WNID": "n00001740", "words": "entity", "num_children": 2},
        ... ])
        >>> labeller("n02119789/n02119789_17.JPEG"), list(labeller.table)
        (0, ['n02119789'])
    """
    origin = _origin(source, "meta_mat")
    rows: Any = source
    if isinstance(source, (str, os.PathLike)):
        rows = _synsets(_read(source, storage_options), origin)
    classes: dict[str, dict[str, Any]] = {}
    try:
        for row in rows:
            key, number, children = row["WNID"], row["ILSVRC2012_ID"], row["num_children"]
            if int(children) != 0:
                continue
            if key in classes:
                raise origin.error(f"two synsets without children have the WNID {key!r:.100}.")
            # MATLAB stores numbers as doubles
            is_whole = isinstance(number, (float, np.floating)) and number.is_integer()
            classes[key] = {"id": int(number) if is_whole else number, "name": row["words"]}
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise origin.error(
            f"expected a list of synsets with ILSVRC2012_ID, WNID, words and num_children: {error!r:.200}"
        ) from error
    if not classes:
        raise origin.error("no synset has num_children == 0, so there are no classes.")
    return ByClassKey(read_table(classes, origin, id_base=1), origin)


def _synsets(data: bytes, origin: Origin) -> Any:
    """Read the structs of a MATLAB file."""
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            f"meta_mat reads files by scipy, which cannot be imported: pip install scipy ({error})"
        ) from error
    try:
        return np.atleast_1d(loadmat(io.BytesIO(data), variable_names=["synsets"], squeeze_me=True)["synsets"])
    except Exception as error:  # of each kind, for damaged files
        raise origin.error(f"not a MATLAB file as an ILSVRC development kit has it: {error!r:.300}") from error


@dataclass(frozen=True)
class ByClassKey:
    """Labeller: the class whose key is a prefix of the file name, or one of its folders.

    Args:
        table: class key -> ``{"id": int, "name": str}``, ids counted from 0.
        origin: of the table, for errors.
    """

    table: Mapping[str, ClassEntry] = field(repr=False)
    origin: Origin

    def __call__(self, path: str) -> int:
        folders, _, base = path.rpartition("/")
        key = os.path.splitext(base)[0]
        while key:
            if key in self.table:
                return self.table[key]["id"]
            key = key.rpartition("_")[0]
        for folder in reversed(folders.split("/")):
            if folder in self.table:
                return self.table[folder]["id"]
        raise LabelError(
            f"{path!r} belongs to none of the {len(self.table):,} classes {sorted(self.table)[:5]} of "
            f"{self.origin.shown}: neither the file's name, up to an underscore, nor a folder is the key of one.",
            url=self.origin.url,
        )


@dataclass(frozen=True)
class ByFileName(ByClassKey):
    """Labeller: the class of the file with this name.

    Args:
        table: empty.
        origin: of the labels, for errors.
        labels: path in the source -> label, counted from 0.
    """

    labels: Mapping[str, int] = field(repr=False)

    def __call__(self, path: str) -> int:
        return self.labels[self._key_of(path)]

    def _key_of(self, path: str) -> str:
        """Find a file in the source by the longest end of its path."""
        parts = path.split("/")
        for at in range(len(parts)):
            if (key := "/".join(parts[at:])) in self.labels:
                return key
        raise LabelError(
            f"{path!r} is none of the {len(self.labels):,} files of {self.origin.shown}, such as "
            f"{next(iter(self.labels))!r}.",
            url=self.origin.url,
        )

    def of_one_source(self) -> Labeller:
        """Return a labeller for the files of one source. Two files with one name in the source are an error."""
        seen: dict[str, str] = {}

        def labelled(path: str) -> int:
            key = self._key_of(path)
            if (before := seen.setdefault(key, path)) != path:
                raise LabelError(
                    f"{before!r} and {path!r} have one name, {key!r}, in {self.origin.shown}, which does not "
                    "distinguish them. Add folders to its names.",
                    url=self.origin.url,
                )
            return self.labels[key]

        return labelled


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
    number_base, id_base = whole("number_base", number_base, at_least=None), whole("id_base", id_base, at_least=None)
    origin = _origin(source, "by_number")
    document = _document(source, origin, storage_options)
    if not isinstance(document, Mapping):
        raise origin.error(f'expected {{"{number_base}": {id_base}, ...}}, got a {type(document).__name__}.')
    labels: dict[int, int] = {}
    for key, value in document.items():
        number = int(key) if isinstance(key, str) and _NUMBER.fullmatch(key) else int_of(key)
        if number is None or number < number_base:
            raise origin.error(f"the key {key!r:.100} is not a number from number_base={number_base} on.")
        if number in labels:
            raise origin.error(f"the number {number} occurs more than once.")
        labels[number] = origin.label(value, id_base=id_base, what=f"the class of number {number}")
    return ByNumber(labels, "key", "ILSVRC2012_val_00000001.JPEG", number_base, _LAST_NUMBER, origin)


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
    origin = _origin(source, "ground_truth")
    numbers: Any = source
    if isinstance(source, (str, os.PathLike)):
        words = [line.strip() for line in _read(source, storage_options).rstrip().splitlines()]
        numbers = [int(word) if word.isdigit() and len(word) <= 18 else word for word in words]
    if isinstance(numbers, (Mapping, bytes)) or not isinstance(numbers, Iterable):
        raise origin.error("expected the class numbers as a list.")
    labels = {
        line: origin.label(number, id_base=id_base, what=f"line {line}") for line, number in enumerate(numbers, start=1)
    }
    if not labels:
        raise origin.error("no class numbers in it, expected one for each image.")
    name = re.compile(rf"\A{re.escape(base_name)}([0-9]{{8}}|[1-9][0-9]{{8,17}})\.(?i:jpeg)\Z")
    return ByNumber(labels, "line", f"{base_name}00000001.JPEG", 1, name, origin)


@dataclass(frozen=True)
class ByNumber:
    """The labeller of :func:`by_number` and :func:`ground_truth`.

    Args:
        labels: number in the source -> label, counted from 0.
        place: what has the number in the source.
        example: name of an image.
        base: the number of the first image there.
        name: matches names of images; its group is the number of the image, counted from 1.
        origin: of the labels, for errors.
    """

    labels: Mapping[int, int] = field(repr=False)
    place: str
    example: str
    base: int
    name: re.Pattern[str]
    origin: Origin

    def __call__(self, path: str) -> int:
        base_name = path.rpartition("/")[2]
        found = self.name.search(base_name if "." in base_name else f"{base_name}.")
        number = int(found[1]) - 1 + self.base if found else 0
        if found and number in self.labels:
            return self.labels[number]
        why = f"would be {self.place} {number}" if found else f"has no number as {self.example}, which is none"
        raise LabelError(
            f"{path!r} {why} of {self.origin.shown}, which has {len(self.labels):,} images.", url=self.origin.url
        )
