"""Progress bar of a long job, on terminals only."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tqdm import tqdm

from ..core.options import MIB


class Progress:
    """A bar with rate and time left, on standard error.

    Args:
        title: what is being done.
        total: in ``unit``; ``None`` if unknown.
        unit: what is counted; ``"B"`` is shown in multiples of 1,000.
        shown: ``False`` shows nothing. Otherwise the bar is shown if standard error is a terminal.
    """

    def __init__(self, title: str, total: int | None, unit: str, *, shown: bool) -> None:
        self._bar: Any = tqdm(
            total=total, desc=title, unit=unit, unit_scale=True, disable=None if shown else True, mininterval=0.2
        )
        self._shards = self._bytes = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()

    def advance(self, amount: int) -> None:
        """Add an amount of finished work, in ``unit``."""
        self._bar.update(amount)

    def add_shards(self, num_shards: int, num_samples: int, num_bytes: int) -> None:
        """Add finished shards."""
        self._shards += num_shards
        self._bytes += num_bytes
        self._bar.set_postfix_str(f"{self._shards:,} shards, {self._bytes / MIB:,.0f} MiB", refresh=False)
        self._bar.update(num_samples)
