"""Tensors in ordinary memory, whatever device and mode of torch are set where they are made."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


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
    # The name in torch 2.1 to 2.13; later ones may have it at the storage
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is not None:
        return int(count(storage._cdata)) + sys.getrefcount(storage)
    own = getattr(storage, "_use_count", None)
    return None if own is None else int(own()) + sys.getrefcount(storage)


_ALONE = _num_users(torch.empty(1, device="cpu"))
