"""Datasets of the package ``datasets``: pictures and sounds as the files that they store, and names of classes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..storage import read_whole


def _features(dataset: Any) -> dict[str, Any]:
    return dataset.features if hasattr(dataset, "cast_column") and hasattr(dataset, "format") else {}


def with_stored_files(dataset: Any) -> Any:
    """Let a ``datasets.Dataset`` return files (Image, Audio, Video) as it stores them; others stay as they are.

    One with a transform of its own stays, too: it gets what is decoded.
    """
    columns = []
    for name, feature in _features(dataset).items():
        if str(getattr(feature, "pa_type", "")).startswith("struct<bytes") and dataset.format["type"] != "custom":
            dataset = dataset.cast_column(name, replace(feature, decode=False))
            columns.append(name)
    return StoredFiles(dataset, columns) if columns else dataset


@dataclass(frozen=True)
class StoredFiles:
    """Items of a dataset, with the bytes of its files.

    Args:
        dataset: whose files are not decoded.
        columns: of files.
    """

    dataset: Any
    columns: list[str]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        return {**item, **{name: _bytes_of(item[name]) for name in self.columns}}


def _bytes_of(file: Any) -> Any:
    if file is None or file["bytes"] is not None:
        return file and file["bytes"]
    return read_whole(file["path"], StorageOptions(), RetryPolicy())


def class_names(dataset: Any) -> list[str] | None:
    """Return the names of the classes in the column ``cls``, or else in the only one of type ``ClassLabel``."""
    dataset = dataset.dataset if isinstance(dataset, StoredFiles) else dataset
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
