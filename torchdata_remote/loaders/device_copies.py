"""Pin batches and copy them to a device, on a stream of its own, while the consumer uses the one before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from ..core import arguments as check

Event = Any
"""Of a device's stream: recorded behind the copy of a batch."""

_WITHOUT_STREAMS = ("cpu", "meta")


def device_of(device: object) -> torch.device | None:
    """Convert the ``device`` argument of a loader.

    Raises:
        TypeError, ValueError: if torch knows no such device.
    """
    if device is None or isinstance(device, torch.device):
        return device
    if not isinstance(device, (str, int)) or isinstance(device, bool):
        raise check.marked(
            TypeError(f"device must be a str such as 'cuda', or a torch.device, got {check.shown(device)}.")
        )
    try:
        return torch.device(device)
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        raise check.marked(
            ValueError(f"device must be one of torch's, such as 'cuda', got {device!r}: {said}")
        ) from error


class BatchCopies:
    """Prepares the batches of a pass in the thread that makes them, and hands them out in the thread that uses them.

    Created by the consumer, because each thread has a current device of its own.

    Args:
        device: on which the consumer wants the batches; ``None`` leaves them in memory.
        pin_memory: whether batches are copied to pinned memory, from which a GPU copies them while it computes.
    """

    def __init__(self, device: torch.device | None, *, pin_memory: bool) -> None:
        self._device, self._pins = device, pin_memory
        self._module: Any = None
        if device is not None and device.type not in _WITHOUT_STREAMS:
            module = getattr(torch, device.type, None)  # such as torch.cuda
            self._module = module if hasattr(module, "Stream") else None
        with_index: Any = self._module or (torch.cuda if pin_memory else None)
        self._index: int | None = None if with_index is None else with_index.current_device()
        if self._device is not None and self._device.index is not None and self._module is not None:
            self._index = self._device.index
        self._set_device: Callable[[int], None] | None = None if with_index is None else with_index.set_device
        self._stream: Any = None

    def enter_thread(self) -> None:
        """Use the consumer's current device in the calling thread, which would otherwise use the first one."""
        if self._set_device is not None and self._index is not None:
            self._set_device(self._index)

    def made(self, batch: Any) -> tuple[Any, Event | None]:
        """Pin a batch and start its copy to the device."""
        if self._pins:
            batch = mapped(batch, "pin_memory", lambda part: part.pin_memory())
        if self._device is None:
            return batch, None
        if self._module is None:
            return mapped(batch, "to", lambda part: part.to(self._device)), None
        if self._stream is None:
            self._stream = self._module.Stream(self._index)
        with self._module.stream(self._stream):
            batch = mapped(batch, "to", lambda part: part.to(self._device, non_blocking=True))
            return batch, self._stream.record_event()

    def handed_out(self, batch: Any, event: Event | None) -> Any:
        """Let the consumer's current stream wait for the copy, whose memory stays until that stream has used it."""
        if event is not None:
            stream = self._module.current_stream(self._index)
            stream.wait_event(event)
            mapped(batch, "record_stream", lambda part: part.record_stream(stream) or part)
        return batch


def mapped(batch: Any, method: str, function: Callable[[Any], Any]) -> Any:
    """Call a function with each part of a batch that has a method, and build a batch of the results.

    Searches dicts, lists and tuples, as torch does when it pins memory. Other objects stay as they are.

    Example:
        >>> batch = {"x": [torch.zeros(2)], "keys": ("a", "b")}
        >>> mapped(batch, "to", lambda part: part.to(torch.int64))
        {'x': [tensor([0, 0])], 'keys': ('a', 'b')}
    """
    if hasattr(batch, method):
        return function(batch)
    if isinstance(batch, Mapping):
        parts = {key: mapped(value, method, function) for key, value in batch.items()}
        if isinstance(batch, MutableMapping):
            with suppress(TypeError):  # one that cannot be copied, or changed
                twin = copy.copy(batch)
                twin.update(parts)
                return twin
        return parts
    if isinstance(batch, tuple):
        made = [mapped(value, method, function) for value in batch]
        return type(batch)(*made) if hasattr(batch, "_fields") else tuple(made)
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes, bytearray)):
        return [mapped(value, method, function) for value in batch]
    return batch
