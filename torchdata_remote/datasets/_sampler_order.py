"""The order of a sampler, as a state knows it again."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from ..errors import StateError
from ._epoch import Epoch


class SamplerOrder:
    """One pass over the batches of a ``DataLoader``'s sampler.

    Args:
        loader: which has the sampler.
        batches_done: of the epoch, before the pass.
        order: as :meth:`state` told it, of these batches; ``None`` at the beginning of an epoch.
    """

    def __init__(self, loader: DataLoader[Any], batches_done: int, order: str | None) -> None:
        self._loader, self.batches_done, self._order = loader, batches_done, order
        self._known = _name_of(loader)
        self._epoch: Epoch | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def num_left(self) -> int:
        """Batches of the pass."""
        return len(self._loader) - self.batches_done

    def num_in_epoch(self) -> int:
        """Batches of a whole epoch."""
        return len(self._loader)

    def batches(self) -> Any:
        """All batches of the epoch."""
        if self._loader.batch_sampler is None:
            return ([index] for index in self._loader.sampler)
        return self._loader.batch_sampler

    def check(self, epoch: Epoch) -> None:
        """Compare the order that was drawn with that of the state.

        Raises:
            StateError: if it is another one.
        """
        self._epoch = epoch
        if self.batches_done and self._order != self._name():
            raise StateError(
                f"PrefetchingLoader: the state was saved in the order {self._order!r}, and the sampler gives "
                f"{self._name()!r}. Let it give the same order again (seed its generator as it was at the beginning of "
                "the epoch, call its set_epoch); or pass no sampler but shuffle=True and seed=, whose state can be "
                "resumed by any number of ranks."
            )

    def _name(self) -> str | None:
        return self._known or (None if self._epoch is None else f"digest {self._epoch.digest()}")

    def state(self, num_batches: int) -> dict[str, Any]:
        """Where this rank is after so many batches of the pass: plain JSON."""
        done = self.batches_done + num_batches
        return {"order": self._order if self._epoch is None else self._name(), "batches_done": done}


def _name_of(loader: DataLoader[Any]) -> str | None:
    """What a ``DistributedSampler``'s order depends on, which all ranks have in common; ``None`` for others."""
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
    """Call ``set_epoch`` of a loader's sampler, or batch sampler, or its sampler, where there is one."""
    given: list[Any] = [loader.sampler, loader.batch_sampler]
    samplers: dict[int, Any] = {id(found): found for one in given for found in (one, getattr(one, "sampler", None))}
    for sampler in samplers.values():
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
