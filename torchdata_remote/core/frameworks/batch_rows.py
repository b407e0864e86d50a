"""Rows of batches: tensors that are written where the batch needs them, so that collating copies nothing."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch

from ..arguments.amounts import whole
from ..arguments.check import marked, shown
from .reused_memory import ReusedMemory

Memory = Literal["process", "pinned", "shared"]


class _Place(NamedTuple):
    row: weakref.ref[torch.Tensor]
    block: torch.Tensor
    at: int


# Rows of all blocks in this process, by id; a row leaves when it is freed
_places: dict[int, _Place] = {}


class BatchRows:
    """Blocks of memory, of the size of a batch, that are handed out row by row.

    A pipe writes each sample into a row; ``stack`` then returns the block itself as the batch. The memory of a batch
    that was freed is used again, which saves the page faults of a new one: more time than a copy takes.

    Args:
        batch_size: rows of a block.
        memory: ``"process"`` for ordinary memory, ``"pinned"`` for page-locked memory, from which a GPU copies while
            other work is done, ``"shared"`` for memory that a ``DataLoader`` worker sends without a copy.

    Example:
        >>> rows = BatchRows(2)
        >>> first, second = rows.take((3,), torch.uint8), rows.take((3,), torch.uint8)
        >>> batch = stack_rows([first.fill_(1), second.fill_(2)])
        >>> batch.tolist(), batch.data_ptr() == first.data_ptr()
        ([[1, 1, 1], [2, 2, 2]], True)
    """

    def __init__(self, batch_size: int, memory: Memory = "process") -> None:
        self.batch_size = whole("batch_size", batch_size)
        if memory not in get_args(Memory):
            raise marked(ValueError(f"memory must be one of {', '.join(get_args(Memory))}, got {shown(memory)}."))
        self.memory: Memory = memory
        # Block and number of rows taken, for each kind of row
        self._current: dict[tuple[Any, ...], tuple[torch.Tensor, int]] = {}
        self._memory = ReusedMemory()
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.batch_size, self.memory)

    def take(self, shape: Sequence[int], dtype: torch.dtype, *, member: str = "") -> torch.Tensor:
        """Return the next row. Its content is undefined.

        Threads may call it, but rows make up a batch without a copy only if they are taken in the order of the samples.

        Args:
            shape: of a row.
            dtype: of a row.
            member: rows of one member come from one block, so that samples may have several members of equal shape.
        """
        kind = (tuple(shape), dtype, member)
        with self._lock:
            block, taken = self._current.get(kind) or (self._new_block(*kind[:2]), 0)
            if taken + 1 < self.batch_size:
                self._current[kind] = (block, taken + 1)
            else:
                self._current.pop(kind, None)
        row = block[taken]
        key = id(row)
        _places[key] = _Place(weakref.ref(row, lambda _: _places.pop(key, None)), block, taken)
        return row

    def stack(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Stack tensors, without a copy if they are rows in order: :func:`stack_rows`."""
        return stack_rows(tensors)

    def restart(self) -> None:
        """Begin new blocks, for a pass whose first batch begins with the next row."""
        with self._lock:
            self._current.clear()

    def _new_block(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_bytes = self.batch_size * math.prod(shape) * dtype.itemsize
        return self._allocate(num_bytes).view(dtype).view(self.batch_size, *shape)

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        if self.memory == "shared":
            # As torch's default_collate does in a worker
            new_shared: Any = torch.UntypedStorage._new_shared
            storage = new_shared(num_bytes)
            empty: Any = torch.empty(0, dtype=torch.uint8)
            shared: torch.Tensor = empty.set_(storage, 0, (num_bytes,))
            return shared
        if self.memory == "pinned":
            # torch has a cache of pinned memory, which knows when the copies to the GPU have ended
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        return self._memory.take(num_bytes)


def stack_rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack tensors to a batch: without a copy if they are neighbouring rows of a block in order, else a new tensor.

    Rows become a batch without a copy once: a second batch of them is a copy, so that no two share memory.

    Raises:
        RuntimeError: torch's, if the shapes differ.
    """
    block = block_of(tensors)
    return torch.stack(list(tensors)) if block is None else block


def block_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the part of a block that the tensors are, or ``None`` if they have to be copied."""
    places = [_places.get(id(tensor)) for tensor in tensors]
    first = places[0] if places else None
    if first is None:
        return None
    block, begin = first.block, first.at
    for index, (place, tensor) in enumerate(zip(places, tensors, strict=True), begin):
        if place is None or place.block is not block or place.at != index or place.row() is not tensor:
            return None
        # A row may have been given other memory, or another shape, in place
        expected = block[index]
        if tensor.data_ptr() != expected.data_ptr() or tensor.shape != expected.shape or not tensor.is_contiguous():
            return None
        if tensor.requires_grad:
            return None
    for tensor in tensors:
        _places.pop(id(tensor), None)
    return block if len(tensors) == len(block) else block[begin : begin + len(tensors)]
