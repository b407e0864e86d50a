"""Check that a chain resumes exactly, wherever it is stopped."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from itertools import islice
from typing import Any

from ..core import arguments as check
from ..core.arguments import explained
from ..core.iter_datapipe import IterDataPipe
from ..loaders import Resumable

# Items that a resumed copy reads: what it holds besides its state shows in the items after the first
_STEPS = 3


@explained
def assert_resumes_everywhere(
    make_pipe: Callable[[], IterDataPipe[Any]],
    *,
    num_streams: int = 1,
    same: Callable[[Any, Any], bool] = operator.eq,
) -> None:
    """Stop a chain after each of its items, resume a copy of it, and compare with an uninterrupted run.

    The state after each item of one pass is converted to JSON and loaded into a new copy. The copy's next items and the
    states after them are compared with those of the pass. Where items and states are equal, the rest is proven by the
    next stop; where a state differs, it is loaded into another copy, and both read the rest of the epoch. After the
    first item, in the middle, before the last item and after it, a pass ends, and the rest of the epoch and the whole
    second one are compared. The time is therefore linear in the number of items.

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
    states = [_state(uninterrupted)]
    items = []
    for item in uninterrupted:
        items.append(item)
        states.append(_state(uninterrupted))
    assert items, "The chain yields nothing, so nothing can be compared."
    second_epoch = list(uninterrupted)
    for stop, state in enumerate(states):
        resumed, where = resumable(), f"stopped after {stop} items, with the state {state}"
        resumed.load_state_dict(state)
        rest = iter(resumed)
        for index in range(stop, min(stop + _STEPS, len(items))):
            _compare(list(islice(rest, 1)), items[index : index + 1], same, where)
            after = _state(resumed)
            if after != states[index + 1]:
                again = resumable()
                again.load_state_dict(after)
                for reader in (rest, again):
                    _compare(list(reader), items[index + 1 :], same, f"{where}, and again with the state {after}")
                break
    for stop in sorted({0, 1, len(items) // 2, len(items) - 1, len(items)}):
        stopped, resumed = resumable(), resumable()
        head = list(islice(stopped, stop))
        state = _state(stopped)
        resumed.load_state_dict(state)
        for epoch, expected in enumerate([items, second_epoch]):
            where = f"a pass ended after {stop} items, epoch {epoch}, with the state {state}"
            _compare([*([] if epoch else head), *resumed], expected, same, where)


def _state(data: Resumable) -> Any:
    """Return the state after the last item, through JSON."""
    return json.loads(json.dumps(data.state_dict()))


def _compare(got: list[Any], expected: list[Any], same: Callable[[Any, Any], bool], where: str) -> None:
    for index, (one, other) in enumerate(zip(got, expected, strict=False)):
        assert same(one, other), f"{where}: item {index} is {one!r:.200}, expected {other!r:.200}"
    assert len(got) == len(expected), f"{where}: {len(got)} items, expected {len(expected)}"
