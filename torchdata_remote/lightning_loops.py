"""What Lightning and Fabric do with a loader, which they tell nothing: found on the stack.

Read in Lightning 2.6, under both of its names (``lightning.pytorch`` and ``pytorch_lightning``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from .callers import callers, calling_module, is_in

_TRAINERS = ("lightning.pytorch", "pytorch_lightning")
_LOOPS = tuple(f"{package}.loops" for package in _TRAINERS)
_SAVERS = (
    *(f"{package}.utilities.combined_loader" for package in _TRAINERS),
    "lightning.fabric.strategies",
    "lightning_fabric.strategies",
)


def asks_all_ranks() -> bool:
    """Whether Lightning or Fabric has called: they ask every rank for a state, and store that of rank 0."""
    return is_in(calling_module(), _SAVERS)


def current_fetcher() -> Any:
    """What takes the batches of a loop; ``None`` without Lightning."""
    return next((found for found in callers(*_LOOPS) if hasattr(found, "prefetch_batches")), None)


def num_read_ahead(fetcher: Any) -> int:
    """Batches that a fetcher has taken and no step was given: one, where it cannot ask for the length."""
    if fetcher.length is not None:
        return 0
    # A loop that has ended forgets its batches before it drops the iterator
    return int(fetcher.prefetch_batches) if fetcher.iterator is None else len(fetcher.batches)


def warn_where_no_state_is_resumed() -> None:
    """Warn if a training loop that resumes in mid-epoch begins a ``DataLoader``, whose place is in no checkpoint."""
    loader = next((found for found in callers("torch.utils.data.dataloader") if hasattr(found, "batch_sampler")), None)
    loop = None if loader is None or hasattr(loader, "load_state_dict") else current_fit_loop(loader)
    if loop is not None and resumes_in_mid_epoch(loop):
        warn_of_repeated_samples("DataLoader")


def current_fit_loop(loader: Any) -> Any:
    """The training loop that has called and reads this loader; ``None`` if there is none."""
    names = ("_FitLoop", "_EvaluationLoop", "_PredictionLoop")
    loop: Any = next((found for found in callers(*_LOOPS) if type(found).__name__ in names), None)
    if type(loop).__name__ != "_FitLoop" or loop._combined_loader is None:
        return None
    return loop if any(found is loader for found in loop._combined_loader.flattened) else None


def epoch_ends(loop: Any) -> bool:
    """Whether the batch that was given last is the last one of the loop's epoch."""
    return bool(loop.epoch_loop.batch_progress.is_last_batch)


def take_state_left(loop: Any, loader: Any) -> Mapping[str, Any] | None:
    """The loader's state in a checkpoint of an epoch's end, which Lightning reads and does not load.

    Its next epoch begins with a loader that knows of no earlier one.
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


def resumes_in_mid_epoch(loop: Any) -> bool:
    """Whether a loop goes on within an epoch, so that a loader that begins anew repeats batches."""
    progress = loop.epoch_loop.batch_progress
    return bool(loop.restarting and progress.current.ready > 0 and not progress.is_last_batch)


def set_progress(loop: Any, num_done: int) -> None:
    """Let a resumed loop count the epoch's batches as this number of ranks has them.

    Args:
        loop: that has loaded the state of its only loader.
        num_done: batches of this rank's epoch that are not left.
    """
    if not resumes_in_mid_epoch(loop) or len(loop._combined_loader.flattened) > 1:
        return
    current = loop.epoch_loop.batch_progress.current
    shift = num_done - current.ready
    for name in ("ready", "started", "processed", "completed"):
        setattr(current, name, getattr(current, name) + shift)


def warn_of_repeated_samples(loader: str) -> None:
    """A loop goes on within an epoch, and its checkpoint does not tell where this loader was."""
    warnings.warn(
        f"Lightning resumes in mid-epoch, and its checkpoint has no state of {loader}: the epoch's first samples are "
        "repeated, and as many of its last ones may be left out. Train with stateful_loader(pipe), whose state is in "
        "Lightning's checkpoints, or resume from a checkpoint of an epoch's end.",
        RuntimeWarning,
        stacklevel=2,
    )
