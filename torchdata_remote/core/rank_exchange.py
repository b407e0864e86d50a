"""Exchange values and errors between the ranks that split a dataset."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, TypeVar, cast

import torch.distributed

from ..errors import RemoteDataError, StateError
from .world import RankGroup, World

T = TypeVar("T")
_WARN_AFTER_S = 60.0


def in_group(world: World) -> bool:
    """Return whether a world has several ranks that can exchange: those of its group, or all of the process group."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return False
    if world.group is not None:
        return world.world_size > 1
    return 1 < distributed.get_world_size() == world.world_size


def exchanged(
    world: World,
    doing: str,
    value: Any,
    error: Exception | None = None,
    *,
    of_rank: Callable[[str], Exception] = RemoteDataError,
) -> dict[int, Any]:
    """Exchange a value, or an error instead. A collective: all ranks must call it.

    Args:
        world: of this rank.
        doing: the operation, for error messages: "load a state".
        value: any object that can be pickled.
        error: of this rank; raised after the exchange.
        of_rank: creates the exception that the other ranks raise then, from its message.

    Returns:
        dict: rank in the job -> value, in the order of ``World.rank``.

    Raises:
        StateError: in all ranks, if they call different operations, or if two of them have equal worlds.
        RemoteDataError: if the process group fails, for example because the process of a rank has ended.
    """
    failure = None if error is None else f"{type(error).__name__}: {error}"
    if not in_group(world):
        if error is not None:
            raise error
        return {world.rank: value}
    with _explained(doing):
        answers = _group_of(world).gather(world.rank, (doing, torch.distributed.get_rank(), value, failure))
    if error is not None:
        raise error
    calls = {number: did for _, (did, number, _, _) in answers}
    if len(set(calls.values())) > 1:
        shown = ", ".join(f"rank {number} is to {did}" for number, did in sorted(calls.items()))
        raise StateError(
            f"The ranks call different things: {shown}. Call state_dict() and load_state_dict() in every rank at the "
            "same step, not under `if rank == 0`, and list_now() in every rank."
        )
    if [rank for rank, _ in answers] != list(range(world.world_size)):
        shown = ", ".join(f"rank {number} reads as rank {rank}" for rank, (_, number, _, _) in answers)
        raise StateError(
            f"{shown} of {world.world_size}: samples would be lost and others repeated. Pass each process its own "
            "rank: World(rank=dist.get_rank(), world_size=dist.get_world_size()), or the same dp= in each rank, or "
            "leave world out."
        )
    for _, (_, number, _, why) in answers:
        if why is not None:
            raise of_rank(f"Rank {number} failed to {doing}: {why}")
    return {number: found for _, (_, number, found, _) in answers}


def made_by_each(
    world: World, doing: str, function: Callable[[], Any], *, of_rank: Callable[[str], Exception] = RemoteDataError
) -> dict[int, Any]:
    """Exchange the results of a function. A collective: all ranks must call it. An error of one rank is raised in all.

    Args:
        world: as for :func:`exchanged`.
        doing: as for :func:`exchanged`.
        function: called in each rank.
        of_rank: as for :func:`exchanged`.
    """
    result, error = None, None
    try:
        result = function()
    except Exception as caught:  # noqa: BLE001  # the other ranks are waiting
        error = caught
    return exchanged(world, doing, result, error, of_rank=of_rank)


def all_alike(world: World, doing: str, value: Any, error: Exception | None = None) -> bool:
    """Return whether all ranks have the same value, by its digest. A collective: all ranks must call it.

    Args:
        world: of this rank.
        doing: as for :func:`exchanged`.
        value: plain JSON.
        error: as for :func:`exchanged`.
    """
    return len(set(exchanged(world, doing, digest(value), error).values())) == 1


def digest(value: Any) -> str:
    """Return a digest of plain JSON."""
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def from_rank_0(world: World, doing: str, function: Callable[[], T]) -> T:
    """Call a function in rank 0, and return its result in each rank. A collective: all ranks must call it.

    Args:
        world: of this rank.
        doing: as for :func:`exchanged`.
        function: called in rank 0.

    Raises:
        RemoteDataError: in the other ranks, if rank 0 has an error. Rank 0 raises the error itself.
    """
    result, error = None, None
    if world.rank == 0:
        try:
            result = function()
        except Exception as caught:  # noqa: BLE001  # the other ranks are waiting
            error = caught
    exchanged(world, doing, None, error)
    if not in_group(world):
        return cast(T, result)
    with _explained(doing):
        return cast(T, _group_of(world).broadcast(world.rank, result))


def _group_of(world: World) -> RankGroup:
    group = world.group or World.from_group(None).group
    assert group is not None
    return group


@contextmanager
def _explained(doing: str) -> Iterator[None]:
    """Name the operation of an exchange that takes long or fails."""
    with warning_of_missing_ranks(doing):
        try:
            yield
        except (RuntimeError, TypeError, LookupError) as error:  # the latter where another exchange came between
            raise RemoteDataError(
                f"Rank {torch.distributed.get_rank()} was to {doing}, and the process group failed: another rank has "
                f"ended, or did not call this within the group's timeout. ({error})"
            ) from error


@contextmanager
def warning_of_missing_ranks(doing: str, after_s: float = _WARN_AFTER_S) -> Iterator[None]:
    """Warn if an exchange takes long: a program that saves in its main process only would wait without a word."""
    timer = threading.Timer(after_s, _warn, [doing, after_s])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _warn(doing: str, after_s: float) -> None:
    warnings.warn(
        f"This rank is to {doing}, and has waited {after_s:.0f} s for the other ranks. Each rank has to call this: "
        "iterate, state_dict() and accelerator.save_state() must not stand under `if is_main_process`.",
        RuntimeWarning,
        stacklevel=2,
    )
