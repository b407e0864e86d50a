"""Make batches of the items of a pass, as torch's loader does without workers, and copy them to a device."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any

from .device_copies import BatchCopies, Event


class StoppedError(Exception):
    """The consumer takes no more batches."""


class BatchMaker:
    """Makes the batches of a pass; used by one thread.

    Args:
        items: of the pass.
        loader: with the options of torch's loaders.
        copies: pins batches and copies them to a device.
    """

    def __init__(self, items: Iterator[Any], loader: Any, copies: BatchCopies) -> None:
        self._items = self._until_stopped(items)
        self._batch_size: int = loader.batch_size or 0
        self._drop_last: bool = loader.drop_last
        self._copies = copies
        # By these names pipes recognize a loader of torch
        self.auto_collation, self.collate_fn = loader.batch_size is not None, loader.collate_fn
        self.is_stopped = False

    def fetch(self) -> tuple[Any, Event | None]:
        """Make the next batch.

        Returns:
            The batch, and what the consumer has to wait for, if it is being copied to a device.

        Raises:
            StopIteration: if there is none.
            StoppedError: if ``is_stopped`` was set.
        """
        if not self.auto_collation:
            return self._copies.made(self.collate_fn(next(self._items)))
        samples = list(islice(self._items, self._batch_size))
        if not samples or (self._drop_last and len(samples) < self._batch_size):
            raise StopIteration
        return self._copies.made(self.collate_fn(samples))

    def close(self) -> None:
        """End the pass: its requests and streams are closed."""
        self._items.close()

    def _until_stopped(self, items: Iterator[Any]) -> Generator[Any, None, None]:
        try:
            for item in items:
                if self.is_stopped:
                    raise StoppedError
                yield item
        finally:
            if hasattr(items, "close"):
                items.close()
