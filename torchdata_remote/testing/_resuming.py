"""Check that a chain resumes exactly, wherever it is stopped."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from itertools import islice
from typing import Any

from ..core.iter_datapipe import IterDataPipe
from ..loaders import Resumable


def assert_resumes_everywhere(
    make_pipe: Callable[[], IterDataPipe[Any]],
    *,
    num_streams: int = 1,
    same: Callable[[Any, Any], bool] = operator.eq,
) -> None:
    """Stop a chain after each of its items, resume a copy of it, and compare with an uninterrupted run.

    Each state is converted to JSON and back. The rest of the first epoch and the whole second one are compared.

    Args:
        make_pipe: builds the chain.
        num_streams: of the chain; more than one need ``sharding_filter_rank`` in it.
        same: whether two items are equal; tensors and images need a function of their own.

    Raises:
        AssertionError: at the first difference, with the item at which the chain was stopped.

    Example:
        >>> from torchdata_remote.testing import write_small_shards
        >>> _ = write_small_shards("memory://small/", num_shards=3, samples_per_shard=2)
        >>> urls = IterableWrapper(["memory://small/"]).list_remote(pattern="*.tar")
        >>> assert_resumes_everywhere(lambda: urls.sharding_filter_rank().shard_tar_reader(), num_streams=2)
    """

    def resumable() -> Resumable:
        return Resumable(make_pipe(), num_streams=num_streams)

    uninterrupted = resumable()
    epochs = [list(uninterrupted), list(uninterrupted)]
    assert epochs[0], "The chain yields nothing, so nothing can be compared."
    for stop in range(len(epochs[0]) + 1):
        stopped, resumed = resumable(), resumable()
        iterator = iter(stopped)
        head = list(islice(iterator, stop))
        state = json.loads(json.dumps(stopped.state_dict()))
        resumed.load_state_dict(state)
        for epoch, got in enumerate([[*head, *resumed], list(resumed)]):
            _compare(got, epochs[epoch], same, f"stopped after {stop} items, epoch {epoch}, with the state {state}")


def _compare(got: list[Any], expected: list[Any], same: Callable[[Any, Any], bool], where: str) -> None:
    for index, (one, other) in enumerate(zip(got, expected, strict=False)):
        assert same(one, other), f"{where}: item {index} is {one!r:.200}, expected {other!r:.200}"
    assert len(got) == len(expected), f"{where}: {len(got)} items, expected {len(expected)}"
