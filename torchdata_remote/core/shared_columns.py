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
    """Read-only columns by name, in :class:`SharedMemory` if they are large and it can be created.

    Forked workers have the memory of their parent, and the pickle for a process that is being started holds its
    descriptor. Any other pickle, such as one to a file or for another host, and that of a small table, holds the
    columns.

    Args:
        columns: one-dimensional arrays.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns, self._layout = dict(columns), _Layout()
        self._memory: SharedMemory | None = None
        num_bytes = 0
        for name, column in columns.items():
            self._layout.append((name, column.dtype.str, num_bytes, len(column)))
            num_bytes += column.nbytes + -column.nbytes % _ALIGNMENT
        memory = SharedMemory.create(num_bytes) if num_bytes >= _MIN_SHARED_BYTES else None
        if memory is not None and all(
            memory.write(np.ascontiguousarray(columns[name]), start) for name, _, start, _ in self._layout
        ):
            self._map(memory)

    def _map(self, memory: SharedMemory) -> None:
        self._memory, view = memory, memory.view()
        self.columns = {
            name: np.frombuffer(view, np.dtype(kind), length, start) for name, kind, start, length in self._layout
        }

    def __reduce__(self) -> Any:
        if self._memory is not None and SharedMemory.can_be_sent():
            return _mapped, (self._memory, self._layout)
        return SharedColumns, ({name: np.ascontiguousarray(column) for name, column in self.columns.items()},)


def _mapped(memory: SharedMemory, layout: _Layout) -> SharedColumns:
    columns = SharedColumns({})
    columns._layout = layout
    columns._map(memory)
    return columns
