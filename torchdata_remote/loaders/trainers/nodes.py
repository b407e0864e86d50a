"""``torchdata.nodes``: use a chain as a node, and merge the states of all ranks' graphs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...core.arguments.calls import explained
from ...core.arguments.check import marked
from ...core.iter_datapipe import IterDataPipe
from ...core.rank_exchange import exchanged, in_group
from ...errors import StateError
from ..resumable import Resumable
from ..state.state_format import ENDED, merge_states, states_to_merge

_STATE = {"version", "chain", "listing", "epoch", "num_streams", "streams"}  # what a state of Resumable has
_HANDED_OUT = "num_yielded"  # of Loader: items of the graph's root
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
    if isinstance(pipe, Resumable) and num_streams is not None:
        raise marked(
            ValueError("num_streams belongs to the Resumable that was passed: Resumable(pipe, num_streams=2).")
        )
    resumable = pipe if isinstance(pipe, Resumable) else Resumable(pipe, num_streams=num_streams)
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
                _require_alike(self.resumable, initial_state)
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


def _require_alike(resumable: Resumable, state: Mapping[str, Any] | None) -> None:
    """Compare what the ranks are about to read. Collective: every rank calls it.

    Raises:
        StateError: in all ranks, if they would read other chains, epochs or streams, or if only some have a state.
    """
    world = resumable.world()
    if not in_group(world):
        return
    own: dict[str, Any] = {
        "position where they start": "the beginning" if state is None else "a state",
        "chain": resumable.chain,
        "number of streams": resumable.num_streams,
        "epoch": resumable.next_epoch if state is None else state["epoch"],
    }
    found = exchanged(world, "start a torchdata.nodes graph", own)
    first, expected = next(iter(found.items()))
    for rank, other in found.items():
        for name, here in expected.items():
            if other[name] != here:
                raise StateError(
                    f"to_node: ranks {first} and {rank} differ in the {name}: {here!r:.300} and {other[name]!r:.300}. "
                    "Samples would be lost and others repeated: build the same graph in each rank, and load the "
                    "state in every rank or in none."
                )


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
        StateError: if the states are of different graphs, steps or chains; or if a ``Prefetcher`` or a
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
    _require_same_step(found)
    merged: dict[str, Any] = _merged(found, "")
    return merged


def _require_same_step(states: Sequence[Any]) -> None:
    """Compare how many items the ranks' loaders have handed out: fewer only if a rank's chain has ended.

    Raises:
        StateError: with the numbers.
    """
    steps = [state.get(_HANDED_OUT) if isinstance(state, Mapping) else None for state in states]
    most = max((step for step in steps if isinstance(step, int)), default=0)
    if any(step not in (None, most) and not _has_ended(state) for step, state in zip(steps, states, strict=True)):
        raise StateError(
            f"The states are of different steps: their loaders have handed out {steps} items. Merge the states that "
            "all ranks have saved at the same step."
        )


def _has_ended(state: Any) -> bool:
    """Whether a chain in the graph has ended."""
    if not isinstance(state, Mapping):
        return False
    if set(state) >= _STATE:
        return all(row[1] == ENDED for row in state["streams"])
    return any(map(_has_ended, state.values()))


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
