"""A loader that Hugging Face Accelerate leaves as it is, with what Accelerate's own loaders do besides."""

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

    ``Accelerator.prepare`` (accelerate 1.0 or newer) takes a loader with ``_is_accelerate_prepared`` as it is. From
    then on the loader does what a loader made by Accelerate would: it puts batches on the accelerator's device, tells
    its ``GradientState`` when the last batch of a pass is handed out (``accumulate``, ``gather_for_metrics``), and has
    its state in ``save_state`` and ``load_state``.
    """

    use_stateful_dataloader = True  # save_state and load_state ask for this
    remainder = -1  # no samples are repeated to fill the last batch, so gather_for_metrics has none to drop

    dataset: Any  # has the chain's ``world()``
    _accelerator: Any = None  # that prepared this
    _batches_ahead: Sequence[Any] = ()  # one that was read, and not handed out
    _state_before: Any = None  # this rank's, before that was read
    _under_way: Iterator[Any] | None = None  # the batches of the pass that Accelerate consumes

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether this may stay as it is: always. Accelerate asks when it prepares a loader."""
        found = next((caller for caller in callers("accelerate") if hasattr(caller, "prepare_data_loader")), None)
        if found is not None:
            _require_plain_split(found)
            _require_same_ranks(found, self.dataset.world().world_size)
            self._accelerator = found
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate marks what it has prepared."""

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch that was handed out last is the last one of its pass; reads one ahead to know it."""
        if self._under_way is None:
            return False
        if not self._batches_ahead:
            self._state_before = self._state_of_this_rank()
            self._batches_ahead = (next(self._under_way, _END),)
        return self._batches_ahead[0] is _END

    def _state_of_this_rank(self) -> Any:
        raise NotImplementedError

    def for_accelerator(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches of a pass as the accelerator expects them, if one has prepared this."""
        self._under_way, self._batches_ahead, self._state_before = None, (), None
        return batches if self._accelerator is None else self._accelerated(batches, self._accelerator)

    def _accelerated(self, batches: Iterator[Any], accelerator: Any) -> Iterator[Any]:
        to_device = importlib.import_module("accelerate.utils").send_to_device
        with self._active(accelerator.gradient_state, batches):
            while (batch := self._next_batch(batches)) is not _END:
                if accelerator.device_placement:
                    batch = to_device(batch, accelerator.device, non_blocking=accelerator.non_blocking)
                yield batch

    def _next_batch(self, batches: Iterator[Any]) -> Any:
        if self._under_way is batches and self._batches_ahead:
            (batch,), self._batches_ahead, self._state_before = self._batches_ahead, (), None
            return batch
        return next(batches, _END)

    @contextmanager
    def _active(self, gradient_state: Any, batches: Iterator[Any]) -> Iterator[None]:
        """Be the loader that the accelerator consumes."""
        self._under_way = batches
        gradient_state._add_dataloader(self)
        try:
            yield
        finally:
            if self._under_way is batches:  # no other pass has begun meanwhile
                self._under_way = None
                gradient_state._remove_dataloader(self)


def refuse_skipping(dataset: object) -> None:
    """Refuse to read batches again in order to skip them.

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
    """Refuse what would change which samples a process gets.

    Raises:
        StateError: for an option that a loader which splits by itself does not follow.
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
    """Compare the loader's ranks with those that are to have batches of their own.

    Raises:
        StateError: where tensor or context parallel processes need equal batches, and the chain knows of no groups; or
            where the chain gives each process everything, or counts other processes than Accelerate.
    """
    alike = getattr(getattr(accelerator, "parallelism_config", None), "non_data_parallel_size", 1)
    if world_size * alike == accelerator.num_processes:
        return
    if alike > 1:
        raise StateError(
            f"Accelerate: groups of {alike} of the {accelerator.num_processes} processes (tensor or context parallel) "
            f"need equal batches, and this chain gives {world_size} ranks different ones: tell it this process's place "
            "among the data-parallel groups, sharding_filter_rank(world=World(rank=..., world_size=...))."
        )
    raise StateError(
        f"Accelerate runs {accelerator.num_processes} processes, and this chain is divided over {world_size}: samples "
        "would be read several times, or not at all. Leave world= out of sharding_filter_rank(), stream_shards() or "
        "stream_files(), so that the chain takes the processes' own numbers."
    )
