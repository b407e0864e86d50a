"""Memory of batches: tensors that are written where the batch needs them, so that collating copies nothing.

Memory of a batch that was freed is used again, because the page faults of new memory take longer than a copy.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from .arguments import one_of, whole

Memory = Literal["process", "pinned", "shared"]

# Larger batches are made of single rows: a batch size may exceed the number of samples by far
MAX_BLOCK_BYTES = 512 << 20
# Share of rows that may miss their batch, as one in so many
_ONE_IN = 4
_MAX_FREE = 4


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Make ordinary tensors in this block, that training can use later, also under ``torch.inference_mode``."""
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(mode=False), torch.no_grad():
            yield
    else:
        yield


def new_tensor(shape: Sequence[int], dtype: torch.dtype, *, pin_memory: bool = False) -> torch.Tensor:
    """Return a tensor in this machine's memory, also where ``torch.set_default_device`` names another device."""
    with outside_inference_mode():
        return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=pin_memory)


def tensor_on(storage: Any, shape: Sequence[int], dtype: torch.dtype, *, at: int = 0) -> torch.Tensor:
    """Return a tensor on a storage, from its element ``at`` on. It is no view: nothing but the storage is shared."""
    with outside_inference_mode():
        empty: Any = torch.empty(0, dtype=dtype, device="cpu")
        made: torch.Tensor = empty.set_(storage, at, tuple(shape))
    return made


def is_only_user(tensor: torch.Tensor) -> bool:
    """Whether a tensor of :func:`tensor_on` is the only one on its storage: no tensor, view or array shares it.

    It is ``False`` where torch does not tell.
    """
    found = _num_users(tensor)
    return found is not None and found == _ALONE


def _num_users(tensor: torch.Tensor) -> int | None:
    storage: Any = tensor.untyped_storage()
    count = getattr(torch._C, "_storage_Use_Count", None)
    return None if count is None else int(count(storage._cdata)) + sys.getrefcount(storage)


_ALONE = _num_users(torch.empty(1, device="cpu"))


class ReusedMemory:
    """Hands out memory, and hands it out again once the last tensor on it was freed.

    Four pieces are kept for the next ones of their size; others are returned to the system.

    Example:
        >>> memory = ReusedMemory()
        >>> first = memory.take(8).data_ptr()
        >>> memory.take(8).data_ptr() == first
        True
    """

    def __init__(self) -> None:
        self._free: deque[torch.Tensor] = deque()

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return a ``uint8`` tensor of so many bytes, whose content is undefined. Threads may call it."""
        memory = self._found(num_bytes)
        if memory is None:
            memory = new_tensor((num_bytes,), torch.uint8)
        # The storage of the result holds this array, which is freed with the last tensor on that storage
        array = memory.numpy()
        weakref.finalize(array, self._give_back, memory).atexit = False
        with outside_inference_mode():
            return torch.from_numpy(array)

    def _found(self, num_bytes: int) -> torch.Tensor | None:
        with suppress(IndexError):  # another thread has taken the last one
            for _ in range(len(self._free)):
                memory = self._free.pop()  # the one that was used last, which caches may still have
                if memory.numel() == num_bytes:
                    return memory
                self._free.appendleft(memory)
        return None

    def _give_back(self, memory: torch.Tensor) -> None:
        # In a finalizer, of any thread
        self._free.append(memory)
        with suppress(IndexError):
            while len(self._free) > _MAX_FREE:
                self._free.popleft()


class _Fate:
    """How many rows of a pass became batches, and how many did not.

    Args:
        batch_size: rows of a block.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self.collected = self.missed = 0

    @property
    def are_blocks_wasted(self) -> bool:
        """Whether more rows than those of a batch, and so many, miss it that their blocks are a waste of memory."""
        is_rare = self.missed <= self._batch_size
        return not is_rare and _ONE_IN * self.missed > self.collected + self.missed


class _Place(NamedTuple):
    row: weakref.ref[torch.Tensor]
    block: torch.Tensor
    at: int
    fate: _Fate


# Rows of all blocks in this process, by id; a row leaves when it is freed
_places: dict[int, _Place] = {}


