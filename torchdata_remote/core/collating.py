"""Batches as torch's default ``collate_fn`` makes them, into memory that is used again; what it refuses, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from ..errors import CollateError
from .arguments import a_kind, shown
from .batch_memory import Block, ReusedMemory, block_of, outside_inference_mode, tensor_on
from .urls import redact
from .workers import SentToWorkers

# From which on the C library asks the system for new memory, at the latest
_MANY_BYTES = 1 << 20
_MAX_DEPTH, _MAX_PARTS = 4, 1_000
_NOTHING = object()
_memory = ReusedMemory()


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
        if batch and (refused := _refusal(batch)) is not None:
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


def _refusal(batch: list[Any]) -> CollateError | None:
    """Return why torch makes no batch of samples: of one, or of one with the first; ``None`` if that is not why."""
    first, where = dict(_leaves(batch[0])), _described(batch[0])
    for sample in batch:
        found = dict(_leaves(sample))
        # Of lists too, whose lengths have to be equal; members that the first sample lacks are left out by torch
        for name in [*first, *(name for name in found if name not in first and name.startswith("element"))]:
            one, other = first.get(name, _NOTHING), found.get(name, _NOTHING)
            try:
                default_collate([one, other])
            except (TypeError, RuntimeError, ValueError) as error:
                beside = "" if sample is batch[0] else f", and {_kind_of(one)} in {where}"
                return CollateError(
                    f"{_described(sample)}: {name} is {_kind_of(other)}{beside}, of which torch's default collate_fn "
                    f"makes no batch ({str(error).partition(';')[0].rstrip('.')}). Decode it, as by decode_sample(); "
                    "convert it to a tensor of one dtype and shape in all samples, by .map(function) on a chain, "
                    "transform= of a dataset; or pass a collate_fn."
                )
    return None


def _kind_of(value: Any) -> str:
    if value is _NOTHING:
        return "missing"
    return f"{a_kind(value)} of {value.dtype}, shape {tuple(value.shape)}" if hasattr(value, "dtype") else shown(value)


def _described(item: Any) -> str:
    """Describe a sample by its key and shard, or by the texts among the elements of a tuple."""
    if isinstance(item, Mapping) and "__key__" in item:
        return f"sample {item['__key__']!r} of {redact(item.get('__url__', ''))}"
    if not isinstance(item, tuple):
        return "a sample"
    texts = ", ".join(repr(value) for value in item if isinstance(value, str))
    return f"a sample with {texts:.500}" if texts else "a sample (to_tuple(..., '__key__', '__url__') would name it)"


def _leaves(item: Any, within: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an item that are no collections, each with its name, such as ``element 0 of 'txt'``."""
    parts: Iterable[tuple[str, Any]]
    if isinstance(item, Mapping):
        parts = ((repr(name), value) for name, value in item.items())
    elif isinstance(item, list | tuple):
        parts = ((f"element {at}", value) for at, value in enumerate(item))
    else:
        yield within or "it", item
        return
    if depth < _MAX_DEPTH:
        for name, value in islice(parts, _MAX_PARTS):
            yield from _leaves(value, f"{name} of {within}" if within else name, depth + 1)
