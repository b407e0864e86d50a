"""States after the last batches of a loader: :mod:`torchdata_remote.read_ahead`."""

from __future__ import annotations

from ..read_ahead import ReadAhead, TakeState

__all__ = ["ReadAhead", "TakeState"]
