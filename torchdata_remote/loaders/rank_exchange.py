"""Exchange states between ranks, and compare what they read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ..core.rank_exchange import all_alike, exchanged, in_group, made_by_each
from ..core.world import World
from ..errors import StateError, UnequalListingError
from .state.fingerprints import difference
from .state.state_format import State, merge_states

_ADVICE = "Build the loader with the same options in each rank, and call set_epoch and load_state_dict in each."


def states_of_all(world: World, read: Callable[[], Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """Collect the states of all ranks, each once. Collective: every rank calls it.

    If all ranks have the same states, as from one checkpoint, only a digest is exchanged.

    Args:
        world: of this rank.
        read: returns the states that this rank has.
    """
    doing = "load a state"
    own: list[Mapping[str, Any]] = []
    error = None
    try:
        own = list(read())
    except StateError as caught:  # the other ranks are waiting
        error = caught
    of_each = [own]
    if not all_alike(world, doing, own, error):
        of_each = list(exchanged(world, f"{doing}, whole", own).values())
    states = {json.dumps(state, sort_keys=True): state for states in of_each for state in states}
    return list(states.values())


def merged_in_group(world: World, state_of_this_rank: Callable[[], State]) -> str:
    """Merge the states of all ranks into one, as JSON. Collective: every rank calls it, also if it has no state.

    Raises:
        StateError: in all ranks, if a rank has no state (that rank raises its own error); or if ranks are missing,
            because they cannot exchange.
    """
    merged = merge_states(made_by_each(world, "give its state", state_of_this_rank, of_rank=StateError).values())
    if len(merged["streams"]) < merged["num_streams"]:
        reason = "there is no process group" if not in_group(world) else "not all of them are in the group"
        raise StateError(
            f"The state of all ranks would have {len(merged['streams'])} of {merged['num_streams']} streams: this is "
            f"rank {world.rank} of {world.world_size}, and {reason}. Call init_process_group() before, pass "
            "World.from_mesh(...) or World.from_group(...) for ranks that are not all of the job's, or save the state "
            "of each rank and merge them by merge_states()."
        )
    return json.dumps(merged)


def require_same_pass(world: World, reads: Mapping[str, Any], listing: Any, error: Exception | None) -> None:
    """Compare what the ranks are about to read. Collective: every rank calls it, also with an error.

    If all read the same, only a digest is exchanged.

    Args:
        world: of this rank.
        reads: what has to be the same in all ranks: plain JSON by name.
        listing: of this rank; ``None`` if it has nothing to read.
        error: why this rank has no first batch.

    Raises:
        UnequalListingError: in all ranks, if they list different objects.
        StateError: in all ranks, if they would read different epochs, orders or streams.
        RemoteDataError: in the others, if a rank has an error; that rank raises the error itself.
    """
    doing = "take its first batch"
    if all_alike(world, doing, [reads, listing], error):
        return
    found = exchanged(world, f"{doing}, all of it compared", (dict(reads), listing))
    first, (expected, _) = next(iter(found.items()))
    for rank, (other, _) in found.items():
        for name, value in other.items():
            if value != expected.get(name):
                raise StateError(
                    f"Ranks {first} and {rank} differ in the {name}: {_shown(expected.get(name), value)}. "
                    f"Samples would be lost and others repeated. {_ADVICE}"
                )
    known = {rank: listing for rank, (_, listing) in found.items() if listing is not None}
    first = next(iter(known), 0)
    for rank, listing in known.items():
        differs = [difference(*pair) for pair in zip(known[first], listing, strict=True)]
        for what in filter(None, differs):
            raise UnequalListingError(
                f"Rank {first} and rank {rank} list different objects: {what}. Wait until everything is written, and "
                "list in the same order everywhere; or list a manifest (index.json), which names the objects once and "
                "for all."
            )


def compared_first(
    world: World, batches: Iterator[Any], reads: Callable[[], tuple[Mapping[str, Any], Any]]
) -> Iterator[Any]:
    """Yield the batches of a pass; before the first one, ranks compare what they read.

    Args:
        world: of this rank.
        batches: of this rank.
        reads: returns what has to be the same, and the listing; called when the first batch is read.
    """
    first, error = [], None
    own: tuple[Mapping[str, Any], Any] = {}, None
    try:
        first = list(islice(batches, 1))
        own = reads()
    except Exception as caught:  # noqa: BLE001  # the other ranks are waiting
        error = caught
    require_same_pass(world, *own, error)
    yield from first
    yield from batches


def _shown(first: Any, second: Any) -> str:
    """Format two values; of two lists, the first items that differ."""
    if isinstance(first, list) and isinstance(second, list):
        for pair in zip(first, second, strict=False):
            if pair[0] != pair[1]:
                first, second = pair
                break
    return f"{first!r:.200} and {second!r:.200}"
