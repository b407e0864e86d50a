"""A loader that Hugging Face Accelerate does not wrap, with the features of Accelerate's own loaders."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

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
    end_of_dataloader = False
    """Whether the latest batch is the last one of its pass."""

    dataset: Any  # has the chain's ``world()``
    pin_memory: bool
    state_of_all_ranks: bool | None
    _is_prepared = False
    _num_ahead = 0  # batches that were read and not handed out

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Always ``True``. Accelerate reads this when it prepares a loader, and then sets it."""
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        _require_same_ranks(self.dataset.world().world_size)
        self._is_prepared = self.state_of_all_ranks = True

    def for_accelerator(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Wrap the batches of a pass for the accelerator, if one has prepared this loader."""
        self._num_ahead = 0
        return self._accelerated(batches) if self._is_prepared else batches

    def _accelerated(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches on the accelerator's device, one of which is read ahead to know the last one."""
        accelerate = importlib.import_module("accelerate")
        device, gradient_state = accelerate.PartialState().device, accelerate.state.GradientState()
        self.end_of_dataloader = False
        gradient_state._add_dataloader(self)
        try:
            following = next(batches, _END)
            while following is not _END:
                self._num_ahead = 1
                batch = accelerate.utils.send_to_device(following, device, non_blocking=self.pin_memory)
                following = next(batches, _END)
                self.end_of_dataloader = following is _END
                yield batch
            self._num_ahead = 0
        finally:
            gradient_state._remove_dataloader(self)


def _require_same_ranks(world_size: int) -> None:
    """Compare the loader's ranks with the processes that need different batches.

    Raises:
        StateError: if tensor or context parallel processes need equal batches, and the chain gives each process other
            ones; or if the chain is not split over the processes, or over another number of them.
    """
    state = importlib.import_module("accelerate.state").AcceleratorState()
    alike = getattr(getattr(state, "parallelism_config", None), "non_data_parallel_size", 1)
    if world_size * alike != state.num_processes:
        raise StateError(
            f"Accelerate runs {state.num_processes} processes, and this chain is divided over {world_size}: samples "
            "would be read several times, or not at all. Leave world= out of sharding_filter_rank(), stream_shards() "
            f"or stream_files(), so that the chain uses the processes' own ranks. Where groups of them need equal "
            f"batches (tensor or context parallelism: groups of {alike}), pass the rank among the groups: "
            "sharding_filter_rank(world=World(rank=..., world_size=...))."
        )
