"""What Lightning and Fabric do with a loader, which they tell nothing: found on the stack.

Read in Lightning 2.6, under both of its names (``lightning.pytorch`` and ``pytorch_lightning``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import inf
from typing import Any

from .call_stack import callers, calling_module, is_in

_TRAINERS = ("lightning.pytorch", "pytorch_lightning")
_LOOPS = tuple(f"{package}.loops" for package in _TRAINERS)
_COMBINED = tuple(f"{package}.utilities.combined_loader" for package in _TRAINERS)
_SAVERS = (
    *_COMBINED,
    "lightning.fabric.strategies",
    "lightning_fabric.strategies",
)


def asks_all_ranks() -> bool:
    """Whether Lightning or Fabric has called: they ask every rank for a state, and store that of rank 0."""
    return is_in(calling_module(), _SAVERS)


def current_fetcher() -> Any:
    """What takes the batches of a loop; ``None`` without Lightning."""
    return next((found for found in callers(*_LOOPS) if hasattr(found, "fetched") and hasattr(found, "iterator")), None)


def current_progress(fetcher: Any) -> Any:
    """The batches of the training loop that has called and reads through this fetcher; ``None`` if there is none."""
    loop = _current_loop()
    is_its_own = type(loop).__name__ == "_FitLoop" and loop._data_fetcher is fetcher
    return loop.epoch_loop.batch_progress if is_its_own else None


def num_not_trained_on(fetcher: Any, progress: Any) -> int:
    """Batches that a fetcher has taken and no step has finished.

    Args:
        fetcher: that reads one ahead where it cannot ask for the length.
        progress: of its training loop: a batch is ``ready`` before its step, and ``processed`` after it; ``None`` where
            the loop does not train.
    """
    ahead, in_step = len(getattr(fetcher, "batches", ())), 0
    is_gone = fetcher.iterator is None  # a loop that has ended forgets its batches before it drops the iterator
    if is_gone and fetcher.length is None and not (progress is not None and progress.is_last_batch):
        ahead = getattr(fetcher, "prefetch_batches", 0)
    if progress is not None:
        ready = progress.current.ready
        ready = ready if is_gone else min(ready, fetcher.fetched)  # a resumed loop has not begun with those of before
        in_step = max(0, ready - progress.current.processed)
    return ahead + in_step


def num_fetches(fetcher: Any) -> int:
    """How often a fetcher has asked its loaders in this pass; a loader that has ended gives nothing."""
    iterator = fetcher.combined_loader._iterator
    return 0 if iterator is None else int(iterator._idx)


def num_in_step_or_ahead(loader: Any) -> int:
    """Batches of a loader that the training loop which has called has taken, and not trained on."""
    loop = current_fit_loop(loader)
    if loop is None:
        return 0
    progress, fetcher = loop.epoch_loop.batch_progress, loop._data_fetcher
    if fetcher is None:  # the loop has ended
        return int(max(0, progress.current.ready - progress.current.processed))
    return num_not_trained_on(fetcher, progress)


def warn_where_no_state_is_resumed() -> None:
    """Warn if a training loop that resumes in mid-epoch begins a ``DataLoader``, whose place is in no checkpoint."""
    loader = next((found for found in callers("torch.utils.data.dataloader") if hasattr(found, "batch_sampler")), None)
    loop = None if loader is None or hasattr(loader, "load_state_dict") else current_fit_loop(loader)
    if loop is not None and resumes_in_mid_epoch(loop):
        warn_of_repeated_samples("DataLoader")


def current_fit_loop(loader: Any) -> Any:
    """The training loop that has called and reads this loader; ``None`` if there is none."""
    loop = _current_loop()
    if type(loop).__name__ != "_FitLoop" or loop._combined_loader is None:
        return None
    return loop if any(found is loader for found in loop._combined_loader.flattened) else None


def _current_loop() -> Any:
    names = ("_FitLoop", "_EvaluationLoop", "_PredictionLoop")
    return next((found for found in callers(*_LOOPS) if type(found).__name__ in names), None)


def epoch_ends(loop: Any) -> bool:
    """Whether the loop has trained on the last batch of its epoch."""
    progress = loop.epoch_loop.batch_progress
    return bool(progress.is_last_batch and progress.current.processed == progress.current.ready)


def goes_on_without(loader: Any) -> bool:
    """Whether a training loop's epoch goes on after this loader's pass: ``CombinedLoader(mode="max_size")``."""
    loop = current_fit_loop(loader)
    return loop is not None and loop._combined_loader._mode == "max_size" and not epoch_ends(loop)


def has_begun_again(loader: Any) -> bool:
    """Whether a training loop's epoch has read a whole pass of this loader, and goes on with another one."""
    loop = current_fit_loop(loader)
    if loop is None or epoch_ends(loop):
        return False
    consumed = getattr(loop._combined_loader._iterator, "_consumed", None) or []
    return any(had for had, found in zip(consumed, loop._combined_loader.flattened, strict=False) if found is loader)


