"""The class table: numbers and names of all classes, stored beside the shards; and the labels of all files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from ..core.arguments import int_of
from ..core.urls import redact
from ..errors import LabelError, RemoteDataError
from .manifest import CLASSES_NAME

Labeller = Callable[[str], int | str]
MAX_LABEL = (1 << 31) - 1
"""Labels are stored as int32."""


class ClassEntry(TypedDict):
    """A class: its number, counted from 0, and its name."""

    id: int
    name: str


class Origin(NamedTuple):
    """Name of a source in errors.

    Args:
        shown: the URL without credentials, or a description.
        url: the URL without credentials, or ``None``.
    """

    shown: str
    url: str | None = None

    def error(self, message: str) -> LabelError:
        """Create an error that starts with the source."""
        return LabelError(f"{self.shown}: {message}", url=self.url)

    def label(self, value: object, *, id_base: int, what: str) -> int:
        """Convert a class number of the source to one that is counted from 0.

        Raises:
            LabelError: if it is not an int, less than ``id_base``, or more than an int32 holds.
        """
        number = int_of(value)
        if number is None:
            raise self.error(f"{what} is {value!r:.100} ({type(value).__name__}), expected an int.")
        if not 0 <= number - id_base <= MAX_LABEL:
            raise self.error(
                f"{what} is {number}, expected {id_base} to {id_base + MAX_LABEL} where numbers count from {id_base} "
                "(id_base). Look up what the source counts from."
            )
        return number - id_base

    def json(self, data: bytes) -> object:
        """Parse a JSON document. A repeated key, of which ``json`` would keep the last, is an error.

        Raises:
            LabelError: if it is not such a document.
        """
        try:
            return json.loads(data, object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError) as error:
            raise self.error(f"not a valid JSON document: {error}") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.100} occurs more than once")
    return result


def dump_table(table: Mapping[str, ClassEntry]) -> bytes:
    """Serialise a class table as JSON, sorted by id; ``classes_json(url, id_base=0)`` can read it.

    Args:
        table: class key -> ``{"id": int, "name": str}``, ids counted from 0.

    Raises:
        LabelError: if it is not a class table.

    Example:
        >>> print(dump_table({"n02119789": {"id": 0, "name": "kit_fox"}}).decode(), end="")
        {
         "n02119789": {
          "id": 0,
          "name": "kit_fox"
         }
        }
    """
    return (json.dumps(_sorted(read_table(table, Origin("the class table"))), indent=1) + "\n").encode()


def load_table(data: bytes, url: str) -> dict[str, ClassEntry]:
    """Parse the class table of :func:`dump_table`.

    Args:
        data: the JSON document.
        url: of the document, for errors.

    Raises:
        LabelError: if it is not one. Names the URL.

    Example:
        >>> load_table(b'{"cat": {"id": 0, "name": "cat"}}', "s3://pets/classes.json")
        {'cat': {'id': 0, 'name': 'cat'}}
    """
    origin = Origin(redact(url), redact(url))
    return read_table(origin.json(data), origin)


def read_table(document: object, origin: Origin, *, id_base: int = 0) -> dict[str, ClassEntry]:
    """Validate a class table, and convert its ids to be counted from 0.

    Raises:
        LabelError: if it is not a class table, or two classes have the same id.
    """
    if not isinstance(document, Mapping):
        raise origin.error(
            f'expected classes as {{"key": {{"id": 0, "name": "cat"}}, ...}}, got a {type(document).__name__}: '
            f"{document!r:.100}"
        )
    table: dict[str, ClassEntry] = {}
    keys: dict[int, str] = {}
    for key, entry in document.items():
        id_, name = (entry.get("id"), entry.get("name")) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(key, str) or not key or not isinstance(name, str):
            raise origin.error(f'class {key!r:.100} is {entry!r:.100}, expected "key": {{"id": int, "name": str}}.')
        label = origin.label(id_, id_base=id_base, what=f"the id of class {key!r:.100}")
        if (other := keys.setdefault(label, key)) != key:
            raise origin.error(f"classes {other!r:.100} and {key!r:.100} have the same id, {label + id_base}.")
        table[str(key)] = {"id": label, "name": str(name)}
    return table


def merged_tables(known: Mapping[str, ClassEntry] | None, others: Mapping[str, ClassEntry]) -> dict[str, ClassEntry]:
    """Merge two class tables, sorted by id. Classes in both keep their names in ``known``.

    Raises:
        LabelError: if a class has different numbers, or a number different classes.
    """
    table = dict(known or {})
    keys = {entry["id"]: key for key, entry in table.items()}
    for key, entry in others.items():
        label = entry["id"]
        existing = key if key in table else keys.get(label, key)
        if table.get(existing, entry)["id"] != label or existing != key:
            raise LabelError(
                f"Class {key!r} has the label {label}, but the known class table has {existing!r} with the label "
                f"{table[existing]['id']}. Extend a dataset with its own classes: label by its {CLASSES_NAME}."
            )
        table.setdefault(key, entry)
        keys[label] = key
    return _sorted(table)


def _sorted(table: Mapping[str, ClassEntry]) -> dict[str, ClassEntry]:
    return dict(sorted(table.items(), key=lambda item: item[1]["id"]))


def call_labeller(labeller: Labeller, path: str) -> int | str:
    """Call a labeller, which may be a user's function; return a name or a number.

    Raises:
        LabelError: if it raises anything but an error of this package, or returns neither. Names the path.
    """
    try:
        label: object = labeller(path)
    except RemoteDataError:  # it names the path, or the URL that could not be read
        raise
    except Exception as error:  # anything may be wrong in a user's function
        raise LabelError(f"{path!r} has no label: the labeller raised {error!r}.") from error
    number = int_of(label)
    if isinstance(label, str) and label:
        return str(label)
    if number is not None and 0 <= number <= MAX_LABEL:
        return number
    raise LabelError(
        f"{path!r} has the label {label!r:.100} ({type(label).__name__}), expected the name of a class, which is not "
        f"empty, or its number from 0 to {MAX_LABEL}."
    )


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
    own = read_table(getattr(labeller, "table", None) or {}, Origin("the labeller's table")) or None
    table = merged_tables({} if known is None else read_table(known, Origin("the known class table")), own or {})
    if hasattr(labeller, "of_one_source"):  # it notices two files with the same name in the source
        labeller = labeller.of_one_source()
    names: dict[str, int] = {}  # numbered in the order of occurrence
    numbers: set[int] = set()
    allowed: set[int | str] | None = None if own is None else {*own, *(entry["id"] for entry in own.values())}

    def found() -> Iterator[int]:
        first = ""
        for path in paths:
            label = call_labeller(labeller, path)
            first = first or path
            if label not in names and label not in numbers:
                if allowed is not None and label not in allowed:
                    raise LabelError(f"{path!r} has the label {label!r:.100}, which is not in the labeller's table.")
                if numbers if isinstance(label, str) else names:
                    raise LabelError(
                        f"{path!r} has the label {label!r:.100} ({type(label).__name__}), but {first!r} has a "
                        f"{'number' if numbers else 'name'}: a labeller must return one or the other for all files."
                    )
                if isinstance(label, str):
                    names[label] = len(names)
                else:
                    numbers.add(label)
            yield names[label] if isinstance(label, str) else label

    labels = np.fromiter(found(), np.int32)
    if names:
        _add_names(table, names)
        labels = np.array([table[name]["id"] for name in names], np.int32)[labels]
    elif own is None:
        new = numbers - {entry["id"] for entry in table.values()}
        table = merged_tables(table, {str(number): {"id": number, "name": str(number)} for number in new})
    return labels, _sorted(table)


def _add_names(table: dict[str, ClassEntry], names: Iterable[str]) -> None:
    """Add new names, sorted, after the classes of a table."""
    keys = {entry["name"]: key for key, entry in table.items()}
    after = max((entry["id"] for entry in table.values()), default=-1) + 1
    for label, name in enumerate(sorted(name for name in names if name not in table), start=after):
        if name in keys:
            raise LabelError(
                f"{name!r} is the label of a file, and the name of the known class {keys[name]!r}, which has the label "
                f"{table[keys[name]]['id']}. Files of known classes are labelled by the classes' keys."
            )
        if label > MAX_LABEL:
            raise LabelError(f"Class {name!r} would have the label {label}, the last one is {MAX_LABEL}.")
        table[name] = {"id": label, "name": name}
