"""Decode numbers, text, and files of arrays and tensors. Nothing is unpickled but what ``weights_only`` allows."""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from typing import Any

import numpy as np

from ..npy_header import npy_header

_MAX_BYTES = 4 << 30
_NPY = ".npy"


def integer(data: bytes) -> int:
    """Decode a decimal number, such as the class number in a ``cls`` member.

    Raises:
        ValueError: if the data are not a number.

    Example:
        >>> integer(b"42")
        42
    """
    return int(data)


def text(data: bytes) -> str:
    """Decode UTF-8 text.

    Raises:
        UnicodeDecodeError: if the data are not UTF-8.

    Example:
        >>> text(b"kit fox")
        'kit fox'
    """
    return data.decode("utf-8")


def npy(data: bytes) -> np.ndarray[Any, Any]:
    """Decode an array in NumPy's ``npy`` format (NEP 1), in the byte order of this machine, as torch needs it.

    Raises:
        ValueError: if the array holds pickled objects, is shorter than its header says, or is an ``npz`` archive.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> np.save(file, np.arange(3))
        >>> npy(file.getvalue())
        array([0, 1, 2])
    """
    if data[:6] != b"\x93NUMPY":
        raise ValueError(f"it begins with {data[:6]!r}, where an npy array was expected; allow_pickle is off")
    shape, fortran_order, dtype, begin = npy_header(data)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would need unpickling (allow_pickle is off)")
    left, claimed = len(data) - begin, math.prod(shape) * dtype.itemsize
    if claimed > left or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} and {dtype} has {claimed:,} bytes, of which {left:,} are there")
    array = np.frombuffer(data, dtype, math.prod(shape), begin)
    return array.reshape(shape, order="F" if fortran_order else "C").astype(dtype.newbyteorder("="))


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
            if claimed > max(_MAX_BYTES, len(data)):  # those that are stored as they are have no more than the archive
                raise ValueError(f"its arrays claim {claimed:,} bytes (limit {_MAX_BYTES:,})")
            arrays = {entry.filename.removesuffix(_NPY): npy(archive.read(entry)) for entry in entries}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"it is no npz archive, or damaged: {error}") from error
    if len(arrays) < len(entries):
        raise ValueError("two of its arrays have the same name")
    return arrays


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
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        first = str(error).partition("\n")[0]
        raise ValueError(
            "it is no file of torch.save, is damaged, or holds objects other than tensors, numbers, text and their "
            "collections, which are not unpickled, because that can run any code. Save their tensors; or, if you trust "
            f'the data, pass a decoder of your own: decode_sample({{"pt": function}}). ({first:.300})'
        ) from error
