"""Check before an epoch that all ranks split the same order."""

from __future__ import annotations

from typing import Any

from ..core.rank_exchange import exchanged, in_group
from ..core.world import World
from ..errors import RemoteDataError, StateError, UnequalListingError
from ._split_order import SplitOrder

_ITEMS = "items"
_ADVICE = {
    _ITEMS: "Wait until all files are written, or pass index= or a manifest, which fixes the list of items",
    "epoch": "Call set_epoch(epoch) in every rank, and iterate the loader in every rank or in none",
    "start": "Call load_state_dict(state) in every rank, with the same state",
}


class RankComparison:
    """Compare the orders of the ranks of a loader.

    Args:
        dataset: of the items; the digest of its names is computed once.
        divided: whether ranks split one order; otherwise nothing is compared.
    """

    def __init__(self, dataset: Any, *, divided: bool) -> None:
        self._dataset, self._divided = dataset, divided
        self._digest: str | None = None

    def require_alike(self, world: World, order: object, error: Exception | None = None) -> None:
        """Compare the orders within the process group of these ranks. It is a collective call.

        Args:
            world: of this rank.
            order: of the pass that starts.
            error: that prevents this rank from starting; the caller raises it.

        Raises:
            UnequalListingError: in all ranks, if they have different items.
            StateError: in all ranks, if their orders differ otherwise, or two of them have the same rank.
            RemoteDataError: in all other ranks, if one rank has an error.
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
        """Return the values that must be equal in all ranks, by their names in errors."""
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
        f"PrefetchingLoader: ranks {ranks} would not split the same order, so samples would be lost or repeated: "
        f"{differs}. {_ADVICE.get(name, f'Pass the same {name} in every rank')}."
    )
