from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterDataPipe
from torchdata_remote.pipes.base.datapipe import DataPipe

PIPES = [
    value
    for value in (getattr(tdr, name) for name in tdr.__all__)
    if isinstance(value, type) and issubclass(value, IterDataPipe)
    if value not in (tdr.IterableWrapper, tdr.IterDataPipe)
]


@pytest.mark.parametrize("pipe", PIPES, ids=lambda pipe: pipe.__name__)
def test_every_pipe_inherits_from_datapipe(pipe: type) -> None:
    """All of the package's pipes have the base."""
    assert issubclass(pipe, DataPipe)


class _Count(DataPipe[int]):
    def __init__(self) -> None:
        self.looked_up: list[str] = []

    def __iter__(self) -> Iterator[int]:
        yield from range(100)

    def __getattr__(self, name: str) -> Any:  # type: ignore[override]  # there is none for type checkers
        self.__dict__["looked_up"].append(name)
        raise AttributeError(name)


def test_items_cost_no_failed_attribute_lookup() -> None:
    """Otherwise torch would search the functional names for each item."""
    pipe = _Count()
    assert len(list(pipe)) == 100
    assert len(pipe.looked_up) < 10


def test_second_iterator_invalidates_the_first() -> None:
    """torch's rule is unchanged; what the first one holds is released at once."""
    pipe = _Count()
    first = iter(pipe)
    next(first)
    next(iter(pipe))
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)
