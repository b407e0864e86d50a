"""Small shards that workers of every kind see."""

from __future__ import annotations

import pytest

from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SAMPLES_PER_SHARD = 6, 4
ALL_KEYS = sorted(f"{number % 10}/{number:06d}" for number in range(NUM_SHARDS * SAMPLES_PER_SHARD))
IGNORED = (
    "ignore:This DataLoader will create:UserWarning",
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:This process was forked from one:RuntimeWarning",  # obstore, by other tests
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Forked workers are warned of by torch, Python and the package."""
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.filterwarnings(*IGNORED), append=False)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six local shards of four samples each, with a manifest."""
    path = str(tmp_path_factory.mktemp("shards"))
    write_small_shards(path, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
    return path
