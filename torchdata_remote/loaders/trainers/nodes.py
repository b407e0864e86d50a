"""``torchdata.nodes``: use a chain as a node, and merge the states of all ranks' graphs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.arguments import explained
from ...core.iter_datapipe import IterDataPipe
from ...errors import StateError
from ..rank_exchange import require_same_pass
from ..resumable import Resumable, dataset_of
from ..state.state_format import merge_states, states_to_merge

_STATE = {"version", "chain", "listing", "epoch", "num_streams", "streams"}  # what a state of Resumable has
_STEPS = "steps_since_snapshot"  # of Prefetcher and ParallelMapper: items behind their source's last state


@explained
def to_node(pipe: IterDataPipe[Any] | Resumable, *, num_streams: int | None = None) -> Any:
    """Make a chain the source of a ``torchdata.nodes`` graph, with a state that any number of ranks can load.

    Needs torchdata 0.10 or later. Use it as the source of ``Batcher``, ``Mapper``, ``ParallelMapper``, ``Prefetcher``,
    ``MultiNodeWeightedSampler`` and ``Loader``. ``sharding_filter_rank`` splits the chain over the ranks; workers of
    ``ParallelMapper`` receive items of this rank, so the chain is not split over them.

    The node's state is that of :class:`Resumable`, plain JSON. With the same number of ranks, each loads its own state.
    For another number, merge the states of all ranks by :func:`merge_node_states`.

    With a process group, ranks compare chain, streams, epoch and position when the graph is first started, by
    ``iter(loader)`` or ``loader.state_dict()``: all ranks have to make this call.

    Each ``iter(loader)`` is a new epoch, from 0, counted over resumes. An iterator that is dropped before its first
    item does not count.

    ``Prefetcher`` and ``ParallelMapper`` take a state after each item. With many streams pass for example
    ``snapshot_frequency=100``; such a state is resumed by reading the items since it again, in the same world only.

    Args:
        pipe: the chain, with ``sharding_filter_rank`` after its URLs; or a ``Resumable``.
        num_streams: in all ranks together, as for :class:`Resumable`; ``None`` takes one for each rank.

    Returns:
        torchdata.nodes.BaseNode: the items of this rank.

    Raises:
        ImportError: if torchdata has no ``nodes``.
        StateError: if the chain cannot be resumed; names what to use instead.
    """
    resumable = dataset_of(pipe, num_streams)
    return _node_class()(resumable)


@functools.cache
def _node_class() -> Any:
    """Define the class on first use: its base class is missing in torchdata 0.9."""
    try:
        from torchdata.nodes import BaseNode
    except ImportError as error:
        raise ImportError(
            "to_node needs torchdata.nodes, which the installed torchdata does not have. Use 0.10 or later: "
            "pip install 'torchdata>=0.11'. (DataLoader2 needs torchdata 0.9 or earlier.)"
        ) from error

    class PipeNode(BaseNode):  # type: ignore[misc]  # torchdata has no types
        """The items of a chain.

        Args:
            resumable: the chain.
        """

        def __init__(self, resumable: Resumable) -> None:
            super().__init__()
            self.resumable = resumable
            self._epoch = resumable.next_epoch  # of the next pass, or of the started one
            self._started = False
            self._items: Iterator[Any] | None = None
            self._compared = False

        def reset(self, initial_state: Mapping[str, Any] | None = None) -> None:
            """Start the next epoch, or continue that of a state."""
            super().reset(initial_state)
            self._close()
            if not self._compared:
                self._compared = True  # later resets, in threads or of repeated sources, are not collective
                reads = {
                    "position where they start": "the beginning" if initial_state is None else "a state",
                    "chain": self.resumable.chain,
                    "number of streams": self.resumable.num_streams,
                    "epoch": self.resumable.next_epoch if initial_state is None else initial_state["epoch"],
                }
                require_same_pass(self.resumable.world(), reads, None, None)
            if initial_state is not None:
                self.resumable.load_state_dict(initial_state)
                self._epoch = initial_state["epoch"]
            else:
                self._epoch += self._started
                self.resumable.set_epoch(self._epoch)
            self._started = False

        def next(self) -> Any:
            """The next item of this rank."""
            if self._items is None:
                self._items = iter(self.resumable)
                self._started = True
            return next(self._items)

        def get_state(self) -> dict[str, Any]:
            """The state of this rank after the last item."""
            return self.resumable.state_dict()

        def _close(self) -> None:
            items, self._items = self._items, None
            if items is not None and hasattr(items, "close"):
                with contextlib.suppress(ValueError):  # a thread that is being stopped is inside it
                    items.close()

    return PipeNode


@explained
def merge_node_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of all ranks of a ``torchdata.nodes`` graph, such as of its ``Loader``.

    States of chains are merged as by :func:`merge_states`, at any depth of the graph. A source is exhausted if it is
    exhausted in all ranks. Other values, such as the random state of ``MultiNodeWeightedSampler``, are taken from the
    first state.

    Args:
        states: ``loader.state_dict()`` of each rank at the same step, in the order of the ranks, as by
            ``torch.distributed.all_gather_object``.

    Returns:
        A state that each rank of any world can load.

    Raises:
        StateError: if the states are of different graphs or chains; or if a ``Prefetcher`` or a
            ``ParallelMapper`` has no state after its last item.

    Example:
        >>> from torchdata_remote import Resumable
        >>> state = Resumable(IterableWrapper(["memory://d/0.tar"]).async_prefetch()).state_dict()
        >>> merged = merge_node_states([{"num_yielded": 0, "root": state}])
        >>> merged["num_yielded"], merged["root"]["streams"]
        (0, [[0, None]])
    """
    found = states_to_merge(states)
    for state in found:
        if not isinstance(state, Mapping) or not state:
            raise StateError(
                f"Expected the state of a graph in each rank, as a dict of loader.state_dict(), got {state!r:.200}."
            )
    merged: dict[str, Any] = _merged(found, "")
    return merged


def _merged(values: Sequence[Any], where: str) -> Any:
    first = values[0]
    if not isinstance(first, Mapping):
        if where.endswith(f"/{_STEPS}") and any(values):
            raise StateError(
                f"{where[1:]}: {max(values)} items were handed out since the source's last state, so ranks cannot be "
                "merged. Build Prefetcher and ParallelMapper with snapshot_frequency=1."
            )
        return all(values) if isinstance(first, bool) else first
    if any(not isinstance(value, Mapping) or set(value) != set(first) for value in values):
        raise StateError(f"{where[1:] or 'The states'}: ranks have different graphs. Build the same one in each rank.")
    if set(first) >= _STATE:
        return merge_states(values)
    return {key: _merged([value[key] for value in values], f"{where}/{key}") for key in first}
