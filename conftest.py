"""For all tests: the names that examples in docstrings may use, and a small heap for the garbage collector."""

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
def _freeze_objects_of_earlier_modules() -> None:
    """Exclude the objects of earlier modules from garbage collection.

    torch and the other imports have 200,000 objects, and each bucket that was used adds 1,000 for its client. A full
    collection, of which tests ask for many, would look at all of them: 0.15 s for each 240,000 on an idle machine.
    """
    gc.collect()
    gc.freeze()
