"""Batches of torch's default ``collate_fn``: which samples it refuses, and which labels it does not notice."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from ..iter_datapipe import IterDataPipe
from ..processes.worker_start import SentToWorkers
from .batch_rows import Block, block_of
from .plain_tensors import outside_inference_mode, tensor_on
from .refused_batches import collate_error, is_file, is_image, leaves, refusal
from .reused_memory import ReusedMemory

_LABEL = "cls"
# From which on the C library asks the system for new memory, at the latest
_MANY_BYTES = 1 << 20
_memory = ReusedMemory()
_HANDS_ON = "ShufflerIterDataPipe"  # of torch


def collate_samples(batch: list[Any]) -> Any:
    """Collate samples to a batch as torch's ``default_collate``; its error names what is missing in the chain.

    Raises:
        CollateError: names the member that is neither tensor, array, number nor string; or that cannot be in one batch
            with that of another sample, and both samples.
    """
    return _collate(batch, _stacked)


class LoaderCollate(SentToWorkers):
    """The ``collate_fn`` of a loader whose fetcher makes a new list for each batch.

    If it is :func:`collate_samples`, tensors that were written into the rows of a batch (:class:`BatchRows`) are not
    copied: the list is cleared, and the rows become the batch if nothing else refers to them. The batch then consists
    of ordinary tensors, also under ``torch.inference_mode``.

    Args:
        collate_fn: makes a batch.

    Raises:
        RuntimeError: for a ``StopIteration`` of the function, which would end the pass, as generators do (PEP 479).
    """

    shown_as = "stateful_loader"

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        if isinstance(collate_fn, LoaderCollate):
            collate_fn = collate_fn.collate_fn
        self.collate_fn: Callable[[Any], Any] = collate_fn

    def __call__(self, batch: Any) -> Any:
        try:
            return _collate_rows(batch) if self.takes_rows else self.collate_fn(batch)
        except StopIteration as error:
            raise RuntimeError("collate_fn raised StopIteration, which would end the pass here.") from error

    @property
    def takes_rows(self) -> bool:
        """Whether rows of batches are not copied."""
        return self.collate_fn is collate_samples


def _collate_rows(batch: list[Any]) -> Any:
    blocks: list[Block] = []

    def collate_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        block = block_of(tensors)
        if block is None:
            return _stacked(tensors)
        blocks.append(block)
        return block.tensor

    with outside_inference_mode():
        made = _collate(batch, collate_tensors)
    if blocks:
        batch.clear()
        for block in blocks:
            block.released()
    return made


def _collate(batch: list[Any], collate_tensors: Callable[[Sequence[torch.Tensor]], torch.Tensor | None]) -> Any:
    """Collate by torch's functions for each type, which users may have extended, with ours for tensors.

    Args:
        batch: samples.
        collate_tensors: returns ``None`` where torch's function has to collate.
    """

    def tensors_or_torchs(tensors: list[Any], *, collate_fn_map: Any = None) -> Any:
        made = collate_tensors(tensors)
        return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map) if made is None else made

    functions = dict(default_collate_fn_map)
    if functions.get(torch.Tensor) is collate_tensor_fn:
        functions[torch.Tensor] = tensors_or_torchs
    try:
        return collate(batch, collate_fn_map=functions)
    except (TypeError, RuntimeError, ValueError, KeyError) as error:
        if batch and (refused := refusal(batch)) is not None:
            raise refused from error
        raise


def _stacked(batch: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Stack plain tensors that fill much memory into memory that is used again; ``None`` leaves them to torch."""
    first = batch[0]
    num_bytes = first.numel() * first.element_size() * len(batch)
    if num_bytes < _MANY_BYTES or get_worker_info() is not None or not all(_is_like(first, other) for other in batch):
        return None
    storage = _memory.take(num_bytes).untyped_storage()
    memory = tensor_on(storage, (len(batch), *first.shape), first.dtype)
    with outside_inference_mode():
        return torch.stack(list(batch), out=memory)


def _is_like(first: torch.Tensor, other: torch.Tensor) -> bool:
    is_plain = type(other) is torch.Tensor and other.layout is torch.strided and not other.is_nested
    is_data = other.device.type == "cpu" and not other.requires_grad and not other.is_quantized
    return is_plain and is_data and other.shape == first.shape and other.dtype is first.dtype


def check_item(owner: object, item: Any, *, where: str, names: tuple[str, ...] = ()) -> None:
    """Check an item that goes as it is to torch's default ``collate_fn``; other items pass.

    Args:
        owner: the pipe or dataset that hands it out; called by its ``__iter__`` or ``__getitems__``.
        item: tuple or dict.
        where: describes the item in messages.
        names: of the elements of a tuple.

    Raises:
        CollateError: for a PIL image or a file. A label in bytes is a ``RuntimeWarning``.
    """
    named = list(leaves(item, names))
    image = next(((name, value) for name, value in named if is_image(value) or is_file(value)), None)
    label = next((value for name, value in named if name == repr(_LABEL) and isinstance(value, bytes)), None)
    if (image is None and label is None) or not _is_default_collated(owner):
        return
    if image is not None:
        raise collate_error(where, *image)
    warnings.warn(
        f"{where}: {_LABEL!r} is {label!r:.40}, bytes that were not decoded, and a batch will hold bytes as labels. "
        "Chain decode_sample(), in front of to_tuple() if there is one, or pass a collate_fn.",
        RuntimeWarning,
        stacklevel=2,
    )


_METHODS_OF_LOADERS = frozenset({"fetch", "__iter__", "__next__"})


def _self_of(frame: FrameType) -> Any:
    variables = frame.f_locals
    found = variables.get("self")
    # It is a copy then, which would keep the first sample, and its row of a batch, for as long as the frame is there
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
        variables.clear()
    return found


def _is_default_collated(owner: object) -> bool:
    """Whether a loader of torch collates this object's items by default, and no pipe in between may change them."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        # Before Python 3.13, `f_locals` keeps the variables of a frame alive: those of users are left alone
        of_loader = frame.f_code.co_name in _METHODS_OF_LOADERS
        caller: Any = _self_of(frame) if of_loader else None
        if frame.f_code.co_name == "fetch" and hasattr(caller, "auto_collation"):
            function = getattr(caller.collate_fn, "collate_fn", caller.collate_fn)  # of LoaderCollate
            return bool(caller.auto_collation) and function in (default_collate, collate_samples)
        # DataLoader itself wraps the last pipe
        is_other = type(caller).__name__ not in ("_IterDataPipeSerializationWrapper", _HANDS_ON)
        if isinstance(caller, IterDataPipe) and caller is not owner and is_other:
            return False
        if frame.f_code.co_name == "warm_up":  # read ahead, for pipes that are not on this stack
            return False
        frame = frame.f_back
    return False
