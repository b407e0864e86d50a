"""The world of a worker, from what torch tells it and from the process that sent its chain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import strategies as st

from torchdata_remote.core.world import detect_rank

COUNTS = st.integers(1, 6)


def test_workers_do_without_a_rank_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning sets WORLD_SIZE alone; a loader passes the rank to its workers."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = torch.utils.data.DataLoader(_Ranks(), None, num_workers=1, multiprocessing_context="fork")
    assert [tuple(rank) for rank in loader] == [(0, 1)]


class _Ranks(torch.utils.data.IterableDataset[tuple[int, int]]):
    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield detect_rank()
