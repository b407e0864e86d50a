"""What ranks tell each other: their states, and what they list."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, TypeVar

import torch.distributed

from ..errors import RemoteDataError, StateError, UnequalListingError
from ..world import World
from .fingerprints import difference
from .states import State, merge_states

T = TypeVar("T")


def in_group(world: World) -> bool:
    """Whether a world has several ranks that can exchange: those of its group, or all of torch's process group."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    if world.group is not None:
        return world.world_size > 1
    return 1 < distributed.get_world_size() == world.world_size


def gathered(world: World, mine: Any) -> list[Any]:
    """What each rank brings, in their order; all of them have to call this."""
    if not in_group(world):
        return [mine]
    if world.group is not None:
        return world.group.gather(world.rank, mine)
    everybodys: list[Any] = [None] * world.world_size
    torch.distributed.all_gather_object(everybodys, mine)
    return everybodys


def _number(world: World) -> int:
    """This process's rank as logs of the job show it."""
    return world.rank if world.group is None or not in_group(world) else torch.distributed.get_rank()


def from_rank_0(world: World, make: Callable[[], T]) -> T:
    """What rank 0 makes, in each rank of a process group; all of them have to call this.

    Raises:
        RemoteDataError: in the others, if rank 0 has an error; in rank 0, the error.
    """
    told: list[Any] = [None, None]
    error = None
    if world.rank == 0:
        try:
            told = [make(), None]
        except Exception as caught:  # noqa: BLE001  # the other ranks are waiting
            error = caught
            told = [None, f"{type(error).__name__}: {error}"]
    if world.group is None:
        torch.distributed.broadcast_object_list(told, src=0)
    else:
        told = world.group.broadcast(world.rank, told)
    if error is not None:
        raise error
    made, failure = told
    if failure is not None:
        raise RemoteDataError(f"Rank 0, which lists for all ranks, failed: {failure}")
    return made  # type: ignore[no-any-return]


def states_of_all(world: World, given: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The states that the ranks have, each once; all of them have to call this.

    Where all have the same, as from one checkpoint, only a digest of it is exchanged.
    """
    everybodys = [given] if len(set(gathered(world, _digest(given)))) == 1 else gathered(world, given)
    states = {json.dumps(state, sort_keys=True): state for states in everybodys for state in states}
    return list(states.values())


def _digest(value: Any) -> bytes:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()


def merged_in_group(world: World, state_of_this_rank: Callable[[], State]) -> str:
    """One state of all ranks, as JSON; all of them have to call this, also where one of them has no state.

    Raises:
        StateError: in each rank, if one of them has no state; in that one, its own error.
    """
    mine, error = None, None
    try:
        mine = state_of_this_rank()
    except Exception as caught:  # noqa: BLE001  # the other ranks are waiting
        error = caught
    with warning_of_missing_ranks():
        told = _exchanged(world, mine, error, lambda rank, why: StateError(f"Rank {rank} has no state: {why}"))
    return json.dumps(merge_states(told.values()))


def _exchanged(
    world: World, mine: Any, error: Exception | None, of_rank: Callable[[int, str], Exception]
) -> dict[int, Any]:
    """Exchange a value or an error; all ranks have to call this.

    Args:
        world: this rank's place.
        mine: this rank's value.
        error: raised in this rank, after the exchange.
        of_rank: makes the exception that the others raise, of the number and the error of the rank that has failed.

    Returns:
        The ranks' values, by their number in the job.
    """
    told = gathered(world, (_number(world), mine, None if error is None else f"{type(error).__name__}: {error}"))
    if error is not None:
        raise error
    for rank, _, failure in told:
        if failure is not None:
            raise of_rank(rank, failure)
    return {rank: value for rank, value, _ in told}


@contextmanager
def warning_of_missing_ranks(after_s: float = 60) -> Iterator[None]:
    """Warn if an exchange takes long: a program that saves in its main process only would wait without a word."""
    timer = threading.Timer(after_s, _warn, [after_s])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _warn(after_s: float) -> None:
    warnings.warn(
        f"The state of all ranks waits for the other ranks since {after_s:.0f} s. Save in every process: "
        "accelerator.save_state() and loader.state_dict() must not stand under `if is_main_process`.",
        RuntimeWarning,
        stacklevel=2,
    )


def require_same_listing(world: World, listing: Any, error: Exception | None) -> None:
    """Compare what the ranks list; all of them have to call this, also with an error.

    Where all list the same, only a digest of it is exchanged.

    Args:
        world: this rank's place.
        listing: of this rank; ``None`` if it has nothing to read.
        error: because of which this rank has no first batch.

    Raises:
        UnequalListingError: in all ranks, if they list different objects.
        RemoteDataError: in the others, if one has an error; in that one, the error.
    """
    digests = gathered(world, "error" if error is not None else None if listing is None else _digest(listing))
    if "error" not in digests and len(set(digests) - {None}) <= 1:
        return
    told = _exchanged(
        world, listing, error, lambda rank, why: RemoteDataError(f"Rank {rank} failed before its first batch: {why}")
    )
    known = {rank: listing for rank, listing in told.items() if listing is not None}
    first = next(iter(known), 0)
    for rank, other in known.items():
        differs = [difference(*pair) for pair in zip(known[first], other, strict=True)]
        for what in filter(None, differs):
            raise UnequalListingError(
                f"Rank {first} and rank {rank} list different objects: {what}. Wait until everything is written, and "
                "list in the same order everywhere; or list a manifest (index.json), which names the objects once and "
                "for all."
            )
