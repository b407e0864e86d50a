"""The environment variable that makes processes record themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from torchdata_remote.core.stats.from_environment import record_if_asked
from torchdata_remote.core.stats.variable import STATS_VARIABLE


@pytest.mark.parametrize("folder", ["/stats", "s3://b/stats", ""])
def test_what_is_no_relative_folder_stays(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a URL, which is refused later by the name that the user gave it."""
    monkeypatch.setenv(STATS_VARIABLE, folder)
    record_if_asked()
    assert os.environ[STATS_VARIABLE] == folder


@pytest.mark.system
def test_a_relative_folder_is_that_of_the_import(tmp_path: Path) -> None:
    """Although the working directory changes before the first sample is read."""
    program = f"import os, torchdata_remote; os.chdir('/'); print(os.environ[{STATS_VARIABLE!r}])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), STATS_VARIABLE: "stats"}
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(tmp_path / "stats")
