"""The datasets that mistakes are made with; ``--table`` prints all outcomes."""

from __future__ import annotations

import pytest

from .mistake import write_datasets


@pytest.fixture(scope="session", autouse=True)
def _datasets() -> None:
    write_datasets()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--table", default=False):
        reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
        rows = [value for report in reports for name, value in report.user_properties if name == "row"]
        terminalreporter.write_line("\n" + _table(rows))


def _table(rows: list[list[str | None]]) -> str:
    """Format rows as Markdown: where, mistake, code, class of the error, text."""
    lines = ["| of | mistake | code | gives | text |", "|---|---|---|---|---|"]
    for of, what, code, error, text in rows:
        cells = (of, what, f"`{code}`", error or "no error", text)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)
