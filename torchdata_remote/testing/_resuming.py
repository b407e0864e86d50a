"""Check that a chain resumes exactly, wherever it is stopped."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from itertools import islice
from typing import Any

from ..core.arguments import check
from ..core.arguments.calls import explained
from ..core.iter_datapipe import IterDataPipe
from ..loaders import Resumable


@explained
def assert_resumes_everywhere(
    make_pipe: Callable[[], IterDataPipe[Any]],
    *,
    num_streams: int = 1,
    same: Callable[[Any, Any], bool] = operator.eq,
) -> None:
    """Stop a chain after each of its items, resume a copy of it, and compare with an uninterrupted run.

    Each state is converted to JSON and back. The rest of the first epoch and the whole second one are compared. Another
    copy is stopped again after one item, when it has not yet read from all shards that are open, and resumed.

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
    check.function("make_pipe", make_pipe, example="lambda: tdr.stream_shards(url)")

    def resumable() -> Resumable:
        return Resumable(make_pipe(), num_streams=num_streams)

    uninterrupted = resumable()
    epochs = [list(uninterrupted), list(uninterrupted)]
    assert epochs[0], "The chain yields nothing, so nothing can be compared."
    for stop in range(len(epochs[0]) + 1):
        head, state = _stopped(resumable(), stop)
        resumed = resumable()
        resumed.load_state_dict(state)
        for epoch, got in enumerate([[*head, *resumed], list(resumed)]):
            _compare(got, epochs[epoch], same, f"stopped after {stop} items, epoch {epoch}, with the state {state}")
        again, twice = resumable(), resumable()
        again.load_state_dict(state)
        one, state = _stopped(again, 1)
        twice.load_state_dict(state)
        where = f"stopped after {stop} items, and again after {len(one)}, with the state {state}"
        _compare([*head, *one, *(twice if one else ())], epochs[0], same, where)


def _stopped(data: Resumable, num_items: int) -> tuple[list[Any], Any]:
    """Return the next items, and the state after them, through JSON."""
    items = list(islice(data, num_items))
    return items, json.loads(json.dumps(data.state_dict()))


def _compare(got: list[Any], expected: list[Any], same: Callable[[Any, Any], bool], where: str) -> None:
    for index, (one, other) in enumerate(zip(got, expected, strict=False)):
        assert same(one, other), f"{where}: item {index} is {one!r:.200}, expected {other!r:.200}"
    assert len(got) == len(expected), f"{where}: {len(got)} items, expected {len(expected)}"
