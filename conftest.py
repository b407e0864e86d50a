"""Names that the examples in docstrings may use."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import World


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(IterableWrapper=IterableWrapper, World=World)
