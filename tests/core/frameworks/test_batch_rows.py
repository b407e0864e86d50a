"""Rows of batches: what becomes a batch without a copy, and what must not."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from torchdata_remote.core.frameworks.batch_rows import BatchRows, Memory, stack_rows
from torchdata_remote.core.frameworks.collating import collate_samples

DTYPES = [torch.uint8, torch.float32, torch.float16, torch.bfloat16]


def filled(rows: BatchRows, count: int, dtype: torch.dtype = torch.uint8, **options: Any) -> list[torch.Tensor]:
    return [rows.take((2, 3), dtype, **options).fill_(at) for at in range(count)]


def is_view(batch: torch.Tensor, tensors: list[torch.Tensor]) -> bool:
    return [row.data_ptr() for row in batch] == [tensor.data_ptr() for tensor in tensors]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("memory", ["process", "shared"])
def test_rows_in_order_are_a_batch_without_a_copy(memory: Memory, dtype: torch.dtype) -> None:
    """Whole blocks, and the beginning of a block for the last batch of an epoch."""
    rows = BatchRows(4, memory)
    tensors = filled(rows, 10, dtype)
    for begin, end in ((0, 4), (4, 8), (8, 10)):
        batch = rows.stack(tensors[begin:end])
        assert is_view(batch, tensors[begin:end])
        assert batch.shape == (end - begin, 2, 3)
        assert batch.dtype == dtype
        assert batch[:, 0, 0].tolist() == list(range(begin, end))
        is_shared: Any = batch.is_shared
        assert is_shared() == (memory == "shared")


@pytest.mark.parametrize(
    "chosen", [[0, 2], [1, 0], [0, 0], [3, 4], [0, 1, 2, 3, 4]], ids=["gap", "order", "twice", "blocks", "longer"]
)
def test_other_rows_are_copied(chosen: list[int]) -> None:
    """The batch has the right content, and memory of its own."""
    tensors = filled(BatchRows(4), 8)
    batch = stack_rows([tensors[at] for at in chosen])
    assert torch.equal(batch, torch.stack([tensors[at] for at in chosen]))
    assert not {row.data_ptr() for row in batch} & {tensor.data_ptr() for tensor in tensors}


def test_tensors_of_others_are_copied() -> None:
    """Also consecutive rows of a user's tensor, which a change of the batch must not change."""
    data = torch.arange(12).reshape(4, 3)
    batch = stack_rows(list(data))
    batch.zero_()
    assert data.sum() == 66
    rows = BatchRows(2)
    mixed = [rows.take((3,), torch.int64).fill_(1), data[0]]
    assert stack_rows(mixed).tolist() == [[1, 1, 1], [0, 1, 2]]


def test_a_second_batch_of_the_same_rows_is_a_copy() -> None:
    """No two batches share memory."""
    tensors = filled(BatchRows(2), 2)
    first, second = stack_rows(tensors), stack_rows(tensors)
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
        assert torch.equal(stack_rows(tensors), expected)
        assert expected.requires_grad == stack_rows(tensors).requires_grad


def test_members_of_equal_shape_have_blocks_of_their_own() -> None:
    """Each member of a sample becomes a batch without a copy."""
    rows = BatchRows(3)
    samples = [{name: rows.take((2,), torch.uint8, member=name) for name in ("left", "right")} for _ in range(3)]
    batch = collate_samples(samples)
    for name in ("left", "right"):
        assert is_view(batch[name], [sample[name] for sample in samples])


def test_restart_begins_a_new_block() -> None:
    """So that the batches of the next pass begin with one."""
    rows = BatchRows(4)
    filled(rows, 3)
    rows.restart()
    tensors = filled(rows, 4)
    assert is_view(stack_rows(tensors), tensors)


def test_memory_is_used_again_once_its_last_tensor_is_freed() -> None:
    """Not before: a slice, a NumPy view or a row keeps all of it."""
    rows = BatchRows(2)

    def batch() -> torch.Tensor:
        return stack_rows(filled(rows, 2))

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


def test_memory_outlives_the_object_it_was_taken_from() -> None:
    """A batch stays valid after its loader is gone."""
    rows = BatchRows(2)
    kept = stack_rows(filled(rows, 2))
    del rows
    gc.collect()
    assert kept[:, 1, 2].tolist() == [0, 1]


def test_threads_take_each_row_once() -> None:
    """Rows taken at the same time have memory of their own."""
    rows = BatchRows(8)
    taken: list[torch.Tensor] = []
    started = threading.Barrier(4)

    def take() -> None:
        started.wait()
        taken.extend([rows.take((4,), torch.uint8) for _ in range(50)])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({row.data_ptr() for row in taken}) == 200


@pytest.mark.parametrize("seen", [True, False])
def test_collate_samples_agrees_with_torch(seen: bool) -> None:
    """In structure, dtype and value, whether tensors are rows or not."""
    rows = BatchRows(3)
    samples = [
        {"jpg": (rows.take((2,), torch.float32) if seen else torch.empty(2)).fill_(at), "cls": at, "key": str(at)}
        for at in range(3)
    ]
    expected = default_collate(samples)
    batch = collate_samples(samples)
    assert batch.keys() == expected.keys()
    assert torch.equal(batch["jpg"], expected["jpg"])
    assert torch.equal(batch["cls"], expected["cls"])
    assert batch["key"] == expected["key"]


def test_a_collate_function_that_was_registered_for_tensors_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's map of types can be extended."""
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map=None: len(batch))
    assert collate_samples(filled(BatchRows(2), 2)) == 2


def test_it_pickles_without_its_memory() -> None:
    """A chain that has it can be sent to workers."""
    rows = BatchRows(1000, "shared")
    rows.take((1000,), torch.uint8)
    data = pickle.dumps(rows)
    assert len(data) < 500
    copied = pickle.loads(data)
    assert (copied.batch_size, copied.memory) == (1000, "shared")


def test_another_memory_is_an_error() -> None:
    """It names what there is."""
    with pytest.raises(ValueError, match="memory must be one of process, pinned, shared, got 'gpu'"):
        BatchRows(2, "gpu")  # type: ignore[arg-type]
