"""What is read of Lightning's loops; with Lightning itself in ``tests/trainers/test_lightning.py``."""

from __future__ import annotations

from torchdata_remote.core.frameworks.lightning_loops import asks_all_ranks, current_fetcher, current_fit_loop


def test_no_loop_is_found_where_lightning_does_not_run() -> None:
    """Loaders look for one in each pass, whatever iterates them."""
    assert not asks_all_ranks()
    assert current_fetcher() is None
    assert current_fit_loop(object()) is None
