"""torch's count of what a pipe has yielded, which its snapshots are restored by."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from torchdata_remote.core.iter_datapipe import IterableWrapper
from torchdata_remote.pipes.base.datapipe import DataPipe
from torchdata_remote.testing import write_small_shards

snapshots: Any = pytest.importorskip("torch.utils.data.datapipes.utils.snapshot")


class Numbers(DataPipe[int]):
    """Ends after ten; remembers whether its generator was closed."""

    closed = False

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            self.closed = True


def yielded(pipe: Any) -> int:
    return int(pipe._number_of_samples_yielded)


def taken(items: Iterator[Any], number: int) -> list[Any]:
    return list(itertools.islice(items, number))


def test_the_count_is_that_of_the_latest_iterator() -> None:
    """Before, within, at the end and after a pass that was stopped; a pickle and a copy keep it."""
    pipe = Numbers()
    assert yielded(pipe) == 0
    first = iter(pipe)
    assert taken(first, 4) == [0, 1, 2, 3]
    again = [pickle.loads(pickle.dumps(pipe)), copy.deepcopy(pipe)]
    assert taken(first, 2) == [4, 5]
    assert [yielded(pipe), *map(yielded, again)] == [6, 4, 4]
    assert (list(pipe), yielded(pipe)) == (list(range(10)), 10)
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)
    assert yielded(pipe) == 10
    second = iter(pipe)
    assert (next(second), yielded(pipe)) == (0, 1)


def test_a_stopped_iterator_closes_its_pipe_at_once() -> None:
    """Not when memory is cleaned up."""
    pipe = Numbers()
    items: Any = iter(pipe)
    next(items)
    items.close()
    assert pipe.closed


@pytest.mark.parametrize("times", [1, 2])
def test_torch_restores_a_snapshot_of_a_chain(memory_folder: str, times: int) -> None:
    """It goes on after the last sample, again and again; the count includes what was skipped."""
    keys = [sample["__key__"] for sample in write_small_shards(memory_folder, num_shards=2, samples_per_shard=6)]
    chain: Any = IterableWrapper([memory_folder]).list_remote(pattern="*.tar").shard_tar_reader()
    assert len(taken(iter(chain), 4)) == 4
    for number in range(1, times + 1):
        chain = pickle.loads(pickle.dumps(chain))
        assert yielded(chain) == 3 + number
        snapshots._simple_graph_snapshot_restoration(chain, yielded(chain))
        items = iter(chain)
        assert next(items)["__key__"] == keys[3 + number]
        assert yielded(chain) == 4 + number
