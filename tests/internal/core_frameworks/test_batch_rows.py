"""Rows of batches: what becomes a batch without a copy, and what must not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchdata_remote.core.batch_memory import BatchRows, Memory
from torchdata_remote.core.collating import LoaderCollate, collate_samples

DTYPES = [torch.uint8, torch.float32, torch.float16, torch.bfloat16]


def filled(rows: BatchRows, count: int, dtype: torch.dtype = torch.uint8, **options: Any) -> list[torch.Tensor]:
    return [rows.take((2, 3), dtype, **options).fill_(at) for at in range(count)]


def places(tensors: list[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def batch_of(samples: list[Any]) -> Any:
    """As a loader makes it, whose fetcher drops the list."""
    return LoaderCollate(collate_samples)(samples)


def is_block(batch: torch.Tensor, of_rows: list[int]) -> bool:
    """Whether the batch is the memory of its rows; the last one has memory of its own."""
    return places(list(batch))[:-1] == of_rows[:-1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("memory", ["process", "shared"])
def test_rows_in_order_are_a_batch_without_a_copy(memory: Memory, dtype: torch.dtype) -> None:
    """But for the last row, to which the chain still refers."""
    rows = BatchRows(4, memory)
    for _ in range(2):
        tensors = filled(rows, 4, dtype)
        last, of_rows = tensors[-1], places(tensors)
        batch = batch_of(tensors)
        assert is_block(batch, of_rows)
        assert (batch.shape, batch.dtype) == ((4, 2, 3), dtype)
        assert batch[:, 0, 0].tolist() == list(range(4))
        is_shared: Any = batch.is_shared
        assert is_shared() == (memory == "shared")
        batch.fill_(9)
        assert last.tolist() == [[3] * 3] * 2


def test_a_partial_batch_is_a_copy() -> None:
    """It would keep the memory of a whole block, which ``torch.save`` writes."""
    batch = batch_of(filled(BatchRows(64), 3))
    assert batch.untyped_storage().nbytes() == 3 * 6


def test_rows_behind_a_filter_are_single_tensors() -> None:
    """Each that is left would keep the memory of a batch."""
    rows = BatchRows(8)
    kept = [rows.take((1000,), torch.uint8) for _ in range(64)][::8]
    gc.collect()
    kept += [rows.take((1000,), torch.uint8) for _ in range(16)]
    assert {row.untyped_storage().nbytes() for row in kept[8:]} == {1000}
    rows.restart()
    assert rows.take((1000,), torch.uint8).untyped_storage().nbytes() == 8000


def test_rows_are_ordinary_tensors_in_memory() -> None:
    """In whatever mode, and with whatever default device, they are taken and collated."""
    with torch.inference_mode(), torch.device("meta"):
        for memory in ("process", "shared"):
            rows = BatchRows(2, memory)
            for _ in range(2):
                samples = [
                    (rows.take((3,), torch.float32).fill_(at), torch.ones(1 << 20, device="cpu")) for at in (0, 1)
                ]
                batch, large = batch_of(samples)
                assert not batch.is_inference()
                assert not large.is_inference()
                assert (batch.device.type, large.device.type) == ("cpu", "cpu")
    weight = torch.ones(3, requires_grad=True)
    (batch * weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize(
    "chosen",
    [[0, 2, 3, 4], [1, 0, 2, 3], [0, 0, 1, 2], [1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1, 2]],
    ids=["gap", "order", "twice", "blocks", "longer", "shorter"],
)
def test_other_rows_are_copied(chosen: list[int]) -> None:
    """The batch has the right content, and memory of its own."""
    tensors = filled(BatchRows(4), 8)
    batch = batch_of([tensors[at] for at in chosen])
    assert torch.equal(batch, torch.stack([tensors[at] for at in chosen]))
    assert not {row.data_ptr() for row in batch} & {tensor.data_ptr() for tensor in tensors}


def test_a_second_batch_of_the_same_rows_is_a_copy() -> None:
    """No two batches share memory."""
    tensors = filled(BatchRows(2), 2)
    first, second = batch_of([*tensors]), batch_of(tensors)
    first.fill_(9)
    assert second[:, 0, 0].tolist() == [0, 1]


def test_rows_that_were_given_other_memory_are_copied() -> None:
    """By ``set_``, ``resize_`` or ``transpose_`` in place, or if they need a gradient."""
    changes: list[Callable[[Any], Any]] = [
        lambda row: row.set_(torch.full((2, 3), 7.0)),
        lambda row: row.transpose_(0, 1),
        lambda row: row.requires_grad_(),
    ]
    for change in changes:
        tensors = filled(BatchRows(2), 2, torch.float32)
        for tensor in tensors:
            change(tensor)
        expected = torch.stack(tensors)
        batch = batch_of(tensors)
        assert torch.equal(batch, expected)
        assert expected.requires_grad == batch.requires_grad
