"""The files of a map-style dataset: a table of which a host has one copy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.shared_columns import SharedColumns
from ..fetch.listing.url_table import StringColumn, UrlTable


class FileTable:
    """URLs, paths below the folder, and labels of files. It is not changed; copies of the object share it.

    Args:
        urls: of the files.
        paths: of the files, in the same order.
        labels: of the files; ``None`` if they have none.
    """

    urls: UrlTable
    paths: StringColumn
    labels: NDArray[np.int32] | None

    def __init__(self, urls: UrlTable, paths: StringColumn, labels: NDArray[np.int32] | None = None) -> None:
        columns = {f"urls.{name}": column for name, column in urls.columns().items()}
        columns |= {f"paths.{name}": column for name, column in paths.columns().items()}
        self._columns = SharedColumns(columns if labels is None else {**columns, "labels": labels})
        self._view()

    def _view(self) -> None:
        columns = self._columns.columns
        self.urls = UrlTable.view(_below("urls.", columns))
        self.paths = StringColumn.view(**_below("paths.", columns))
        self.labels = columns.get("labels")

    def __len__(self) -> int:
        return len(self.paths)

    def with_labels(self, labels: NDArray[np.int32]) -> FileTable:
        """Return the table with labels."""
        return FileTable(self.urls, self.paths, labels)

    def first(self, number: int | None) -> FileTable:
        """Return a table of the first files; ``None`` of all."""
        if number is None or number >= len(self):
            return self
        labels = None if self.labels is None else self.labels[:number].copy()
        return FileTable(UrlTable(self.urls[:number]), StringColumn(self.paths[:number]), labels)

    def __reduce__(self) -> Any:
        if self._columns.share():  # a worker is being started
            self._view()
        return _restored, (self._columns,)

    def __deepcopy__(self, memo: object) -> FileTable:
        return self


def _below(prefix: str, columns: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}


def _restored(columns: SharedColumns) -> FileTable:
    table = FileTable.__new__(FileTable)
    table._columns = columns
    table._view()
    return table
