"""Each mistake of a user gets an error that says what came, what was expected, and what to do.

``python -m pytest tests/mistakes --table`` prints a row for each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import torchdata_remote as tdr

from . import commands, datasets, labels, loaders, options, pipes, service, stores, training, writing
from .mistake import Mistake, matches, outcome_of

TABLES = (pipes, loaders, datasets, writing, options, labels, service, commands, stores, training)
ROWS = [
    pytest.param(group, mistake, id=f"{group}: {mistake.what}")
    for table in TABLES
    for group, mistakes in table.TABLE.items()
    for mistake in mistakes
]
# What users get, hand on, or name, rather than call
NOT_CALLED = {
    "Backend", "EqualizeMode", "IndexedSample", "IterDataPipe", "IterableWrapper", "MixPhase", "MixReport", "Mixed",
    "ShardInfo", "Skipped", "Snapshot", "Stats", "Stop", "TransferProgress", "Transferred", "accept_missing_end",
    "raise_error",
    "skip_with_warning",
}  # fmt: skip


@pytest.mark.parametrize(("group", "mistake"), ROWS)
def test_a_mistake_is_explained(
    group: str, mistake: Mistake, tmp_path: Path, record_property: Callable[[str, object], None]
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


def test_each_public_function_has_a_table() -> None:
    """One that is added brings the mistakes that users will make with it; a pipe is listed by its functional name."""
    groups = {group for table in TABLES for group in table.TABLE}
    classes = {"".join(word.capitalize() for word in group.split("_")) for group in pipes.TABLE}
    public = {name for name in tdr.__all__ if callable(getattr(tdr, name))}
    assert public - NOT_CALLED - groups - classes == set()
