"""Correct a Lightning training loop that resumes from a checkpoint, or warn where that is impossible."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import inf
from typing import Any

from .call_stack import callers
from .lightning_loops import COMBINED_LOADERS, current_fit_loop, epoch_ends, resumes_in_mid_epoch


def mark_cycled(loader: Any) -> None:
    """Mark this loader as read to its end once in this epoch, which Lightning's checkpoints do not store."""
    for cycle in callers(*COMBINED_LOADERS):
        consumed = getattr(cycle, "_consumed", None)
        if consumed:
            loaders = vars(cycle)["iterables"]
            consumed[:] = [is_consumed or found is loader for is_consumed, found in zip(consumed, loaders, strict=True)]


def take_pending_state(loop: Any, loader: Any) -> Mapping[str, Any] | None:
    """Take the loader's state out of a checkpoint of an epoch's end, which Lightning reads and does not load.

    Without it the next epoch would start with a loader that knows of no earlier one.
    """
    states = loop._combined_loader_states_to_load
    if not states or loop.restarting or not loop.is_resuming:
        return None
    stateful = [found for found in loop._combined_loader.flattened if hasattr(found, "load_state_dict")]
    index = next(index for index, found in enumerate(stateful) if found is loader)
    if len(stateful) != len(states) or states[index] is None:
        return None
    loop._combined_loader_states_to_load = [*states[:index], None, *states[index + 1 :]]
    state: Mapping[str, Any] = states[index]
    return state


def set_progress(loop: Any, loader: Any) -> int | None:
    """Set the batch counts of a resumed loop to those of the current number of ranks.

    A loop that restarts is within an epoch; or in the hooks after an epoch's last batch, where it counts the epoch as
    done if it has all batches of this world; or after an epoch. In the last case, with ``max_steps``, Lightning would
    count one more batch to the finished epoch, so the loop is set to not restarting.

    Args:
        loop: that has loaded the state of this loader. With several loaders, the last one sets the progress.
        loader: has ``len``, of a whole epoch, and ``num_batches_left``.

    Returns:
        How many batches this rank has in the rest of the epoch; ``None`` where the loop knows no number.
    """
    own = [found for found in loop._combined_loader.flattened if hasattr(found, "num_batches_left")]
    if not loop.restarting or loader is not own[-1]:
        return None
    progress, epoch, has_ended = loop.epoch_loop.batch_progress, loop.epoch_progress.current, epoch_ends(loop)
    if has_ended and epoch.ready == epoch.started == epoch.processed:
        loop._restarting = loop.epoch_loop.restarting = False
        return None
    progress.is_last_batch = has_ended
    lengths = _epoch_left_and_limit(loop._combined_loader, own)
    if lengths is None or not progress.current.processed:
        return None
    whole, left, limit = lengths
    current, num_done = progress.current, whole if has_ended else whole - left
    in_hooks = current.processed - current.completed
    current.ready = current.started = current.processed = num_done
    current.completed = num_done - in_hooks
    return max(0, min(left, int(min(limit, whole)) - num_done))


def _epoch_left_and_limit(combined: Any, own: list[Any]) -> tuple[int, int, float] | None:
    """Batches of an epoch, those left of it, and the trainer's limit, for the loader that ends the epoch.

    ``None`` if that loader is not one of ``own``, or if a loader without a length may end the epoch.
    """
    limits = combined.limits or [inf] * len(combined.flattened)
    known = [
        (length, loader, limit)
        for loader, limit in zip(combined.flattened, limits, strict=True)
        if (length := _length(loader)) is not None
    ]
    if combined._mode == "min_size":
        if not known or any(loader not in own for _, loader, _ in known):
            return None
        return (
            min(length for length, _, _ in known),
            min(loader.num_batches_left() for _, loader, _ in known),
            min(limits),
        )
    if len(known) < len(combined.flattened):
        return None
    length, longest, limit = max(known, key=lambda row: row[0])
    return (length, longest.num_batches_left(), limit) if longest in own else None


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def warn_if_state_is_missing() -> None:
    """Warn if a training loop that resumes in mid-epoch reads a ``DataLoader``, whose position no checkpoint has."""
    loader = next((found for found in callers("torch.utils.data.dataloader") if hasattr(found, "batch_sampler")), None)
    loop = None if loader is None or hasattr(loader, "load_state_dict") else current_fit_loop(loader)
    if loop is not None and resumes_in_mid_epoch(loop):
        warn_of_repeated_samples("DataLoader")


def warn_of_repeated_samples(loader: str) -> None:
    """Warn that a loop continues within an epoch while this loader starts the epoch again."""
    warnings.warn(
        f"Lightning resumes in mid-epoch, and its checkpoint has no state of {loader}: the epoch's first samples are "
        "repeated, and as many of its last ones may be left out. Train with stateful_loader(pipe), whose state is in "
        "Lightning's checkpoints, or resume from a checkpoint of an epoch's end.",
        RuntimeWarning,
        stacklevel=2,
    )
