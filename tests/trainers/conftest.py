"""The dataset of all rows; ``--table`` runs each framework with each loader in all ways, and prints the results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .data import write_dataset
from .launch import ROWS, close_server, table

collect_ignore_glob = ["*_program.py"]  # what ranks run; some import frameworks


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--table", default=False):
        terminalreporter.write_line("\n" + table(ROWS))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the 120 images, as shards and as loose files."""
    folder = tmp_path_factory.mktemp("trainers")
    write_dataset(folder)
    return folder


@pytest.fixture(scope="session")
def complete(request: pytest.FixtureRequest) -> bool:
    """Whether to run the whole product of frameworks, loaders, ranks and workers instead of all pairs."""
    return bool(request.config.getoption("--table", default=False))


@pytest.fixture(scope="session", autouse=True)
def _server_of_ranks() -> Iterator[None]:
    yield
    close_server()
