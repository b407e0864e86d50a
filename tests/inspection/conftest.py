"""Commands of which tests read the JSON."""

from __future__ import annotations

import pytest

from .shards import Said


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(capsys)
