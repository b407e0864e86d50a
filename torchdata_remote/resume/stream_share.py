"""What the streams of a process must have room for, and what those of all ranks must have in common."""

from __future__ import annotations

import warnings
from typing import Any

from ..errors import StateError
from ..iter_datapipe import IterDataPipe
from ..pipes import EqualizeRanks, ShuffleSamples
from ..state import all_pipes

_MANY_SAMPLES = 50_000


def require_equal_shares(pipe: IterDataPipe[Any], num_streams: int, world_size: int) -> None:
    """Compare what a chain promises with what its streams can keep.

    Raises:
        StateError: if it equalizes ranks, and some of them carry more streams than others.
    """
    if num_streams % world_size and any(isinstance(found, EqualizeRanks) for found in all_pipes(pipe)):
        raise StateError(
            f"{num_streams} streams over {world_size} ranks: some would have more than others, for all that "
            "equalize_ranks does. Use a number of ranks that divides the number of streams, or begin anew with "
            f"num_streams={-(-num_streams // world_size) * world_size}."
        )


def warn_of_memory(pipe: IterDataPipe[Any], num_here: int) -> None:
    """Warn if the shuffle buffers of this process's streams hold very many samples."""
    for found in all_pipes(pipe):
        if isinstance(found, ShuffleSamples) and num_here > 1 and num_here * found.buffer_size > _MANY_SAMPLES:
            warnings.warn(
                f"{num_here} streams in this process x buffer_size={found.buffer_size:,}: "
                f"{num_here * found.buffer_size:,} samples in memory. Divide buffer_size by the streams in a slot, "
                "use fewer streams, or more slots.",
                RuntimeWarning,
                stacklevel=4,
            )
