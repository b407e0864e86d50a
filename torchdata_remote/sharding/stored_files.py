"""Datasets of the package ``datasets``: pictures and sounds as the files that they store, and names of classes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..storage import read_whole


def _features(dataset: Any) -> dict[str, Any]:
    return dataset.features if hasattr(dataset, "cast_column") and hasattr(dataset, "format") else {}


def with_stored_files(dataset: Any) -> Any:
    """Let a ``datasets.Dataset`` return files (Image, Audio, Video) as it stores them; others stay as they are.

    One with a transform of its own stays, too: it gets what is decoded.
    """
    for name, feature in _features(dataset).items():
        if str(getattr(feature, "pa_type", "")).startswith("struct<bytes") and dataset.format["type"] != "custom":
            dataset = dataset.cast_column(name, replace(feature, decode=False))
    return dataset


def stored_file(value: Any) -> Any:
    """Return the bytes of such a file, and another value as it is."""
    if not isinstance(value, dict) or value.keys() != {"bytes", "path"}:
        return value
    data = value["bytes"]
    return read_whole(value["path"], StorageOptions(), RetryPolicy()) if data is None else data


def class_names(dataset: Any) -> list[str] | None:
    """Return the names of the classes in the column ``cls``, or else in the only one of type ``ClassLabel``."""
    tables = {name: feature.names for name, feature in _features(dataset).items() if hasattr(feature, "int2str")}
    if len(tables) > 1 and "cls" not in tables:
        warnings.warn(
            f"The columns {', '.join(tables)} have names of classes, and classes.json can hold those of one, which is "
            "called 'cls': use dataset.rename_column().",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return tables.get("cls", next(iter(tables.values()), None))
