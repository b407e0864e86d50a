"""The mark by which the training process knows that workers have read."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

from torchdata_remote import Resumable, stateful_loader
from torchdata_remote.errors import StateError
from torchdata_remote.loaders.worker_mark import WorkerMark

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This process was forked from one:RuntimeWarning"),  # obstore, by other tests
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


def resumable() -> Resumable:
    names = IterableWrapper([str(number) for number in range(12)])
    return Resumable(names.sharding_filter_rank(), num_streams=4)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_state_that_only_workers_have_is_refused(method: str) -> None:
    """It would be the beginning, so that a resumed training would silently read everything again."""
    data = resumable()
    assert data.state_dict()["epoch"] == 0
    loader: Any = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context=method)
    assert len(list(loader)) == 12
    with pytest.raises(StateError, match="stateful_loader"):
        data.state_dict()


def test_stateful_loaders_do_not_set_the_mark() -> None:
    """torchdata's and this package's collect the state of each worker."""
    makers: list[Any] = [stateful_loader, StatefulDataLoader]
    for make in makers:
        data = resumable()
        loader = make(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
        loader.load_state_dict(state)
        assert list(loader) == rest
        if make is stateful_loader:
            loader.set_epoch(5)
            assert loader.state_dict()["epoch"] == 5


def test_copies_outside_of_workers_do_not_set_the_mark() -> None:
    data = resumable()
    for twin in (copy.copy(data), copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert len(list(twin)) == 12
    assert data.state_dict()["epoch"] == 0
    mark = WorkerMark()
    mark.set_in_worker()
    mark.require_unset()
