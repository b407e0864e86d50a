"""Columns of a table of which a host has one copy: workers map what the process that starts them has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .shared_memory import SharedMemory

Column = np.ndarray[Any, Any]
_Layout = list[tuple[str, str, int, int]]  # name, dtype, first byte and length of each column
_ALIGNMENT = 64
_MIN_SHARED_BYTES = 64 << 10
"""A smaller table is sent as content: a copy takes less than what a process needs for a mapping."""


class SharedColumns:
    """Read-only columns by name.

    Forked workers have the memory of their parent. When a worker is started in another way, the columns are moved into
    :class:`SharedMemory`, and the pickle holds its descriptor. Any other pickle, such as one to a file or for another
    host, and that of a small table, holds the columns.

    Args:
        columns: one-dimensional arrays.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns: dict[str, Column] = dict(columns)
        self._memory: SharedMemory | None = None
        self._layout: _Layout = []

    def share(self) -> bool:
        """Move the columns into shared memory, if a worker is being started that can map it; returns whether it can.

        Views of the columns keep their own memory: replace them by views of the new ``columns``.
        """
        if not SharedMemory.can_be_sent():
            return False
        if self._memory is None:
            layout, num_bytes = _layout(self.columns)
            if num_bytes < _MIN_SHARED_BYTES:
                return False
            memory = SharedMemory.create(num_bytes)
            if memory is None or not all(
                memory.write(np.ascontiguousarray(self.columns[name]), start) for name, _, start, _ in layout
            ):
                return False
            self._map(memory, layout)
        return True

    def _map(self, memory: SharedMemory, layout: _Layout) -> None:
        view = memory.view()
        self._memory, self._layout = memory, layout
        self.columns = {
            name: np.frombuffer(view, np.dtype(kind), length, start) for name, kind, start, length in layout
        }

    def __reduce__(self) -> Any:
        if self.share():
            return _mapped, (self._memory, self._layout)
        return SharedColumns, ({name: np.ascontiguousarray(column) for name, column in self.columns.items()},)


def _layout(columns: Mapping[str, Column]) -> tuple[_Layout, int]:
    layout: _Layout = []
    at = 0
    for name, column in columns.items():
        layout.append((name, column.dtype.str, at, len(column)))
        at += column.nbytes + -column.nbytes % _ALIGNMENT
    return layout, at


def _mapped(memory: SharedMemory, layout: _Layout) -> SharedColumns:
    columns = SharedColumns({})
    columns._map(memory, layout)
    return columns
