"""The labels of all files, and the classes that there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import LabelError
from ..formats.manifest import CLASSES_NAME
from ._paths import Labeller, call_labeller, label_number, unexpected_label
from ._sources import MAX_LABEL, Origin
from ._table import ClassEntry, read_table


def assign_labels(
    labeller: Labeller, paths: Iterable[str], *, known: Mapping[str, ClassEntry] | None = None
) -> tuple[NDArray[np.int32], dict[str, ClassEntry]]:
    """Label each path, and tell the classes.

    Where the labeller gives names, these are the classes' keys: sorted, they are numbered from 0. Where it gives
    numbers, the classes are those of its ``table``; without one, each number that occurs is a class named by itself.
    Classes in ``known`` keep their numbers: new names are numbered, sorted, after the last of them; a number without a
    table means the class that has it there.

    Args:
        labeller: a function ``path -> int | str``.
        paths: of the files, below their source. Read once, and not kept.
        known: the class table of a data set that is being added to.

    Returns:
        The labels in the order of the paths, int32 of shape (num_paths,), and the class table: key ->
        ``{"id": int, "name": str}``, by ids, with the classes of ``known`` and of the labeller's table whether they
        occur or not.

    Raises:
        LabelError: for a path without a label, or with one that is neither a name nor a number from 0 to 2**31 - 1, or
            that is not in the labeller's table; for names and numbers mixed; and if ``known`` says otherwise than the
            labeller's table. Names the path.

    Example:
        >>> labels, table = assign_labels(lambda path: path.split("/")[0], ["dog/1", "cat/1", "dog/2"])
        >>> labels.tolist(), table
        ([1, 0, 1], {'cat': {'id': 0, 'name': 'cat'}, 'dog': {'id': 1, 'name': 'dog'}})
        >>> assign_labels(lambda path: path.split("/")[0], ["ant/1"], known=table)[0].tolist()
        [2]
    """
    if isinstance(paths, str):
        raise TypeError(f"paths must be several, got a single str: {paths!r:.200}")
    own = getattr(labeller, "table", None)
    own_table = None if own is None else read_table(own, Origin("the labeller's table"))
    table = {} if known is None else read_table(known, Origin("the known class table"))
    _add_classes(table, own_table or {})
    of_one_source = getattr(labeller, "of_one_source", None)
    if of_one_source is not None:  # it notices two files that it cannot tell apart
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
    """The classes of two tables, by ids; those of both keep the names that they have in ``known``.

    Raises:
        LabelError: if the tables number a class differently.
    """
    table = dict(known or {})
    _add_classes(table, others)
    return dict(sorted(table.items(), key=lambda item: item[1]["id"]))


class _Found(NamedTuple):
    """The labels so far: names, numbered as they come, or numbers; and the path of the first."""

    names: dict[str, int]
    numbers: set[int]
    first: list[str]


def _numbers(
    labeller: Labeller, paths: Iterable[str], found: _Found, table: Mapping[str, ClassEntry] | None
) -> Iterator[int]:
    """A number for each path; that of a name is a provisional one. Only a label that is new is looked at closely."""
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
            f"{'number' if found.numbers else 'name'}: a labeller gives one or the other for all files."
        )
    if not found.first:
        found.first.append(path)


def _add_names(table: dict[str, ClassEntry], names: Mapping[str, int]) -> NDArray[np.int32]:
    """Put new names, sorted, after the classes of a table; from provisional number to label."""
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
    """Put classes into the known table. One that it has already keeps the name that it has there.

    Raises:
        LabelError: if the table has another class with the same key or the same id.
    """
    keys = {entry["id"]: key for key, entry in table.items()}
    for key, entry in others.items():
        label = entry["id"]
        if (table[key]["id"] if key in table else label) != label or keys.get(label, key) != key:
            there = key if key in table else keys[label]
            raise LabelError(
                f"Class {key!r} has the label {label}, but the known class table has {there!r} with the label "
                f"{table[there]['id']}. A data set is added to with its own classes: label by its {CLASSES_NAME}."
            )
        keys[label] = key
        table.setdefault(key, entry)
