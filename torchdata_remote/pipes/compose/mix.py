"""``mix``: several chains in one, by weights that are constant or change with the number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, overload

from ...core.arguments.calls import explained
from ...core.iter_datapipe import IterDataPipe
from .mix_arguments import check_pipes, pipes_and_points, stop_of
from .mixed import Mixed, Stop

T = TypeVar("T")
_Stop = Stop | Literal["first_exhausted", "all_exhausted"] | int


@overload
def mix(
    sources: Mapping[str, tuple[IterDataPipe[T], float]],
    *,
    schedule: None = None,
    seed: int = 0,
    stop: _Stop = Stop.FIRST_EXHAUSTED,
) -> Mixed[T]: ...


@overload
def mix(
    sources: Mapping[str, IterDataPipe[T]],
    *,
    schedule: Mapping[int, Mapping[str, float]],
    seed: int = 0,
    stop: _Stop = Stop.FIRST_EXHAUSTED,
) -> Mixed[T]: ...


@explained
def mix(
    sources: Mapping[str, Any],
    *,
    schedule: Mapping[int, Mapping[str, float]] | None = None,
    seed: int = 0,
    stop: Stop | Literal["first_exhausted", "all_exhausted"] | int = Stop.FIRST_EXHAUSTED,
) -> Mixed[Any]:
    """Mix several chains: each item is taken from one of them, drawn by weight.

    The draws are determined by seed, epoch and slot. Each source is shuffled and split separately, so each needs a
    ``sharding_filter_rank``, and an ``async_prefetch`` with a ``max_buffer_bytes`` of its own. Pipes after the mixture
    (``decode_sample``, ``batch``) apply to all sources.

    A state that was saved with other weights, or another schedule, can be loaded: the current ones hold from there on.

    Args:
        sources: name -> (pipe, weight). Weights are positive and relative to each other. With a ``schedule``:
            name -> pipe.
        schedule: number of samples -> name -> weight, for weights that change. Weights hold from that number of samples
            on, and the first number is 0. A source with the weight 0, or left out, is not drawn. Counted are the
            samples of all ranks together that the mixture hands out: since the start of the training, all epochs
            together, if ``stop`` is a number; otherwise since the start of the epoch.
        seed: any int.
        stop: when an epoch ends: ``Stop.FIRST_EXHAUSTED``, ``Stop.ALL_EXHAUSTED``, or a number of samples of all ranks
            together, for which exhausted sources are restarted, in another order.

    Returns:
        A pipe that yields the items of the sources.

    Raises:
        ValueError: without sources, for a weight that is not positive, for a schedule without 0, with an unknown name
            or a number at which all weights are 0, or if the data-parallel groups differ.

    Example:
        >>> cats, dogs = IterableWrapper(["cat"] * 2), IterableWrapper(["dog"] * 6)
        >>> list(mix({"cats": (cats, 1), "dogs": (dogs, 3)}, seed=1))
        ['dog', 'dog', 'dog', 'cat', 'dog', 'dog', 'cat', 'dog']
        >>> list(mix({"cats": cats, "dogs": dogs}, schedule={0: {"cats": 1}, 2: {"dogs": 1}}, stop=5))
        ['cat', 'cat', 'dog', 'dog', 'dog']
    """
    pipes, points = pipes_and_points(sources, schedule)
    stop = stop_of(stop)
    check_pipes(pipes, points, stop)
    return Mixed(pipes, points, seed=seed, stop=stop)
