"""Decode files of several arrays or tensors. Nothing is unpickled but what ``weights_only`` allows."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

import numpy as np

from ._values import npy

MAX_BYTES = 4 << 30
_NPY = ".npy"


def npz(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Decode an ``npz`` archive, as ``numpy.savez`` and ``numpy.savez_compressed`` write it.

    Returns:
        Name -> array, in the order of the archive.

    Raises:
        ValueError: if it is no archive, is damaged, holds pickled objects, or has more than 4 GiB of compressed arrays.

    Example:
        >>> file = io.BytesIO()
        >>> np.savez(file, boxes=np.zeros((2, 4)), cls=np.arange(2))
        >>> {name: array.shape for name, array in npz(file.getvalue()).items()}
        {'boxes': (2, 4), 'cls': (2,)}
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            claimed = sum(entry.file_size for entry in entries)
            if claimed > max(MAX_BYTES, len(data)):  # those that are stored as they are have no more than the archive
                raise ValueError(f"its arrays claim {claimed:,} bytes (limit {MAX_BYTES:,})")
            arrays = {entry.filename.removesuffix(_NPY): npy(archive.read(entry)) for entry in entries}
            if len(arrays) < len(entries):
                raise ValueError("two of its arrays have the same name")
            return arrays
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"it is no npz archive, or damaged: {error}") from error


def safetensors(data: bytes) -> dict[str, Any]:
    """Decode a ``safetensors`` file; needs the extra ``[tensors]``.

    Returns:
        Name -> ``torch.Tensor`` on the CPU.

    Raises:
        ImportError: if the library is not installed.
        safetensors.SafetensorError: if the file is damaged.

    Example:
        >>> import torch
        >>> from safetensors.torch import save
        >>> safetensors(save({"weight": torch.ones(2, dtype=torch.int32)}))
        {'weight': tensor([1, 1], dtype=torch.int32)}
    """
    try:
        from safetensors.torch import load
    except ImportError as error:
        raise ImportError(
            "safetensors is not installed: pip install 'torchdata_remote[tensors]', or pass "
            'decode_sample({"safetensors": bytes}), which leaves the member undecoded'
        ) from error
    tensors: dict[str, Any] = load(data)
    return tensors


def torch_file(data: bytes) -> Any:
    """Decode what ``torch.save`` wrote, by ``torch.load(weights_only=True)``: tensors, numbers, text and their dicts.

    Returns:
        What was saved, with tensors on the CPU.

    Raises:
        ValueError: if it is damaged, or holds objects of other types, which only unpickling could make.

    Example:
        >>> import torch
        >>> file = io.BytesIO()
        >>> torch.save({"mask": torch.zeros(2)}, file)
        >>> torch_file(file.getvalue())
        {'mask': tensor([0., 0.])}
    """
    import torch

    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        first = str(error).partition("\n")[0]
        raise ValueError(
            "it is no file of torch.save, or holds objects other than tensors, numbers, text and their collections, "
            "which are not unpickled, because that can run any code. Save their tensors; or, if you trust the data, "
            f'pass a decoder of your own: decode_sample({{"pt": function}}). ({first:.300})'
        ) from error
    except (RuntimeError, EOFError) as error:
        raise ValueError(f"it is no file of torch.save, or damaged: {error!s:.300}") from error
