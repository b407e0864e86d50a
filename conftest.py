"""For all tests: names that the examples in docstrings may use, and a heap that stays small."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import World


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(IterableWrapper=IterableWrapper, World=World)


@pytest.fixture(autouse=True, scope="module")
def _leave_old_objects_alone() -> None:
    """The S3 server of the tests lives in this process and keeps what it was told: millions of objects in the end.

    Each garbage collection would look through all of them, which takes seconds, and many tests ask for one.
    """
    gc.collect()
    gc.freeze()
