"""Label all files, and build the class table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import LabelError
from ..formats.manifest import CLASSES_NAME
from ._paths import Labeller, call_labeller, unexpected_label
from ._sources import MAX_LABEL, Origin, label_number
from ._table import ClassEntry, read_table


def assign_labels(
    labeller: Labeller, paths: Iterable[str], *, known: Mapping[str, ClassEntry] | None = None
) -> tuple[NDArray[np.int32], dict[str, ClassEntry]]:
    """Label each path, and build the class table.

    If the labeller returns names, they are the keys of the classes, sorted and numbered from 0. If it returns numbers,
    the classes are those of its ``table``; without a table, each number that occurs is a class named by the number.
    Classes in ``known`` keep their numbers: new names are sorted and numbered after the last of them; a number without
    a table is the class of this number in ``known``.

    Args:
        labeller: a function ``path -> int | str``.
        paths: of the files, relative to their source. Iterated once.
        known: the class table of an existing dataset that is extended.

    Returns:
        The labels in the order of the paths, int32 of shape (num_paths,), and the class table: key ->
        ``{"id": int, "name": str}``, sorted by id, with all classes of ``known`` and of the labeller's table.

    Raises:
        LabelError: for a path without a label, or with one that is neither a name nor a number from 0 to 2**31 - 1, or
            that is not in the labeller's table; for a mixture of names and numbers; and if ``known`` and the labeller's
            table differ. Names the path.

    Example:
        >>> labels, table = assign_labels(lambda path: path.split("/")[0], ["dog/1", "cat/1", "dog/2"])
        >>> labels.tolist(), table
        ([1, 0, 1], {'cat': {'id': 0, 'name': 'cat'}, 'dog': {'id': 1, 'name': 'dog'}})
        >>> assign_labels(lambda path: path.split("/")[0], ["ant/1"], known=table)[0].tolist()
        [2]
    """
    if isinstance(paths, str):
        raise TypeError(f"paths must be a list of paths, got a single str: {paths!r:.200}")
    own = getattr(labeller, "table", None)
    own_table = None if own is None else read_table(own, Origin("the labeller's table"))
    table = {} if known is None else read_table(known, Origin("the known class table"))
    _add_classes(table, own_table or {})
    of_one_source = getattr(labeller, "of_one_source", None)
    if of_one_source is not None:  # it detects two files with the same name in the source
        labeller = of_one_source()
    found = _Found({}, set(), [])
    labels = np.fromiter(_numbers(labeller, paths, found, own_table), np.int32)
    if found.names:
        labels = _add_names(table, found.names)[labels]
    elif own_table is None:
        new = found.numbers - {entry["id"] for entry in table.values()}
        _add_classes(table, {str(number): {"id": number, "name": str(number)} for number in sorted(new)})
    return labels, dict(sorted(table.items(), key=lambda item: item[1]["id"]))


def merged_tables(known: Mapping[str, ClassEntry] | None, others: Mapping[str, ClassEntry]) -> dict[str, ClassEntry]:
    """Merge two class tables, sorted by id. Classes in both keep their names in ``known``.

    Raises:
        LabelError: if a class has different numbers.
    """
    table = dict(known or {})
    _add_classes(table, others)
    return dict(sorted(table.items(), key=lambda item: item[1]["id"]))


class _Found(NamedTuple):
    """The labels so far: names, numbered in the order of occurrence, or numbers; and the first path."""

    names: dict[str, int]
    numbers: set[int]
    first: list[str]


def _numbers(
    labeller: Labeller, paths: Iterable[str], found: _Found, table: Mapping[str, ClassEntry] | None
) -> Iterator[int]:
    """Yield a number for each path; for a name a provisional one. A label is validated at its first occurrence."""
    names, numbers, _ = found
    ids = None if table is None else {entry["id"] for entry in table.values()}
    for path in paths:
        label = call_labeller(labeller, path)
        if isinstance(label, str):
            number = names.get(label)
            if number is None:
                if not label or (table is not None and label not in table):
                    raise unexpected_label(path, label, has_table=table is not None)
                _require_one_kind(path, label, found)
                number = names[str(label)] = len(names)
            yield number
        else:
            whole = label_number(label)
            if whole is None or (ids is not None and whole not in ids):
                raise unexpected_label(path, label, has_table=table is not None)
            if whole not in numbers:
                _require_one_kind(path, label, found)
                numbers.add(whole)
            yield whole


def _require_one_kind(path: str, label: object, found: _Found) -> None:
    if found.numbers if isinstance(label, str) else found.names:
        raise LabelError(
            f"{path!r} has the label {label!r:.100} ({type(label).__name__}), but {found.first[0]!r} has a "
            f"{'number' if found.numbers else 'name'}: a labeller must return one or the other for all files."
        )
    if not found.first:
        found.first.append(path)


def _add_names(table: dict[str, ClassEntry], names: Mapping[str, int]) -> NDArray[np.int32]:
    """Add new names, sorted, after the classes of a table; return the label of each provisional number."""
    keys = {entry["name"]: key for key, entry in table.items()}
    after = max((entry["id"] for entry in table.values()), default=-1) + 1
    new = sorted(name for name in names if name not in table)
    for label, name in enumerate(new, start=after):
        if name in keys:
            raise LabelError(
                f"{name!r} is the label of a file, and the name of the known class {keys[name]!r}, which has the label "
                f"{table[keys[name]]['id']}. Files of known classes are labelled by the classes' keys."
            )
        if label > MAX_LABEL:
            raise LabelError(f"Class {name!r} would have the label {label}, the last one is {MAX_LABEL}.")
        table[name] = {"id": label, "name": name}
    return np.array([table[name]["id"] for name in names], np.int32)


def _add_classes(table: dict[str, ClassEntry], others: Mapping[str, ClassEntry]) -> None:
    """Add classes to a table. A class that it has already keeps its name there.

    Raises:
        LabelError: if the table has another class with the same key or the same id.
    """
    keys = {entry["id"]: key for key, entry in table.items()}
    for key, entry in others.items():
        label = entry["id"]
        if (table[key]["id"] if key in table else label) != label or keys.get(label, key) != key:
            existing = key if key in table else keys[label]
            raise LabelError(
                f"Class {key!r} has the label {label}, but the known class table has {existing!r} with the label "
                f"{table[existing]['id']}. Extend a dataset with its own classes: label by its {CLASSES_NAME}."
            )
        keys[label] = key
        table.setdefault(key, entry)
