"""The class table: numbers and names of all classes, stored beside the shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypedDict

from ..core.urls import redact
from ._sources import Origin, parse_json


class ClassEntry(TypedDict):
    """A class: its number, counted from 0, and its name."""

    id: int
    name: str


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
    checked = read_table(table, Origin("the class table"))
    return (json.dumps(dict(sorted(checked.items(), key=lambda item: item[1]["id"])), indent=1) + "\n").encode()


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
    shown = redact(url)
    origin = Origin(shown, shown)
    return read_table(parse_json(data, origin), origin)


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
        if not isinstance(key, str) or not key:
            raise origin.error(f"{key!r:.100} is the key of a class, expected a str that is not empty.")
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise origin.error(f'class {key!r:.100} is {entry!r:.100}, expected {{"id": int, "name": str}}.')
        label = origin.label(entry.get("id"), id_base=id_base, what=f"the id of class {key!r:.100}")
        if label in keys:
            raise origin.error(f"classes {keys[label]!r:.100} and {key!r:.100} have the same id, {label + id_base}.")
        keys[label] = key
        table[str(key)] = {"id": label, "name": str(entry["name"])}
    return table
