"""Each mistake of a user gets an error that says what came, what was expected, and what to do.

``python -m pytest tests/mistakes --table`` prints a row for each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from . import commands, datasets, labels, loaders, options, pipes, service, writing
from .mistake import Mistake, matches, outcome_of

TABLES = (pipes, loaders, datasets, writing, options, labels, service, commands)
ROWS = [
    pytest.param(group, mistake, id=f"{group}: {mistake.what}")
    for table in TABLES
    for group, mistakes in table.TABLE.items()
    for mistake in mistakes
]


@pytest.mark.parametrize(("group", "mistake"), ROWS)
def test_a_mistake_is_explained(
    group: str, mistake: Mistake, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """The class of the error and its text are those of the table; so is the value of what is no mistake here."""
    outcome = outcome_of(mistake.code, tmp_path)
    record_property("row", [group, mistake.what, mistake.code, outcome.error and outcome.error.__name__, outcome.text])
    assert outcome.error is mistake.error, outcome
    assert matches(outcome.text, mistake.text), outcome.text


def test_no_mistake_is_listed_twice() -> None:
    """A row that is repeated shows nothing new."""
    codes = [mistake.code for table in TABLES for mistakes in table.TABLE.values() for mistake in mistakes]
    assert [code for code in codes if codes.count(code) > 1] == []
