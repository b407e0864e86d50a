"""Functional names that are registered before their pipes, and torch, are imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from torchdata_remote.core import functional_names
from torchdata_remote.core.functional_names import FunctionalNames

MODULE = "defines_datapipes_for_a_test"
SOURCE = """
class IterDataPipe:
    functions = {}

    @classmethod
    def register_datapipe_as_function(cls, function_name, cls_to_register):
        if function_name in cls.functions:
            raise Exception("taken")
        cls.functions[function_name] = cls_to_register
"""


@pytest.fixture
def defining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module in the place of torch's, which has not been imported."""
    path = tmp_path / f"{MODULE}.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(functional_names, "_DEFINING_MODULE", MODULE)
    finders = list(sys.meta_path)
    sys.meta_path[:] = [finder for finder in finders if not functional_names._waits(finder)]
    yield path
    sys.modules.pop(MODULE, None)
    sys.meta_path[:] = finders


@pytest.mark.parametrize("imported_before", [True, False])
def test_names_are_registered_when_the_module_is_there(defining: Path, imported_before: bool) -> None:
    """At once, or when it has been executed; its loader is its own, and the wait is over."""
    finders = list(sys.meta_path)
    if imported_before:
        import_module(MODULE)
    FunctionalNames(["twice"], lambda: None).register_when_imported()
    module = import_module(MODULE)
    assert list(module.IterDataPipe.functions) == ["twice"]
    assert sys.meta_path == finders
    assert module.__spec__ is not None
    assert module.__loader__ is module.__spec__.loader


def test_looking_for_the_module_does_not_end_the_wait_and_others_are_left_alone(defining: Path) -> None:
    FunctionalNames(["twice"], lambda: None).register_when_imported()
    finder: Any = sys.meta_path[0]
    assert finder.find_spec("json", None) is None
    assert importlib.util.find_spec(MODULE) is not None
    assert list(import_module(MODULE).IterDataPipe.functions) == ["twice"]


def test_a_module_that_fails_can_be_imported_again(defining: Path) -> None:
    """Its error is not changed, and the names are registered by the import that succeeds."""
    defining.write_text("raise ImportError('broken')\n")
    FunctionalNames(["twice"], lambda: None).register_when_imported()
    with pytest.raises(ImportError, match="broken"):
        import_module(MODULE)
    defining.write_text(SOURCE + "# of another length, so that the compiled file is not used\n")
    importlib.invalidate_caches()
    assert list(import_module(MODULE).IterDataPipe.functions) == ["twice"]


def test_a_pipe_of_others_may_take_a_name_and_a_third_is_refused() -> None:
    found: dict[str, Any] = {}
    exec(SOURCE, found)
    base = found["IterDataPipe"]
    FunctionalNames(["twice"], lambda: None).register(base)
    theirs = type("Theirs", (), {})
    with pytest.warns(RuntimeWarning, match="Theirs"):
        base.register_datapipe_as_function("twice", theirs)
    assert base.functions == {"twice": theirs}
    with pytest.raises(Exception, match="taken"):
        base.register_datapipe_as_function("twice", list)
