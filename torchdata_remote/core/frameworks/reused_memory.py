"""Memory of batches that is used again, because the page faults of new memory take longer than a copy."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import suppress

import torch

from .plain_tensors import new_tensor, outside_inference_mode

_MAX_FREE = 4


class ReusedMemory:
    """Hands out memory, and hands it out again once the last tensor on it was freed.

    Args:
        max_free: number of pieces that are kept for the next ones of their size; others are returned to the system.

    Example:
        >>> memory = ReusedMemory()
        >>> first = memory.take(8).data_ptr()
        >>> memory.take(8).data_ptr() == first
        True
    """

    def __init__(self, max_free: int = _MAX_FREE) -> None:
        self._max_free = max_free
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
            while len(self._free) > self._max_free:
                self._free.popleft()
