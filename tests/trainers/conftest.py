"""The dataset of all frameworks; ``--table`` runs each with each loader in all ways, and prints the results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launch import close_server

from .data import Cells, cells_of, write_dataset
from .table import markdown

collect_ignore_glob = ["*_program.py"]  # what ranks run; some import frameworks


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--table", default=False):
        terminalreporter.write_line("\n" + markdown())


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the 120 images, as shards and as loose files."""
    folder = tmp_path_factory.mktemp("trainers")
    write_dataset(folder)
    return folder


@pytest.fixture(scope="session")
def cells(request: pytest.FixtureRequest) -> dict[int, Cells]:
    """For each number of ranks, loaders and numbers of workers of the epochs: some, or the whole product."""
    complete = bool(request.config.getoption("--table", default=False))
    return {size: cells_of(size, complete=complete) for size in (1, 2, 3, 4)}


@pytest.fixture(scope="module", autouse=True)
def _server_of_ranks() -> Iterator[None]:
    yield
    close_server()
