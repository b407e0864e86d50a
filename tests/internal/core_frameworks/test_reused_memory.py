"""Memory of batches that is used again."""

from __future__ import annotations

import torch
from torch.utils.data import default_collate

from torchdata_remote.core.frameworks.collating import collate_samples
from torchdata_remote.core.frameworks.reused_memory import ReusedMemory

LARGE = (64, 1 << 14)  # floats of a batch that is stacked into memory that is used again


def test_memory_is_handed_out_again_when_its_last_tensor_is_freed() -> None:
    """Views and arrays keep it."""
    memory = ReusedMemory()
    first = memory.take(64)
    place, view, array = first.data_ptr(), first[8:], first[:8].numpy()
    del first
    assert memory.take(64).data_ptr() != place
    del view
    second = memory.take(64)
    assert second.data_ptr() != place
    del array
    assert place in {tensor.data_ptr() for tensor in [memory.take(64), memory.take(64)]}


def test_batches_that_are_stacked_use_memory_again() -> None:
    """Each batch stays as it is while it is held."""
    samples = [torch.full(LARGE[1:], float(number)) for number in range(LARGE[0])]
    first = collate_samples(samples)
    second = collate_samples(samples[::-1])
    assert first.shape == second.shape == LARGE
    assert torch.equal(first, default_collate(samples))
    assert torch.equal(second, first.flip(0))
    places = {first.data_ptr(), second.data_ptr()}
    del first, second
    assert collate_samples(samples).data_ptr() in places


def test_other_tensors_are_stacked_by_torch() -> None:
    """Small ones, those with a gradient, subclasses, and different shapes, which are torch's error."""
    large = torch.zeros(1 << 20)
    assert collate_samples([large.requires_grad_(), large]).requires_grad
    assert collate_samples([torch.zeros(2), torch.ones(2)]).tolist() == [[0, 0], [1, 1]]
    parameter = torch.nn.Parameter(torch.zeros(1 << 20))
    assert collate_samples([parameter, parameter]).grad_fn is not None
    mixed = collate_samples([torch.zeros(1 << 20), torch.ones(1 << 20, dtype=torch.float64)])
    assert mixed.dtype == torch.float64
