"""The dataset of all rows; ``--table`` prints what came of each framework with each loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from .data import write_dataset
from .launch import ROWS, table

collect_ignore_glob = ["*_program.py"]  # what ranks run; some import frameworks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--table", action="store_true", help="print what each trainer gave with each loader, as Markdown")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--table", default=False):
        terminalreporter.write_line("\n" + table(ROWS))


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the 120 images, as shards and as loose files."""
    folder = tmp_path_factory.mktemp("trainers")
    write_dataset(folder)
    return folder
