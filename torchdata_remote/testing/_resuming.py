"""Whether a chain goes on rightly, wherever it stops."""

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
    """Stop a chain after each of its items, go on with another copy of it, and compare with the run that did not stop.

    Each state goes through JSON. Compared are the rest of the first epoch, item by item, and the whole second one.

    Args:
        make_pipe: builds the chain anew.
        num_streams: that it is run as; more than one need ``sharding_filter_rank`` in it.
        same: whether two items are equal; tensors and images need a function of their own.

    Raises:
        AssertionError: at the first difference; tells where it stopped.

    Example:
        >>> from torchdata_remote.testing import write_small_shards
        >>> _ = write_small_shards("memory://small/", num_shards=3, samples_per_shard=2)
        >>> urls = IterableWrapper(["memory://small/"]).list_remote(pattern="*.tar")
        >>> assert_resumes_everywhere(lambda: urls.sharding_filter_rank().shard_tar_reader(), num_streams=2)
    """

    def resumable() -> Resumable:
        return Resumable(make_pipe(), num_streams=num_streams)

    whole = resumable()
    epochs = [list(whole), list(whole)]
    assert epochs[0], "The chain hands out nothing, so that nothing can be compared."
    for stop in range(len(epochs[0]) + 1):
        stopped, going_on = resumable(), resumable()
        begun = iter(stopped)
        head = list(islice(begun, stop))
        state = json.loads(json.dumps(stopped.state_dict()))
        going_on.load_state_dict(state)
        for epoch, got in enumerate([[*head, *going_on], list(going_on)]):
            _compare(got, epochs[epoch], same, f"stopped after {stop} items, epoch {epoch}, with the state {state}")


def _compare(got: list[Any], expected: list[Any], same: Callable[[Any, Any], bool], where: str) -> None:
    for index, (one, other) in enumerate(zip(got, expected, strict=False)):
        assert same(one, other), f"{where}: item {index} is {one!r:.200}, expected {other!r:.200}"
    assert len(got) == len(expected), f"{where}: {len(got)} items, expected {len(expected)}"
