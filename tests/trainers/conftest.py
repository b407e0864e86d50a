from __future__ import annotations

from pathlib import Path

import pytest

from .data import write_dataset


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the 120 images, as shards and as loose files."""
    folder = tmp_path_factory.mktemp("trainers")
    write_dataset(folder)
    return folder
