"""For all tests: their order, the names that examples in docstrings may use, and a small heap for the collector."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import World

TESTS = Path(__file__).parent / "tests"
LONGEST = (TESTS / "trainers", TESTS / "integration", TESTS / "repository")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order below: pytest-xdist would begin with the modules that have most tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests that start many processes, so that no test process waits for them at the end."""
    items.sort(key=lambda item: not any(item.path.is_relative_to(folder) for folder in LONGEST))


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
