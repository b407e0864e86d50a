"""State of a ``PrefetchingLoader``: epoch, number of batches yielded, and a loaded state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ..core.arguments.amounts import whole
from ..errors import StateError
from ._sampler_order import SamplerOrder
from ._split_order import SplitOrder, Start

T = TypeVar("T")

VERSION = 1

Order = SplitOrder | SamplerOrder


class Pass:
    """One pass: counts the batches that it yields.

    Args:
        epoch: from 0.
        order: of the batches.
        num_trained: batches that were trained on; ``None`` counts each that was yielded.
    """

    def __init__(self, epoch: int, order: Order, num_trained: int | None) -> None:
        self.epoch, self.order, self.num_trained = epoch, order, num_trained
        self.num_batches, self.ended = 0, False

    def counted(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches and count them."""
        for batch in batches:
            self.num_batches += 1
            yield batch
        self.ended = True

    def state(self) -> dict[str, Any] | None:
        """Return the position after the last batch that was trained on; ``None`` at the end of the epoch."""
        num_done = self.num_batches if self.num_trained is None else self.num_trained
        return None if self.ended and num_done == self.num_batches else self.order.state(num_done)


class LoaderState:
    """Position of a loader.

    Args:
        num_items: of the dataset.
        shuffle: whether each epoch has a new order.
        seed: argument of the loader.
        has_sampler: whether a sampler was passed.
    """

    def __init__(self, num_items: int, *, shuffle: bool, seed: int | None, has_sampler: bool) -> None:
        self._num_items, self._shuffle, self._has_sampler = num_items, shuffle, has_sampler
        self.seed = seed  # without an argument, that of the state that was loaded last
        self.next_epoch = 0
        self.changes = 0  # number of changes of the start of the next pass
        self._loaded: dict[str, Any] | None = None
        self.current: Pass | None = None  # the last pass; None once a state was loaded or an epoch set
        self._read_elsewhere = False  # whether another loader reads the epoch by a sampler of this one
        self.counts_trained = False  # whether trained() was called

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; a loaded state of another epoch is dropped."""
        epoch = whole("set_epoch: epoch", epoch, at_least=0)
        self.changes += epoch != self.next_epoch
        self.next_epoch, self.current, self._read_elsewhere = epoch, None, False
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None

    def read_elsewhere(self) -> None:
        """Record that another loader reads the epoch, unless a pass of this one is running."""
        self._read_elsewhere = self.current is None or self.current.ended

    def trained(self, num_batches: int) -> None:
        """Count the batches of the current pass that were trained on."""
        now, self.counts_trained = self.current, True
        num_yielded = 0 if now is None else now.num_batches
        if num_batches > num_yielded:
            raise ValueError(f"trained({num_batches}): this pass has yielded {num_yielded} batches.")
        if now is not None:
            now.num_trained = num_batches

    def start_pass(self, order: Order) -> Pass:
        """Start the pass of the next epoch, immediately before its first batch is yielded."""
        self.changes += 1
        self._read_elsewhere = False
        self.current = Pass(self.next_epoch, order, 0 if self.counts_trained else None)
        self.next_epoch, self._loaded = self.next_epoch + 1, None
        return self.current

    def start_of_split(self) -> Start:
        """Return the start of the next pass, if ranks split one order.

        Raises:
            StateError: if the loaded state has another order.
        """
        if not self._in_epoch():
            return Start()
        state = self._loaded_with("items_done", "PrefetchingLoader had a sampler, or shuffled without seed=")
        self._check("shuffle", self._shuffle)
        self._check("seed", self.seed if self._shuffle else None)
        return Start(state["items_done"], state["batches_done"], (state["moved"][0], state["moved"][1]))

    def start_of_sampler(self) -> tuple[int, str | None]:
        """Return the start of the next pass of a sampler: number of batches done, and their order."""
        if not self._in_epoch():
            return 0, None
        state = self._loaded_with("order", "PrefetchingLoader had no sampler, and shuffled by seed= if at all")
        return state["batches_done"], state["order"]

    def _in_epoch(self) -> bool:
        """Whether a state was loaded that is within an epoch."""
        if self._loaded is None or not self._loaded["batches_done"]:
            return False
        self._check("num_items", self._num_items)
        return True

    def _loaded_with(self, field: str, was: str) -> dict[str, Any]:
        assert self._loaded is not None
        if field not in self._loaded:
            raise StateError(
                f"The state was saved when {was}; here it is otherwise. Build the loader as it was, or skip the "
                f"rest of the epoch by set_epoch({self._loaded['epoch'] + 1})."
            )
        return self._loaded

    def _check(self, field: str, here: Any) -> None:
        assert self._loaded is not None
        if self._loaded.get(field, here) != here:
            raise StateError(
                f"PrefetchingLoader: the state has {field}={self._loaded[field]}, here it is {here}. Build dataset and "
                "loader as they were, or start again without the state."
            )

    def state_dict(self, start_of_order: dict[str, Any]) -> dict[str, Any]:
        """Return the state.

        Args:
            start_of_order: entries of the state if no batch of the epoch is done.

        Raises:
            StateError: if another loader reads the epoch.
        """
        if self._read_elsewhere:
            raise StateError(
                "PrefetchingLoader: another loader, which a trainer has built from its samplers, reads the epoch, "
                "so its position is unknown. Iterate the PrefetchingLoader itself: do not let the trainer prepare "
                "it, since it splits its order over the ranks."
            )
        common = {"version": VERSION, "epoch": self.next_epoch, "num_items": self._num_items}
        now = self.current
        if now is not None and (position := now.state()) is not None:
            return {**common, "epoch": now.epoch, **start_of_order, **position}
        return dict(self._loaded) if self._loaded is not None else {**common, **start_of_order, "batches_done": 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the next pass from a state.

        Raises:
            StateError: if it is not a state of this class.
        """
        if not isinstance(state, Mapping) or state.get("version") != VERSION or not _is_sound(state):
            raise StateError(
                f"Expected the state_dict() of a PrefetchingLoader, version {VERSION}; got {type(state).__name__}: "
                f"{state!r:.200}"
            )
        self.changes += 1
        self._read_elsewhere = False
        self._loaded, self.next_epoch, self.current = dict(state), state["epoch"], None
        if self.seed is None and self._shuffle and not self._has_sampler:
            self.seed = state.get("seed")


def _is_sound(state: Mapping[str, Any]) -> bool:
    moved = state.get("moved", [0, 0])
    numbers = [state.get("epoch"), state.get("num_items"), state.get("batches_done"), state.get("items_done", 0)]
    if not isinstance(moved, (list, tuple)) or len(moved) != 2 or not all(map(_is_number, [*numbers, *moved])):
        return False
    seed, order, num_items = state.get("seed"), state.get("order"), state["num_items"]
    return (
        max(*moved, state.get("items_done", 0)) <= num_items
        and (state["batches_done"] == 0 or ("items_done" in state) == ("moved" in state))
        and (seed is None or isinstance(seed, int))
        and (order is None or isinstance(order, str))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