class BatchRows:
    """Blocks of memory, of the size of a batch, that are handed out row by row.

    A pipe writes each sample into a row; :func:`block_of` then returns the block itself as the batch. The memory of a
    batch that was freed is used again, which saves the page faults of a new one: more time than a copy takes.

    The last row of a block has memory of its own and is copied: the chain still refers to the last sample of a batch.
    Rows are single tensors, without a block, where a block exceeds ``MAX_BLOCK_BYTES``, and for the rest of a pass in
    which more than a quarter of the rows do not become part of a batch in their order, as behind a ``filter``: each of
    the others would keep the memory of a whole block.

    Args:
        batch_size: rows of a block.
        memory: ``"process"`` for ordinary memory, ``"pinned"`` for page-locked memory, from which a GPU copies while
            other work is done, ``"shared"`` for memory that a ``DataLoader`` worker sends without a copy.

    Example:
        >>> rows = BatchRows(2)
        >>> samples = [rows.take((3,), torch.uint8).fill_(number) for number in range(2)]
        >>> begin, block = samples[0].data_ptr(), block_of(samples)
        >>> samples.clear()
        >>> batch = block.released()
        >>> batch.tolist(), batch.data_ptr() == begin
        ([[0, 0, 0], [1, 1, 1]], True)
    """

    def __init__(self, batch_size: int, memory: Memory = "process") -> None:
        self.batch_size = whole("batch_size", batch_size)
        one_of("memory", memory, get_args(Memory))
        self.memory: Memory = memory
        # Block and number of rows taken, for each kind of row
        self._current: dict[tuple[Any, ...], tuple[torch.Tensor, int]] = {}
        self._fate = _Fate(self.batch_size)
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
        length, kind = math.prod(shape), (tuple(shape), dtype, member)
        with self._lock:
            fate, (block, taken) = self._fate, self._current.get(kind) or (None, 0)
            if block is None:
                num_bytes = self.batch_size * length * dtype.itemsize
                if self.batch_size == 1 or num_bytes > MAX_BLOCK_BYTES or fate.are_blocks_wasted:
                    return new_tensor(shape, dtype)
                block = tensor_on(self._allocate(num_bytes), (self.batch_size, *shape), dtype)
            is_last = taken + 1 == self.batch_size
            if is_last:
                self._current.pop(kind, None)
            else:
                self._current[kind] = (block, taken + 1)
        row = (
            new_tensor(shape, dtype) if is_last else tensor_on(block.untyped_storage(), shape, dtype, at=taken * length)
        )
        key = id(row)
        _places[key] = _Place(weakref.ref(row, lambda _: _row_freed(key)), block, taken, fate)
        return row

    def restart(self) -> None:
        """Begin new blocks, for a pass whose first batch begins with the next row."""
        with self._lock:
            self._current.clear()
            self._fate = _Fate(self.batch_size)

    def _allocate(self, num_bytes: int) -> Any:
        """Return a storage."""
        if self.memory == "shared":
            # As torch's default_collate does in a worker
            new_shared: Any = torch.UntypedStorage._new_shared
            return new_shared(num_bytes)
        if self.memory == "pinned":
            # torch has a cache of pinned memory, which knows when the copies to the GPU have ended
            return new_tensor((num_bytes,), torch.uint8, pin_memory=True).untyped_storage()
        return self._memory.take(num_bytes).untyped_storage()


def _row_freed(key: int) -> None:
    place = _places.pop(key, None)
    if place is not None:
        place.fate.missed += 1


class Block:
    """A block that became a batch, while the samples that were its rows may still be referred to.

    Args:
        tensor: the batch.
        fate: of the rows of the pass.
    """

    def __init__(self, tensor: torch.Tensor, fate: _Fate) -> None:
        self.tensor, self._fate = tensor, fate

    def released(self) -> torch.Tensor:
        """Return the batch, after its samples were released.

        It is given memory of its own if a row is still in use, by a function of the chain for example that keeps
        samples: changes of the batch would change the row.
        """
        if is_only_user(self.tensor):
            self._fate.collected += len(self.tensor)
        else:
            self._fate.missed += len(self.tensor)
            with outside_inference_mode():
                held: Any = self.tensor
                held.set_(held.clone())
        return self.tensor


def block_of(tensors: Sequence[torch.Tensor]) -> Block | None:
    """Return the block whose rows the tensors are, all and in order, or ``None`` if they have to be copied.

    Rows become a batch once: a second batch of them is a copy, so that no two share memory. The caller releases the
    tensors, and then calls :meth:`Block.released`.
    """
    places = [_places.get(id(tensor)) for tensor in tensors]
    first = places[0] if places else None
    if first is None or len(tensors) != len(first.block):
        return None
    block, last = first.block, len(tensors) - 1
    begin, row_bytes = block.data_ptr(), block.element_size() * block.stride(0)
    for index, (place, tensor) in enumerate(zip(places, tensors, strict=True)):
        if place is None or place.block is not block or place.at != index or place.row() is not tensor:
            return None
        # A row may have been given other memory, or another shape, in place
        if tensor.shape != block.shape[1:] or not tensor.is_contiguous() or tensor.requires_grad:
            return None
        if index < last and tensor.data_ptr() != begin + index * row_bytes:
            return None
    if tensors[last].dtype != block.dtype or tensors[last].device != block.device:
        return None
    # By NumPy, because torch would divide the copy among threads of its own
    np.copyto(_bytes_of(block[last]), _bytes_of(tensors[last]))
    for tensor in tensors:
        _places.pop(id(tensor), None)
    return Block(block, first.fate)


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()
