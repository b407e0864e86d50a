"""The nearest of the known names."""

from __future__ import annotations

import pytest

from torchdata_remote.core.arguments.suggestions import did_you_mean

KNOWN = ["max_in_flight", "max_buffer_bytes", "storage_options"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_inflight", "max_in_flight"),
        ("MAX_IN_FLIGHT", "max_in_flight"),
        ("max-in-flight", "max_in_flight"),
        ("storage_option", "storage_options"),
        ("max_bufer_bytes", "max_buffer_bytes"),
    ],
)
def test_a_near_name_is_suggested(name: str, meant: str) -> None:
    """Letters, case, underscores and hyphens may differ."""
    assert did_you_mean(name, KNOWN) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("name", ["", "xyz", "q" * 1000])
def test_a_far_name_is_not(name: str) -> None:
    """A guess would mislead."""
    assert did_you_mean(name, KNOWN) == ""
    assert did_you_mean("pattern", []) == ""
