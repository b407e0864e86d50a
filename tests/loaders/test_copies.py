"""Copies of a ``stateful_loader``, by ``pickle`` and ``copy``; sent to another process in ``tests/trainers``."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from torchdata_remote import StatefulLoader, stateful_loader
from torchdata_remote.core.iter_datapipe import IterableWrapper
from torchdata_remote.testing import write_small_shards


def loader_of(folder: Path, num_workers: int) -> StatefulLoader:
    write_small_shards(str(folder), num_shards=6, samples_per_shard=4)
    urls = IterableWrapper([f"{folder}/index.json"]).list_remote().shuffle_shards(seed=1).sharding_filter_rank()
    pipe: Any = urls.shard_tar_reader().to_tuple("__key__")
    return stateful_loader(pipe, batch_size=2, num_streams=6, num_workers=num_workers, list_once=True)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_batches", [0, 5, 12])
def test_a_copy_continues_at_the_position_of_the_loader(tmp_path: Path, num_workers: int, num_batches: int) -> None:
    """Within its second pass, and after that; the loader itself continues as well."""
    loader = loader_of(tmp_path, num_workers)
    num_in_epoch = len(list(loader))
    batches = iter(loader)
    begun = list(islice(batches, num_batches))
    copied = pickle.loads(pickle.dumps(loader))
    rest = list(batches)
    assert len(begun + rest) == num_in_epoch
    assert list(copied) == rest
    assert (copied.batch_size, copied.num_workers, copied.dataset.listings.once) == (2, num_workers, True)


def test_a_copy_has_the_loaded_state(tmp_path: Path) -> None:
    """Also before its pass starts."""
    loader = loader_of(tmp_path, 0)
    batches = iter(loader)
    assert len(list(islice(batches, 5))) == 5
    resumed = loader_of(tmp_path, 0)
    resumed.load_state_dict(loader.state_dict())
    assert list(copy.deepcopy(resumed)) == list(batches)


def report(loader: StatefulLoader, sender: Connection) -> None:
    sender.send(list(loader))


def test_a_started_process_starts_the_next_pass(tmp_path: Path) -> None:
    """Also if a batch was read before."""
    loader = loader_of(tmp_path, 0)
    assert next(iter(loader))
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(loader, sender))
    process.start()
    sender.close()
    assert receiver.recv() == list(loader)
    process.join()
    assert process.exitcode == 0
