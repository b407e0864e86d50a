"""Exchange values and errors between the ranks that split a dataset."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, TypeVar

import torch.distributed

from ..errors import RemoteDataError, StateError
from .world import World

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
    answers = _gathered(world, doing, (doing, world.rank, _number(world), value, failure))
    if error is not None:
        raise error
    _require_same_call(answers)
    _require_own_ranks(answers, world.world_size)
    for _, _, number, _, why in answers:
        if why is not None:
            raise of_rank(f"Rank {number} failed to {doing}: {why}")
    return {number: found for _, _, number, found, _ in sorted(answers, key=lambda answer: answer[1])}


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
    box: list[Any] = [result]
    with _explained(world, doing):
        if world.group is not None:
            box = [world.group.broadcast(world.rank, result)]
        else:
            torch.distributed.broadcast_object_list(box, src=0)
    return box[0]  # type: ignore[no-any-return]


def _number(world: World) -> int:
    """Return this process's rank as logs of the job show it."""
    return torch.distributed.get_rank()


def _gathered(world: World, doing: str, own: Any) -> list[Any]:
    with _explained(world, doing):
        if world.group is not None:
            return world.group.gather(world.rank, own)
        found: list[Any] = [None] * world.world_size
        torch.distributed.all_gather_object(found, own)
        return found


def _require_same_call(answers: Sequence[Any]) -> None:
    if not all(isinstance(answer, tuple) and len(answer) == 5 for answer in answers):
        raise StateError(f"Another exchange of the process group came between: {answers!r:.200}")
    calls = {number: doing for doing, _, number, _, _ in answers}
    if len(set(calls.values())) > 1:
        shown = ", ".join(f"rank {number} is to {doing}" for number, doing in sorted(calls.items()))
        raise StateError(
            f"The ranks call different things: {shown}. Call state_dict() and load_state_dict() in every rank at the "
            "same step, not under `if rank == 0`, and list_now() in every rank."
        )


def _require_own_ranks(answers: Sequence[Any], world_size: int) -> None:
    ranks = [rank for _, rank, _, _, _ in answers]
    if sorted(ranks) != list(range(world_size)):
        shown = ", ".join(f"rank {number} reads as rank {rank}" for _, rank, number, _, _ in answers)
        raise StateError(
            f"{shown} of {world_size}: samples would be lost and others repeated. Pass each process its own rank: "
            "World(rank=dist.get_rank(), world_size=dist.get_world_size()), or leave world out."
        )


@contextmanager
def _explained(world: World, doing: str) -> Iterator[None]:
    """Name the operation of an exchange that takes long or fails."""
    with warning_of_missing_ranks(doing):
        try:
            yield
        except RuntimeError as error:
            raise RemoteDataError(
                f"Rank {_number(world)} was to {doing}, and the process group failed: another rank has ended, or did "
                f"not call this within the group's timeout. ({error})"
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
