"""Positions before batches that nothing was trained on; with Lightning and Ray themselves in ``tests/trainers``."""

from __future__ import annotations

from torchdata_remote.core.frameworks.untrained_batches import UntrainedBatches, current_wrappers, num_ahead


def test_no_position_is_stored_where_no_framework_prefetches_batches() -> None:
    """Loaders count in each pass, whatever iterates them, and a state is large."""
    assert current_wrappers() == []
    assert num_ahead([]) == 0
    untrained = UntrainedBatches()
    untrained.start_pass(lambda: {"taken": True})
    untrained.add(None, lambda: lambda: {"taken": True})
    assert untrained.first is None
    assert untrained.state() is None
