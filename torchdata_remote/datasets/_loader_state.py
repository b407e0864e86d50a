"""What a ``PrefetchingLoader`` counts: epochs, batches that were handed out, and the state that was loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..core.frameworks.untrained_batches import num_ahead
from ..errors import StateError
from ._sampler_order import SamplerOrder
from ._split_order import SplitOrder, Start

T = TypeVar("T")

VERSION = 1

Order = SplitOrder | SamplerOrder


class Pass:
    """One pass, which counts the batches that it hands out.

    Args:
        epoch: from 0.
        order: of its batches.
        wrappers: Ray's prepared loaders, which read batches ahead.
    """

    def __init__(self, epoch: int, order: Order, wrappers: Sequence[Any] = ()) -> None:
        self.epoch, self.order, self._wrappers = epoch, order, wrappers
        self.num_batches, self.ended = 0, False

    def counted(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches."""
        for batch in batches:
            self.num_batches += 1
            yield batch
        self.ended = True

    def state(self, num_not_done: int) -> dict[str, Any] | None:
        """Where it is after the last batch that was trained on; ``None`` if nothing is left of the epoch.

        Args:
            num_not_done: batches that others than Ray's loaders have taken, and not trained on.
        """
        ahead = num_not_done + num_ahead(self._wrappers)
        return None if self.ended and not ahead else self.order.state(max(0, self.num_batches - ahead))


class LoaderState:
    """Where a loader is.

    Args:
        num_items: of the dataset.
        shuffle: whether each epoch has a new order.
        seed: of that order, as it was passed.
        has_sampler: whether the order is that of a sampler which was passed.
    """

    def __init__(self, num_items: int, *, shuffle: bool, seed: int | None, has_sampler: bool) -> None:
        self._num_items, self._shuffle, self._has_sampler = num_items, shuffle, has_sampler
        self.seed = seed  # or, if none was passed, that of the state that was loaded last
        self.next_epoch = 0
        self.changes = 0  # of where the next pass begins
        self._loaded: dict[str, Any] | None = None
        self.current: Pass | None = None  # the pass that began last, unless something was loaded or set since
        self._read_elsewhere = False  # another loader reads the epoch, by a sampler of this one

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch; a loaded state of another epoch is dropped."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self.changes += epoch != self.next_epoch
        self.next_epoch, self.current, self._read_elsewhere = epoch, None, False
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None

    def read_elsewhere(self) -> None:
        """Another loader reads the epoch, unless a pass of this one does."""
        self._read_elsewhere = self.current is None or self.current.ended

    def begin(self, order: Order, wrappers: Sequence[Any] = ()) -> Pass:
        """Begin the pass of the next epoch: its first batch is about to be handed out."""
        self.changes += 1
        self._read_elsewhere = False
        self.current = Pass(self.next_epoch, order, wrappers)
        self.next_epoch, self._loaded = self.next_epoch + 1, None
        return self.current

    def start_of_split(self) -> Start:
        """Where the next pass begins, if ranks divide one order.

        Raises:
            StateError: if the loaded state is of another order.
        """
        if not self._in_epoch():
            return Start()
        state = self._loaded_with("items_done", "PrefetchingLoader had a sampler, or shuffled without seed=")
        self._check("shuffle", self._shuffle)
        self._check("seed", self.seed if self._shuffle else None)
        return Start(state["items_done"], state["batches_done"], (state["moved"][0], state["moved"][1]))

    def start_of_sampler(self) -> tuple[int, str | None]:
        """Where the next pass begins, if a sampler gives the order: batches that are done, and their order."""
        if not self._in_epoch():
            return 0, None
        state = self._loaded_with("order", "PrefetchingLoader had no sampler, and shuffled by seed= if at all")
        return state["batches_done"], state["order"]

    def _in_epoch(self) -> bool:
        """Whether a state was loaded that is not of the beginning of an epoch."""
        if self._loaded is None or not self._loaded["batches_done"]:
            return False
        self._check("num_items", self._num_items)
        return True

    def _loaded_with(self, field: str, was: str) -> dict[str, Any]:
        assert self._loaded is not None
        if field not in self._loaded:
            raise StateError(
                f"The state was saved where {was}; here it is otherwise. Build the loader as it was, or leave out the "
                f"rest of the epoch by set_epoch({self._loaded['epoch'] + 1})."
            )
        return self._loaded

    def _check(self, field: str, here: Any) -> None:
        assert self._loaded is not None
        if self._loaded.get(field, here) != here:
            raise StateError(
                f"PrefetchingLoader: the state has {field}={self._loaded[field]}, here it is {here}. Build dataset and "
                "loader as they were, or begin anew."
            )

    def state_dict(self, order_begun: dict[str, Any], num_not_done: int = 0) -> dict[str, Any]:
        """The state.

        Args:
            order_begun: what is to be told of the order where no batch of the epoch is done.
            num_not_done: batches that were handed out, and count as if they had not been.

        Raises:
            StateError: if another loader reads the epoch.
        """
        if self._read_elsewhere:
            raise StateError(
                "PrefetchingLoader: another loader, which a trainer has built of this one's samplers, reads the epoch, "
                "so its place is not known here. Iterate the PrefetchingLoader itself: do not let the trainer prepare "
                "it, since it divides its order over the ranks."
            )
        common = {"version": VERSION, "epoch": self.next_epoch, "num_items": self._num_items}
        now = self.current
        if now is not None and (place := now.state(num_not_done)) is not None:
            return {**common, "epoch": now.epoch, **order_begun, **place}
        return dict(self._loaded) if self._loaded is not None else {**common, **order_begun, "batches_done": 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass begin there.

        Raises:
            StateError: if it is not such a state.
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
