"""Check numbers of streams: against slots, equal shares and memory."""

from __future__ import annotations

import math
import warnings
from typing import Any

from ..core.iter_datapipe import IterDataPipe
from ..core.world import World, counted, described
from ..errors import StateError
from ..pipes.chain import all_pipes, sources_of

_MOST_IN_A_SLOT = 4  # streams, each with a buffer of its own, where the slots did not divide those of a state
_MANY_SAMPLES = 50_000
_MANY_BYTES = 4 << 30


def number_of_streams(world: World, requested: int | None, expected_workers: int) -> int:
    """Compute the number of streams in the whole world.

    Args:
        world: of a slot.
        requested: by the user or a loaded state; ``None`` takes one for each slot.
        expected_workers: of each rank, if they have not started.

    Raises:
        StateError: if there are more slots than streams.
    """
    if requested is None:
        return world.world_size * max(world.num_workers, expected_workers)
    if requested < world.num_slots:
        raise StateError(
            f"{described(world, 'slot')} for {counted(requested, 'stream')}: use at most "
            f"{counted(requested, 'slot')}, or begin anew with num_streams={world.num_slots} or more."
        )
    return requested


def number_after_division(pipe: IterDataPipe[Any], saved: int, world: World, *, is_chosen: bool) -> int:
    """Compute the number of streams of a state after they are divided, so that each slot has one at least.

    Each slot gets equally many streams, if these are few, and the user has not chosen their number.

    Args:
        pipe: the chain.
        saved: number of streams in the state.
        world: of a slot.
        is_chosen: whether the user has chosen a number of streams.

    Raises:
        StateError: for ``equalize_ranks``: what is left of a stream cannot be divided into equal parts.
    """
    is_enough = saved >= world.num_slots
    if is_enough and (is_chosen or saved % world.num_slots == 0 or _is_equalized(pipe)):
        return saved
    if _is_equalized(pipe):
        raise StateError(
            f"{described(world, 'slot')} for {counted(saved, 'stream')} of a state with equalize_ranks(), of which "
            f"some would have more left than others. Resume with at most {counted(saved, 'slot')}, or begin the next "
            "epoch by set_epoch()."
        )
    divided = saved if is_enough else saved * -(-world.num_slots // saved)
    even = math.lcm(saved, world.num_slots)
    return even if even <= _MOST_IN_A_SLOT * world.num_slots else divided


def require_equal_shares(pipe: IterDataPipe[Any], num_streams: int, world_size: int) -> None:
    """Check that each rank reads the same number of streams, if the chain equalizes ranks.

    Raises:
        StateError: if some ranks read more streams than others.
    """
    if num_streams % world_size and _is_equalized(pipe):
        raise StateError(
            f"{num_streams} streams over {world_size} ranks: some would have more than others, for all that "
            "equalize_ranks does. Use a number of ranks that divides the number of streams, or begin anew with "
            f"num_streams={-(-num_streams // world_size) * world_size}."
        )


def _is_equalized(pipe: IterDataPipe[Any]) -> bool:
    return any(getattr(type(found), "gives_equal_counts", False) for found in all_pipes(pipe))


def end_together(pipe: Any) -> bool:
    """Whether all ranks have the same number of items by ``equalize_ranks``, so that they start each epoch together."""
    while not getattr(type(pipe), "gives_equal_counts", False):
        sources = list(sources_of(pipe))
        # Pipes that drop items have no length
        if len(sources) != 1 or not hasattr(type(pipe), "__len__"):
            return False
        pipe = sources[0]
    return True


def warn_of_memory(pipe: IterDataPipe[Any], num_here: int) -> None:
    """Warn if the shuffle buffers of this process's streams hold very many samples, or bytes where bounded."""
    for found in all_pipes(pipe):
        buffer_size, max_bytes = vars(found).get("buffer_size", 0), vars(found).get("max_buffer_bytes")
        if num_here > 1 and max_bytes is not None and num_here * max_bytes > _MANY_BYTES:
            warnings.warn(
                f"{num_here} streams in this process x {max_bytes:,} bytes of a shuffle buffer: up to "
                f"{num_here * max_bytes / (1 << 30):,.0f} GiB in memory. Divide the bytes (shuffle_buffer_bytes of "
                "stream_shards, max_buffer_bytes of shuffle_samples) by the streams in a slot, use fewer streams, or "
                "more slots.",
                RuntimeWarning,
                stacklevel=4,
            )
        elif num_here > 1 and max_bytes is None and num_here * buffer_size > _MANY_SAMPLES:
            warnings.warn(
                f"{num_here} streams in this process x buffer_size={buffer_size:,}: "
                f"{num_here * buffer_size:,} samples in memory. Divide buffer_size by the streams in a slot, "
                "use fewer streams, or more slots.",
                RuntimeWarning,
                stacklevel=4,
            )
