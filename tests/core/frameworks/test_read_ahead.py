"""What is kept of a loader's places; with Lightning and Ray themselves in ``tests/trainers``."""

from __future__ import annotations

from torchdata_remote.core.frameworks.read_ahead import ReadAhead, current_wrappers, num_ahead


def test_nothing_is_kept_where_no_framework_reads_ahead() -> None:
    """Loaders ask in each pass, whatever iterates them, and a state is large."""
    assert current_wrappers() == []
    assert num_ahead([]) == 0
    read_ahead = ReadAhead()
    read_ahead.begin(lambda: {"taken": True})
    read_ahead.handed_out(None, lambda: lambda: {"taken": True})
    assert read_ahead.first is None
    assert read_ahead.state() is None
