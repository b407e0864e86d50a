"""Which reader of a split chain this is, and its share of a number of items."""

from __future__ import annotations

from typing import Any

from ...core.arguments import check
from ...core.iter_datapipe import IterDataPipe
from ...core.world import World, described
from ...errors import EmptyShareError
from .chain import sources_of, upstream


def place_among_readers(pipe: IterDataPipe[Any]) -> World:
    """Return the place of this process, or stream, among the readers that share the items of a chain.

    A chain that is not split, or not split yet, has one reader: each process has all of its items.
    """
    for found in upstream(pipe):
        if hasattr(type(found), "current_world") and getattr(found, "split", True):
            world: World = found.current_world()
            return world
        if isinstance(num_shares := _own(found, "num_of_instances"), int):  # torch's sharding_filter
            return World(_own(found, "instance_id"), num_shares)
    return World()


def share_of(number: int, world: World) -> int:
    """Return how many of so many items a slot has. The shares of all slots sum up to the number.

    >>> [share_of(10, World(rank, 4)) for rank in range(4)]
    [2, 3, 2, 3]
    """
    return number * (world.slot + 1) // world.num_slots - number * world.slot // world.num_slots


def require_shares(number: int, world: World, *, of: str) -> None:
    """Check that no slot is left without an item.

    Raises:
        EmptyShareError: in all slots, so that none of them waits for the others.
    """
    if number < world.num_slots:
        raise EmptyShareError(
            f"{of}({number}) is divided among all readers, so some of {described(world, 'reader')} would have none. "
            f"Take {world.num_slots} or more, or call {of} before sharding_filter_rank()."
        )


def is_endless(pipe: IterDataPipe[Any]) -> bool:
    """Whether a pass over the chain has no end: below ``repeat_epochs()``."""
    own: bool | None = _own(pipe, "is_endless")
    if own is not None:
        return own
    sources = [source for _, _, source in sources_of(pipe)]
    return bool(sources) and all(map(is_endless, sources))


def require_end(pipe: IterDataPipe[Any]) -> None:
    """Check that a pass over URLs that are all listed before the first one is used has an end.

    Raises:
        ValueError: below ``repeat_epochs()`` without a number, which would be listed until memory is used up.
    """
    if is_endless(pipe):
        raise check.marked(
            ValueError("all URLs are listed here, and repeat_epochs() above has no end: put it after the reader.")
        )


def _own(pipe: Any, name: str) -> Any:
    """Return an attribute of a pipe, not a functional name; ``None`` if it has none. A source may be a list."""
    return getattr(pipe, "__dict__", {}).get(name)
