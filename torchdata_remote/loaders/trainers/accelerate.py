"""A loader that Hugging Face Accelerate does not wrap, with the features of Accelerate's own loaders."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...core.frameworks.call_stack import callers
from ...errors import StateError

_END = object()


class Accelerated:
    """Base of loaders that split their samples themselves.

    ``Accelerator.prepare`` (accelerate 1.0 or newer) does not wrap a loader with ``_is_accelerate_prepared``. A loader
    that was prepared does what Accelerate's own loaders do: it puts batches on the accelerator's device, marks the last
    batch of a pass for ``GradientState`` (``accumulate``, ``gather_for_metrics``), and takes part in ``save_state`` and
    ``load_state``.
    """

    use_stateful_dataloader = True  # for save_state and load_state
    remainder = -1  # no samples are repeated to fill the last batch, so gather_for_metrics has none to drop

    dataset: Any  # has the chain's ``world()``
    _accelerator: Any = None  # that prepared this
    _batches_ahead: Sequence[Any] = ()  # one that was prefetched
    _state_before: Any = None  # of this rank, before that was prefetched
    _current: Iterator[Any] | None = None  # the batches of the pass that Accelerate consumes

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Always ``True``. Accelerate reads this when it prepares a loader."""
        found = next((caller for caller in callers("accelerate") if hasattr(caller, "prepare_data_loader")), None)
        if found is not None:
            _require_plain_split(found)
            _require_same_ranks(found, self.dataset.world().world_size)
            self._accelerator = found
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accepted without effect: Accelerate marks the loaders that it has prepared."""

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the latest batch is the last one of its pass; prefetches a batch to know it."""
        if self._current is None:
            return False
        if not self._batches_ahead:
            self._state_before = self.rank_state()
            self._batches_ahead = (next(self._current, _END),)
        return self._batches_ahead[0] is _END

    def rank_state(self) -> Any:
        """The state of this rank."""
        raise NotImplementedError

    def for_accelerator(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Wrap the batches of a pass for the accelerator, if one has prepared this loader."""
        self._current, self._batches_ahead, self._state_before = None, (), None
        return batches if self._accelerator is None else self._accelerated(batches, self._accelerator)

    def _accelerated(self, batches: Iterator[Any], accelerator: Any) -> Iterator[Any]:
        to_device = importlib.import_module("accelerate.utils").send_to_device
        with self._active(accelerator.gradient_state, batches):
            while (batch := self._next_batch(batches)) is not _END:
                if accelerator.device_placement:
                    batch = to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)
                yield batch

    def _next_batch(self, batches: Iterator[Any]) -> Any:
        if self._current is batches and self._batches_ahead:
            (batch,), self._batches_ahead, self._state_before = self._batches_ahead, (), None
            return batch
        return next(batches, _END)

    @contextmanager
    def _active(self, gradient_state: Any, batches: Iterator[Any]) -> Iterator[None]:
        """Register this as the loader that the accelerator consumes."""
        self._current = batches
        gradient_state._add_dataloader(self)
        try:
            yield
        finally:
            if self._current is batches:  # no other pass was started since
                self._current = None
                gradient_state._remove_dataloader(self)


def refuse_skipping(dataset: object) -> None:
    """Refuse to read batches only to skip them.

    Raises:
        StateError: if Accelerate's ``skip_first_batches`` has made a loader over this dataset.
    """
    for caller in callers("accelerate.data_loader"):
        if getattr(caller, "skip_batches", 0) and getattr(caller, "dataset", None) is dataset:
            in_trainer = next(callers("transformers.trainer"), None) is not None
            raise StateError(
                "Accelerate's skip_first_batches would read batches again and drop them, also those after a loaded "
                f"state. {_IN_TRAINER if in_trainer else _LEAVE_IT_OUT}"
            )


_LEAVE_IT_OUT = (
    "Leave it out: accelerator.load_state(), or loader.load_state_dict(), continues after the last batch that was "
    "handed out."
)
_IN_TRAINER = (
    "The transformers Trainer resumes a chain as train_dataset=pipe of class MyTrainer(RemoteTrainerMixin, Trainer), "
    "from torchdata_remote.loaders.trainers, which makes the loader itself."
)


def _require_plain_split(accelerator: Any) -> None:
    """Refuse options that change which samples a process gets.

    Raises:
        StateError: for an option that does not apply to a loader that splits its samples itself.
    """
    for option, instead in (
        ("split_batches", "give the loader the batch size of one process"),
        ("dispatch_batches", "leave it out: each process reads its own share"),
    ):
        if getattr(accelerator, option, None):
            raise StateError(
                f"Accelerate's {option}=True does not go with stateful_loader, which gives each process its share of "
                f"the samples: set it to False in DataLoaderConfiguration and {instead}."
            )


def _require_same_ranks(accelerator: Any, world_size: int) -> None:
    """Compare the loader's ranks with the processes that need different batches.

    Raises:
        StateError: if tensor or context parallel processes need equal batches, and the chain gives each process other
            ones; or if the chain is not split over the processes, or over another number of them.
    """
    alike = getattr(getattr(accelerator, "parallelism_config", None), "non_data_parallel_size", 1)
    if world_size * alike == accelerator.num_processes:
        return
    if alike > 1:
        raise StateError(
            f"Accelerate: groups of {alike} of the {accelerator.num_processes} processes (tensor or context parallel) "
            f"need equal batches, and this chain gives {world_size} ranks different ones: pass this process's rank "
            "among the data-parallel groups, sharding_filter_rank(world=World(rank=..., world_size=...))."
        )
    raise StateError(
        f"Accelerate runs {accelerator.num_processes} processes, and this chain is divided over {world_size}: samples "
        "would be read several times, or not at all. Leave world= out of sharding_filter_rank(), stream_shards() or "
        "stream_files(), so that the chain uses the processes' own ranks."
    )
