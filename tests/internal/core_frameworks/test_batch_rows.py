"""Rows of batches: what becomes a batch without a copy, and what must not."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch.utils.data import default_collate

from torchdata_remote.core.frameworks.batch_rows import BatchRows, Memory
from torchdata_remote.core.frameworks.collating import LoaderCollate, collate_samples

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


HOLDING: dict[str, Callable[[torch.Tensor], Any]] = {
    "row": lambda row: row,
    "view": lambda row: row[0],
    "array": lambda row: row.numpy(),
    "array of a view": lambda row: row[1:].numpy()[..., ::2],
    "detached": lambda row: row.detach(),
    "storage": lambda row: row.untyped_storage(),
    "dlpack": lambda row: row.__dlpack__(),
}


@pytest.mark.parametrize("holding", HOLDING.values(), ids=HOLDING)
def test_a_change_of_a_batch_does_not_change_rows_that_are_held(holding: Callable[[torch.Tensor], Any]) -> None:
    """A function of the chain may keep samples, such as those that it mixes with the next ones."""
    rows = BatchRows(4)
    tensors = filled(rows, 4)
    held, begin = holding(tensors[1]), tensors[0].data_ptr()
    batch = batch_of(tensors)
    assert batch[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert not begin <= batch.data_ptr() < begin + 24
    del held
    tensors = filled(BatchRows(4), 4)
    begin = tensors[0].data_ptr()
    assert batch_of(tensors).data_ptr() == begin


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


def test_tensors_of_others_are_copied() -> None:
    """Also consecutive rows of a user's tensor, which a change of the batch must not change."""
    data = torch.arange(12).reshape(4, 3)
    batch = batch_of(list(data))
    batch.zero_()
    assert data.sum() == 66
    rows = BatchRows(2)
    mixed = [rows.take((3,), torch.int64).fill_(1), data[0]]
    assert batch_of(mixed).tolist() == [[1, 1, 1], [0, 1, 2]]


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


def test_memory_is_used_again_once_its_last_tensor_is_freed() -> None:
    """Not before: a slice, a NumPy view or a row keeps all of it."""
    rows = BatchRows(2)

    def batch() -> torch.Tensor:
        return cast(torch.Tensor, batch_of(filled(rows, 2)))

    keeping: list[Callable[[torch.Tensor], Any]] = [
        lambda made: made,
        lambda made: made[1:],
        lambda made: made.numpy(),
        lambda made: made.view(-1),
    ]
    for keep in keeping:
        kept = keep(batch())
        gc.collect()
        begin = kept.__array_interface__["data"][0] if not isinstance(kept, torch.Tensor) else kept.data_ptr()
        others = [batch() for _ in range(3)]
        assert begin not in {other.data_ptr() + offset for other in others for offset in range(12)}
        del kept, others
    addresses = {batch().data_ptr() for _ in range(10)}
    assert len(addresses) == 1


@pytest.mark.parametrize("seen", [True, False])
def test_collate_samples_agrees_with_torch(seen: bool) -> None:
    """In structure, dtype and value, whether tensors are rows or not."""
    rows = BatchRows(3)
    samples = [
        {"jpg": (rows.take((2,), torch.float32) if seen else torch.empty(2)).fill_(at), "cls": at, "key": str(at)}
        for at in range(3)
    ]
    expected = default_collate(samples)
    assert torch.equal(collate_samples(samples)["jpg"], expected["jpg"])
    batch = batch_of(samples)
    assert batch.keys() == expected.keys()
    assert torch.equal(batch["jpg"], expected["jpg"])
    assert torch.equal(batch["cls"], expected["cls"])
    assert batch["key"] == expected["key"]
