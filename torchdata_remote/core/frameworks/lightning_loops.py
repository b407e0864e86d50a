"""Find the Lightning loop that reads a loader, and read its progress.

Lightning passes nothing to a loader, so loops are found on the call stack. Written for Lightning 2.6, under both of its
names (``lightning.pytorch`` and ``pytorch_lightning``).
"""

from __future__ import annotations

from typing import Any

from .call_stack import callers, calling_module, is_in

_TRAINERS = ("lightning.pytorch", "pytorch_lightning")
_LOOPS = tuple(f"{package}.loops" for package in _TRAINERS)
COMBINED_LOADERS = tuple(f"{package}.utilities.combined_loader" for package in _TRAINERS)
_CHECKPOINT_SAVERS = (
    *COMBINED_LOADERS,
    "lightning.fabric.strategies",
    "lightning_fabric.strategies",
)


def asks_all_ranks() -> bool:
    """Whether the caller is Lightning or Fabric: they ask every rank for a state and store that of rank 0."""
    return is_in(calling_module(), _CHECKPOINT_SAVERS)


def current_fetcher() -> Any:
    """The fetcher that takes batches for the calling loop; ``None`` without Lightning."""
    return next((found for found in callers(*_LOOPS) if hasattr(found, "fetched") and hasattr(found, "iterator")), None)


def current_progress(fetcher: Any) -> Any:
    """The batch progress of the calling training loop, if it reads through this fetcher; otherwise ``None``."""
    loop = _current_loop()
    is_its_own = type(loop).__name__ == "_FitLoop" and loop._data_fetcher is fetcher
    return loop.epoch_loop.batch_progress if is_its_own else None


def current_fit_loop(loader: Any) -> Any:
    """The calling training loop, if it reads this loader; otherwise ``None``."""
    loop = _current_loop()
    if type(loop).__name__ != "_FitLoop" or loop._combined_loader is None:
        return None
    return loop if any(found is loader for found in loop._combined_loader.flattened) else None


def _current_loop() -> Any:
    names = ("_FitLoop", "_EvaluationLoop", "_PredictionLoop")
    return next((found for found in callers(*_LOOPS) if type(found).__name__ in names), None)


def num_untrained(fetcher: Any, progress: Any) -> int:
    """Count the batches that a fetcher has taken and that no finished step was trained on.

    Args:
        fetcher: of a loop; prefetches one batch where the length is unknown.
        progress: of its training loop: a batch is ``ready`` before its step, and ``processed`` after it; ``None`` where
            the loop does not train.
    """
    ahead, in_step = len(getattr(fetcher, "batches", ())), 0
    is_reset = fetcher.iterator is None  # a finished loop drops its prefetched batches before it drops the iterator
    if is_reset and fetcher.length is None and not (progress is not None and progress.is_last_batch):
        ahead = getattr(fetcher, "prefetch_batches", 0)
    if progress is not None:
        ready = progress.current.ready
        # A resumed loop also counts batches from before the checkpoint, which this fetcher has not fetched.
        ready = ready if is_reset else min(ready, fetcher.fetched)
        in_step = max(0, ready - progress.current.processed)
    return ahead + in_step


def num_untrained_of(loader: Any) -> int:
    """Count the batches that the calling training loop has taken from this loader and not trained on."""
    loop = current_fit_loop(loader)
    if loop is None:
        return 0
    progress, fetcher = loop.epoch_loop.batch_progress, loop._data_fetcher
    if fetcher is None:  # the loop has ended
        return int(max(0, progress.current.ready - progress.current.processed))
    return num_untrained(fetcher, progress)


def num_fetches(fetcher: Any) -> int:
    """How often a fetcher has asked its loaders in this pass, including those that had no batch left."""
    iterator = fetcher.combined_loader._iterator
    return 0 if iterator is None else int(iterator._idx)


def epoch_ends(loop: Any) -> bool:
    """Whether the loop has trained on the last batch of its epoch."""
    progress = loop.epoch_loop.batch_progress
    return bool(progress.is_last_batch and progress.current.processed == progress.current.ready)


def resumes_in_mid_epoch(loop: Any) -> bool:
    """Whether a resumed loop continues within an epoch, so that a loader without state would repeat batches."""
    progress = loop.epoch_loop.batch_progress
    return bool(loop.restarting and progress.current.processed > 0 and not epoch_ends(loop))


def epoch_outlasts(loader: Any) -> bool:
    """Whether the loop's epoch continues when this loader's pass has ended: ``CombinedLoader(mode="max_size")``."""
    loop = current_fit_loop(loader)
    return loop is not None and loop._combined_loader._mode == "max_size" and not epoch_ends(loop)


def is_cycled(loader: Any) -> bool:
    """Whether the loop's epoch has read a whole pass of this loader and is reading another one."""
    loop = current_fit_loop(loader)
    if loop is None or epoch_ends(loop):
        return False
    consumed = getattr(loop._combined_loader._iterator, "_consumed", None) or []
    loaders = loop._combined_loader.flattened
    return any(is_consumed for is_consumed, found in zip(consumed, loaders, strict=False) if found is loader)
