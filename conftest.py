"""For all tests: their order, and a small heap for the collector."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

pytest_plugins = ["tests.support.hung_processes"]

TESTS = Path(__file__).parent / "tests"
LONGEST = (TESTS / "trainers", TESTS / "package", TESTS / "processes", TESTS / "service")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order below: pytest-xdist would begin with the modules that have most tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the modules whose tests start many processes: few run at once, and none at the end."""
    modules = dict.fromkeys(item.path for item in items)
    long = [path for folder in LONGEST for path in modules if path.is_relative_to(folder)]
    short = [path for path in modules if path not in long]
    position = {path: number / len(group) for group in (long, short) for number, path in enumerate(group)}
    items.sort(key=lambda item: position[item.path] * (0.9 if item.path in long else 1))


@pytest.fixture(autouse=True, scope="module")
def _freeze_objects_of_earlier_modules() -> None:
    """Exclude the objects of earlier modules from garbage collection.

    torch and the other imports have 200,000 objects, and each bucket that was used adds 1,000 for its client. A full
    collection, of which tests ask for many, would look at all of them: 0.15 s for each 240,000 on an idle machine.
    """
    gc.collect()
    gc.freeze()
