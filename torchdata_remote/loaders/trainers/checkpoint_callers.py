"""Detect frameworks that ask every rank for its state and store one answer for all of them."""

from __future__ import annotations

from ...core.frameworks.call_stack import callers
from ...core.frameworks.lightning_loops import asks_all_ranks

_SAVERS = ("torch.distributed.checkpoint", "accelerate.checkpointing")


def stores_one_for_all_ranks() -> bool:
    """Whether the caller is such a framework."""
    return asks_all_ranks() or any(True for _ in callers(*_SAVERS))
