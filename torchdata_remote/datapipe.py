"""The base of the package's pipes."""

from __future__ import annotations

from typing import TypeVar

from torch.utils.data import IterDataPipe

T_co = TypeVar("T_co", covariant=True)


class DataPipe(IterDataPipe[T_co]):
    """torch's ``IterDataPipe``, four times as fast for each item.

    torch asks for every item whether the pipe is a part of a ``fork`` or ``demux``. Where the attribute is missing, the
    question goes through the search for functional names and ends in an exception: 0.6 of the 0.8 µs an item costs.
    """

    _is_child_datapipe = False
