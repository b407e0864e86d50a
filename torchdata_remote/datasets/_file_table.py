"""The files of a map-style dataset: a table of which a host has one copy."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.shared_columns import SharedColumns
from ..core.urls import RemoteUrl
from ..fetch.listing.url_table import StringColumn, UrlTable


class FileTable:
    """URLs, paths below the folder, and labels of files. It is not changed; copies of the object share it.

    A file takes the characters of its path and of its etag, and 24 bytes; with a label 28.

    Args:
        files: URL and path of each file.
    """

    urls: Sequence[RemoteUrl]
    paths: StringColumn
    labels: NDArray[np.int32] | None

    def __init__(self, files: Iterable[tuple[str, str]] = ()) -> None:
        made = _Builder()
        for url, path in files:
            made.add(url, path)
        self._take(made.prefix or "", SharedColumns(made.columns()))

    def _take(self, prefix: str, columns: SharedColumns) -> None:
        self._prefix, self._columns = prefix, columns
        self._view()

    def _view(self) -> None:
        """Look at the columns where they are now."""
        columns = self._columns.columns
        self.paths = StringColumn.view(columns, "paths")
        rests = "rests" if "rests.ends" in columns else "paths"
        urls = {f"urls.{part}": columns[f"{rests}.{part}"] for part in ("data", "ends")}
        self.urls = UrlTable.view({**columns, **urls}, self._prefix)
        self.labels = columns.get("labels")

    def __len__(self) -> int:
        return len(self.paths)

    def with_labels(self, labels: NDArray[np.int32]) -> FileTable:
        """Return the table with labels."""
        return _restored(self._prefix, SharedColumns({**self._columns.columns, "labels": labels}))

    def chosen(self, numbers: Sequence[int]) -> FileTable:
        """Return a table of these files, in this order."""
        table = FileTable((self.urls[number], self.paths[number]) for number in numbers)
        return table if self.labels is None else table.with_labels(self.labels[np.asarray(numbers, np.int64)])

    def first(self, number: int | None) -> FileTable:
        """Return a table of the first files; ``None`` of all."""
        return self if number is None or number >= len(self) else self.chosen(range(number))

    def __reduce__(self) -> Any:
        if self._columns.share():  # a worker is being started
            self._view()
        return _restored, (self._prefix, self._columns)

    def __deepcopy__(self, memo: object) -> FileTable:
        return self


class _Builder:
    """Collects files. As long as all URLs are one prefix and the path, only the prefix is stored."""

    def __init__(self) -> None:
        self.prefix: str | None = None
        self._paths, self._etags, self._sizes = StringColumn(), StringColumn(), array("q")
        self._rests: StringColumn | None = None

    def add(self, url: str, path: str) -> None:
        if self.prefix is None:
            self.prefix = url.removesuffix(path)
        if self._rests is None and url != self.prefix + path:
            self._rests = StringColumn(self.prefix + before for before in self._paths)
            self.prefix = ""
        if self._rests is not None:
            self._rests.append(url)
        size, etag = (url.size, url.etag) if isinstance(url, RemoteUrl) else (None, None)
        self._paths.append(path)
        self._etags.append(etag or "")
        self._sizes.append(-1 if size is None else size)

    def columns(self) -> dict[str, Any]:
        found: dict[str, Any] = {"sizes": np.frombuffer(self._sizes, np.int64)}
        for name, texts in (("paths", self._paths), ("etags", self._etags), ("rests", self._rests)):
            if texts is not None:
                found |= texts.columns(name)
        return found


def _restored(prefix: str, columns: SharedColumns) -> FileTable:
    table = FileTable.__new__(FileTable)
    table._take(prefix, columns)
    return table
