"""Mistakes of users: each gets an error that says what came, what was expected, and what to do.

``mistakes.json`` has a list for each subject: what was done, the code, the class of the error (null if the code works),
and its text, in which ``...`` stands for anything. ``python -m pytest tests/mistakes --table`` prints a row for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .mistake import matches, outcome_of

TABLE: dict[str, list[tuple[str, str, str | None, str]]] = json.loads(
    Path(__file__).with_name("mistakes.json").read_text("utf-8")
)


@pytest.mark.parametrize(
    ("subject", "what", "code", "error", "text"),
    [pytest.param(subject, *row, id=f"{subject}: {row[0]}") for subject, rows in TABLE.items() for row in rows],
)
def test_a_mistake_is_explained(
    subject: str,
    what: str,
    code: str,
    error: str | None,
    text: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    outcome = outcome_of(code, tmp_path)
    record_property("row", [subject, what, code, *outcome])
    assert (outcome[0], matches(outcome[1], text)) == (error, True), outcome
