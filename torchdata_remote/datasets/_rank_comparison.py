"""Ranks that divide one order compare it before they read."""

from __future__ import annotations

from typing import Any

from ..core.rank_exchange import exchanged, in_group
from ..core.world import World
from ..errors import RemoteDataError, StateError, UnequalListingError
from ._split_order import SplitOrder

_ITEMS = "items"
_ADVICE = {
    _ITEMS: "Wait until everything is written, or pass index= or a manifest, which names the items once and for all",
    "epoch": "Call set_epoch(epoch) in every rank, and iterate the loader in every rank or in none",
    "start": "Call load_state_dict(state) in every rank, with the same state",
}


class RankComparison:
    """Compares the orders of the ranks of a loader.

    Args:
        dataset: which has the items; its names are digested once.
        divided: whether ranks divide one order; otherwise nothing is compared.
    """

    def __init__(self, dataset: Any, *, divided: bool) -> None:
        self._dataset, self._divided = dataset, divided
        self._digest: str | None = None

    def require_alike(self, world: World, order: object, error: Exception | None = None) -> None:
        """Compare, where there is a process group of these ranks; all of them have to call this.

        Args:
            world: this rank's place.
            order: of the pass that begins.
            error: because of which this rank cannot begin, and which it raises.

        Raises:
            UnequalListingError: in all ranks, if they have different items.
            StateError: in all ranks, if their orders differ in something else, or two of them have one place.
            RemoteDataError: in the others, if one has an error; in that one, the error.
        """
        if not self._divided or not in_group(world):
            return
        value = self._of(order) if isinstance(order, SplitOrder) else None
        found = exchanged(world, "begin a pass of a PrefetchingLoader", value, error)
        first, expected = next(iter(found.items()))
        for rank, other in found.items():
            for name, here in expected.items():
                if other[name] != here:
                    raise _error(name, f"{first} and {rank}", here, other[name])

    def _of(self, order: SplitOrder) -> dict[str, Any]:
        """What has to be the same in all ranks, by its name in errors."""
        if self._digest is None:
            names = getattr(self._dataset, "names_digest", None)
            self._digest = "" if names is None else names()
        return {
            _ITEMS: (order.num_items, self._digest),
            "epoch": order.epoch,
            "start": (order.start.items_done, order.start.batches_done, order.moved),
            "seed": order.seed,
            "batch_size": order.batch_size,
            "drop_last": order.drop_last,
            "equalize": None if order.equalize is None else order.equalize.value,
        }


def _error(name: str, ranks: str, here: Any, other: Any) -> RemoteDataError:
    kind = UnequalListingError if name == _ITEMS else StateError
    if name == _ITEMS and here[0] == other[0]:
        differs = f"they have {here[0]:,} items each, with other names"
    elif name == _ITEMS:
        differs = f"they have {here[0]:,} and {other[0]:,} items"
    else:
        differs = f"their {name} is {here!r} and {other!r}"
    return kind(
        f"PrefetchingLoader: ranks {ranks} would not divide one order, so samples would be lost and others repeated: "
        f"{differs}. {_ADVICE.get(name, f'Pass the same {name} in every rank')}."
    )
