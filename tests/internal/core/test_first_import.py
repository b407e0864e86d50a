"""A module is imported at its first use: by one thread at a time, also after a fork."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from pathlib import Path

import pytest

from torchdata_remote.core import functional_names as first_import
from torchdata_remote.core.functional_names import import_first

DEADLINE_S = 60


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of two modules, of which one imports the other, which has not been imported."""
    name = "package_for_a_test_of_first_imports"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "inner.py").write_text("value = 1\n")
    (tmp_path / name / "outer.py").write_text(
        "from torchdata_remote.core.functional_names import import_first\n"
        "value = import_first('.inner', __package__, after_torch=False).value\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("", ".inner", ".outer"):
        monkeypatch.delitem(sys.modules, f"{name}{module}", raising=False)
    return name


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_does_not_wait_for_an_import_of_another_thread(package: str) -> None:
    """The child has no such thread, which would end the import."""
    holds, ends = threading.Barrier(2), threading.Barrier(2)

    def hold() -> None:
        with first_import._one_at_a_time:
            holds.wait(DEADLINE_S)
            ends.wait(DEADLINE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(DEADLINE_S)
    child = multiprocessing.get_context("fork").Process(
        target=import_first, args=(".inner", package), kwargs={"after_torch": False}
    )
    child.start()
    ends.wait(DEADLINE_S)
    thread.join()
    child.join(DEADLINE_S)
    child.kill()
    child.join()
    assert child.exitcode == 0
