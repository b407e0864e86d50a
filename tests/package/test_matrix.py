"""The version matrix installs what setup.cfg declares, and does not count sessions that cannot run."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.support.paths import ROOT


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script, with an environment of its own."""
    spec = importlib.util.spec_from_file_location("matrix", ROOT / ".ci" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "matrix", module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return module


def test_the_oldest_session_has_each_declared_lower_bound(matrix: ModuleType) -> None:
    """Every dependency has a lower bound, and is installed at it."""
    declared = list(map(Requirement, matrix.requirements()))
    oldest = list(map(Requirement, matrix.lower_bounds()))
    for wanted, installed in zip(declared, oldest, strict=True):
        bounds = {Version(part.version) for part in wanted.specifier if part.operator == ">="}
        assert [part.operator for part in installed.specifier] == ["=="], wanted
        assert {Version(part.version) for part in installed.specifier} == bounds
        assert (installed.name, installed.marker) == (wanted.name, wanted.marker)


def test_each_declared_python_has_a_session(matrix: ModuleType) -> None:
    """The classifiers name the versions that are run."""
    declared = set(re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text()))
    assert {session.python for session in matrix.SESSIONS} == declared


def test_session_without_interpreter_is_not_counted_as_passed(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an interpreter, or with a shim that does not run, nothing is installed or passed."""
    monkeypatch.setattr(matrix, "interpreters", lambda version: iter(["/bin/false"]))
    result, shown = matrix.run(matrix.SESSIONS[0], smoke=True, arguments=[])
    assert result.startswith("not run: no Python 3.")
    assert not shown
