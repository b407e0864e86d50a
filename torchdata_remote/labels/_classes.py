"""Labellers with a class table, whose keys are found in the paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, overload

import numpy as np

from ..core.arguments import explained, int_of, whole
from ..errors import LabelError
from ._file_names import ByFileName, names_files, read_file_names
from ._matlab import read_structs
from ._sources import Location, Origin, is_location, origin_of, read_bytes, read_json
from ._table import ClassEntry, read_table


@overload
def classes_json(
    source: Mapping[str, int], *, id_base: int | None = None, storage_options: Mapping[str, Any] | None = None
) -> ByFileName: ...


@overload  # except for a document of files at a URL, whose labeller has no table
def classes_json(
    source: Location | Mapping[str, Mapping[str, Any]],
    *,
    id_base: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ByClassKey: ...


@explained
def classes_json(
    source: Location | Mapping[str, Mapping[str, Any]] | Mapping[str, int],
    *,
    id_base: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ByClassKey | ByFileName:
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
        A labeller; its ``table`` of classes, which files have none of, has ids counted from 0.

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
    if id_base is not None:
        id_base = whole("id_base", id_base, at_least=None)
    origin = origin_of(source, "classes_json")
    document = read_json(source, origin, storage_options)
    if names_files(document):
        return read_file_names(cast(Mapping[str, object], document), origin, id_base=id_base or 0)
    id_base = whole("id_base", id_base, at_least=None)
    return ByClassKey(read_table(document, origin, id_base=id_base), origin)


@explained
def meta_mat(
    source: Location | Sequence[Mapping[str, Any]], *, storage_options: Mapping[str, Any] | None = None
) -> ByClassKey:
    """Create a labeller from ``meta.mat``, the classes of an ILSVRC development kit.

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
    origin = origin_of(source, "meta_mat")
    rows = _synsets(read_bytes(source, storage_options), origin) if is_location(source) else source
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise origin.error(f"expected a list of synsets, got a {type(rows).__name__}.")
    classes: dict[str, dict[str, Any]] = {}
    for index, row in enumerate(rows):
        key = _field(row, index, "WNID", origin)
        if _number(row, index, "num_children", origin) != 0:
            continue
        if not isinstance(key, str) or key in classes:
            raise origin.error(f"synset {index} has the WNID {key!r:.100}, expected a str that no other class has.")
        classes[key] = {
            "id": _number(row, index, "ILSVRC2012_ID", origin),
            "name": _field(row, index, "words", origin),
        }
    if not classes:
        raise origin.error("no synset has num_children == 0, so there are no classes.")
    return ByClassKey(read_table(classes, origin, id_base=1), origin)


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


def _synsets(data: bytes, origin: Origin) -> Iterable[object]:
    """Read the structs of a MATLAB file."""
    try:
        rows = read_structs(data, "synsets")
    except ValueError as error:
        raise origin.error(f"not a MATLAB file as an ILSVRC development kit has it: {error}.") from error
    if rows is None:
        raise origin.error("a MATLAB file without synsets, expected the meta.mat of an ILSVRC development kit.")
    return rows


def _field(row: object, index: int, name: str, origin: Origin) -> object:
    value: object = row.get(name) if isinstance(row, Mapping) else None
    if value is None:
        raise origin.error(f"synset {index} has no {name}: {row!r:.100}")
    return value


def _number(row: object, index: int, name: str, origin: Origin) -> int:
    """Read an integer field. MATLAB stores numbers as doubles."""
    value = _field(row, index, name, origin)
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return int(value)
    number = int_of(value)
    if number is None:
        raise origin.error(f"synset {index} has the {name} {value!r:.100}, expected a whole number.")
    return number