def set_begun_again(loader: Any) -> None:
    """Let the cycle of loaders that asks this one for a batch know so: Lightning's checkpoints do not tell."""
    for cycle in callers(*_COMBINED):
        consumed = getattr(cycle, "_consumed", None)
        if consumed:
            consumed[:] = [
                had or found is loader for had, found in zip(consumed, vars(cycle)["iterables"], strict=True)
            ]


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
    return bool(loop.restarting and progress.current.processed > 0 and not epoch_ends(loop))


def set_progress(loop: Any, loader: Any) -> int | None:
    """Let a resumed loop count the epoch's batches as this number of ranks has them.

    A loop that restarts is within an epoch; or in the hooks after an epoch's last batch, where it counts the epoch as
    done if it has all batches of this world; or behind an epoch. There Lightning takes one more batch for the epoch's
    where ``max_steps`` is set, unless it is told that nothing restarts.

    Args:
        loop: that has loaded the state of this loader. The last one of several sets the progress.
        loader: has ``len``, of a whole epoch, and ``num_batches_left``.

    Returns:
        How many batches this rank is to have in the rest of the epoch; ``None`` where the loop knows no number.
    """
    ours = [found for found in loop._combined_loader.flattened if hasattr(found, "num_batches_left")]
    if not loop.restarting or loader is not ours[-1]:
        return None
    progress, epoch, has_ended = loop.epoch_loop.batch_progress, loop.epoch_progress.current, epoch_ends(loop)
    if has_ended and epoch.ready == epoch.started == epoch.processed:
        loop._restarting = loop.epoch_loop.restarting = False
        return None
    progress.is_last_batch = has_ended
    counted = _whole_left_and_limit(loop._combined_loader, ours)
    if counted is None or not progress.current.processed:
        return None
    whole, left, limit = counted
    current, num_done = progress.current, whole if has_ended else whole - left
    in_hooks = current.processed - current.completed
    current.ready = current.started = current.processed = num_done
    current.completed = num_done - in_hooks
    return max(0, min(left, int(min(limit, whole)) - num_done))


def _whole_left_and_limit(combined: Any, ours: list[Any]) -> tuple[int, int, float] | None:
    """Batches of an epoch, those left of it, and the trainer's limit, of the loader that ends the epoch.

    ``None`` where that is none of ours, or where one without a length may end it.
    """
    limits = combined.limits or [inf] * len(combined.flattened)
    known = [
        (length, loader, limit)
        for loader, limit in zip(combined.flattened, limits, strict=True)
        if (length := _length(loader)) is not None
    ]
    if combined._mode == "min_size":
        if not known or any(loader not in ours for _, loader, _ in known):
            return None
        return (
            min(length for length, _, _ in known),
            min(loader.num_batches_left() for _, loader, _ in known),
            min(limits),
        )
    if len(known) < len(combined.flattened):
        return None
    length, longest, limit = max(known, key=lambda row: row[0])
    return (length, longest.num_batches_left(), limit) if longest in ours else None


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def warn_of_repeated_samples(loader: str) -> None:
    """A loop goes on within an epoch, and its checkpoint does not tell where this loader was."""
    warnings.warn(
        f"Lightning resumes in mid-epoch, and its checkpoint has no state of {loader}: the epoch's first samples are "
        "repeated, and as many of its last ones may be left out. Train with stateful_loader(pipe), whose state is in "
        "Lightning's checkpoints, or resume from a checkpoint of an epoch's end.",
        RuntimeWarning,
        stacklevel=2,
    )
