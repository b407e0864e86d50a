"""Read torch's loaders to an error without waiting for their workers."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from torchdata_remote.loaders.torchdata_iterator import ended_on_error


def read_all(loader: DataLoader[Any]) -> list[Any]:
    """Return all batches; after an error, end the workers at once."""
    batches = iter(loader)
    return list(ended_on_error(batches, batches))
