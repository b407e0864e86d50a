"""Lightning's ``Trainer``: a callback by which its checkpoints contain the loaders' positions."""

from __future__ import annotations

import sys
import warnings
from math import isinf
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_leaves

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch import Callback
else:  # the same package by its other name
    from pytorch_lightning import Callback


class LightningResume(Callback):
    """Resume Lightning's ``Trainer`` exactly, from any of its checkpoints: ``Trainer(callbacks=[LightningResume()])``.

    It serves the training loaders that are a :class:`StatefulLoader` or a :class:`PrefetchingLoader`. Their state in
    Lightning's checkpoints is that of all ranks, after the last batch whose step was finished. A pass of Lightning's
    epoch ``n`` is the loader's epoch ``n``. With another number of ranks or another batch size, Lightning's count of
    the batches of the epoch is set to what these ranks would have done.
    """

    def __init__(self) -> None:
        self._loaders: list[Any] = []
        self._num_trained = 0  # batches of the passes that the loaders are in
        self._warned = False

    def _begin_pass(self, trainer: Any, *, sets_epoch: bool) -> None:
        self._num_trained = 0
        self._loaders = [loader for loader in tree_leaves(trainer.train_dataloader) if hasattr(loader, "trained")]
        for loader in self._loaders:
            loader.state_of_all_ranks = True
            if sets_epoch:
                loader.set_epoch(_epoch(trainer))
            loader.trained(0)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow the checkpoint from which training is resumed."""
        loop = trainer.fit_loop
        is_at_end = loop.is_resuming and not loop.restarting  # of an epoch, where Lightning loads no state of a loader
        self._begin_pass(trainer, sets_epoch=is_at_end)
        if is_at_end:
            iter(loop._data_fetcher)
        elif loop.is_resuming:
            self._set_counts(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Set the epoch of the passes that Lightning is about to start."""
        self._begin_pass(trainer, sets_epoch=_epoch(trainer) > 0 and not trainer.fit_loop.is_resuming)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count a batch that was trained on; after the last one, the state is the start of the next epoch."""
        self._num_trained += 1
        for loader in self._loaders:
            if trainer.is_last_batch:
                loader.set_epoch(_epoch(trainer) + 1)
                continue
            try:
                loader.trained(self._num_trained)
            except ValueError:
                self._warn(
                    "A training loader has ended before Lightning's epoch, so that a checkpoint within the epoch "
                    "resumes at other batches of it. Resume from the end of an epoch, or combine the loaders by "
                    'CombinedLoader(loaders, mode="min_size").'
                )

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _set_counts(self, trainer: Any) -> None:
        """Set the batch counts of a resumed loop to those of the current number of ranks."""
        loop, length = trainer.fit_loop, trainer.num_training_batches
        progress, epoch = loop.epoch_loop.batch_progress, loop.epoch_progress.current
        current = progress.current
        in_hooks = current.processed - current.completed  # whether the checkpoint was saved in those after a batch
        if progress.is_last_batch and current.processed == current.ready:
            if epoch.ready == epoch.processed:  # the next epoch begins, also where Lightning would end this one again
                num_done, progress.is_last_batch = 0, False
            elif isinf(length):
                return
            else:
                num_done = length
        else:
            ending = [loader for loader in self._loaders if _length(loader) == length] or self._loaders
            if len(ending) != 1 or (whole := _length(ending[0])) is None:
                return  # the counts of a checkpoint with as many ranks
            num_done = whole - ending[0].num_batches_left()
            if num_done == 0 < current.processed:
                self._warn("The checkpoint has no position of the training loader: the epoch starts again.")
        current.ready = current.started = current.processed = num_done
        current.completed = num_done - in_hooks


def _epoch(trainer: Any) -> int:
    # current_epoch is one less after a resume with max_steps
    return int(trainer.fit_loop.epoch_progress.current.processed)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
