"""torch is asked about this process, and not imported for it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch.utils.data._utils.worker import WorkerInfo

from torchdata_remote.core.processes.torch_state import get_worker_info, rank_in_process_group


def test_a_worker_is_asked_for_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    told = WorkerInfo(id=1, num_workers=2, seed=0, dataset=torch.utils.data.TensorDataset())
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: told)
    assert get_worker_info() is told


def test_a_rank_is_asked_for_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"is_initialized": True, "get_rank": 1, "get_world_size": 3}.items():
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert rank_in_process_group() == (1, 3)


def test_a_process_without_torch_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported to find that out."""
    monkeypatch.delitem(sys.modules, "torch.utils.data")
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert get_worker_info() is None
    assert rank_in_process_group() is None
    assert "torch.utils.data" not in sys.modules


def test_a_process_that_is_importing_torch_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may have executed any part of it."""
    monkeypatch.setitem(sys.modules, "torch.utils.data", ModuleType("torch.utils.data"))
    monkeypatch.setitem(sys.modules, "torch.distributed", ModuleType("torch.distributed"))
    assert get_worker_info() is None
    assert rank_in_process_group() is None
