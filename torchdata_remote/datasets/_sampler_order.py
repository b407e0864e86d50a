"""The order of a sampler, with a name by which a state recognises it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from ..errors import StateError
from ._epoch import Epoch


class SamplerOrder:
    """One pass over the batches of a ``DataLoader``'s sampler.

    Args:
        loader: of the sampler.
        batches_done: of the epoch, before the pass.
        order: its name in a state; ``None`` at the start of an epoch.
    """

    def __init__(self, loader: DataLoader[Any], batches_done: int, order: str | None) -> None:
        self._loader, self.batches_done, self._order = loader, batches_done, order
        self._known = _name_of(loader)
        self._epoch: Epoch | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def num_left(self) -> int:
        """Number of batches of the pass."""
        return len(self._loader) - self.batches_done

    def num_in_epoch(self) -> int:
        """Number of batches of a complete epoch."""
        return len(self._loader)

    def batches(self) -> Any:
        """All batches of the epoch."""
        if self._loader.batch_sampler is None:
            return ([index] for index in self._loader.sampler)
        return self._loader.batch_sampler

    def check(self, epoch: Epoch) -> None:
        """Compare the order that was drawn with that of the state.

        Raises:
            StateError: if they differ.
        """
        self._epoch = epoch
        if self.batches_done and self._order != self._name():
            raise StateError(
                f"PrefetchingLoader: the state was saved in the order {self._order!r}, and the sampler yields "
                f"{self._name()!r}. Make it yield the same order again (seed its generator as at the start of "
                "the epoch, call its set_epoch); or pass no sampler but shuffle=True and seed=, whose state can be "
                "resumed by any number of ranks."
            )

    def _name(self) -> str | None:
        return self._known or (None if self._epoch is None else f"digest {self._epoch.digest()}")

    def state(self, num_batches: int) -> dict[str, Any]:
        """Return the position of this rank after ``num_batches`` of the pass, as plain JSON."""
        done = self.batches_done + num_batches
        return {"order": self._order if self._epoch is None else self._name(), "batches_done": done}


def _name_of(loader: DataLoader[Any]) -> str | None:
    """Describe what determines the order of a ``DistributedSampler`` in all ranks; ``None`` for other samplers."""
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        return None
    sampler = loader.sampler
    if type(sampler) is not DistributedSampler:
        return None
    return (
        f"DistributedSampler of {len(sampler.dataset)} items, {sampler.num_replicas} ranks, shuffle={sampler.shuffle}, "  # type: ignore[arg-type]
        f"seed={sampler.seed}, epoch={sampler.epoch}, drop_last={sampler.drop_last}; batch_size={loader.batch_size}"
    )


def set_epoch_of_sampler(loader: DataLoader[Any], epoch: int) -> None:
    """Call ``set_epoch`` of the sampler, of the batch sampler, and of the batch sampler's sampler."""
    direct: list[Any] = [loader.sampler, loader.batch_sampler]
    samplers: dict[int, Any] = {
        id(sampler): sampler for outer in direct for sampler in (outer, getattr(outer, "sampler", None))
    }
    for sampler in samplers.values():
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
