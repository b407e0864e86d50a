"""Functional names that are registered before their pipes are imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from torchdata_remote.core import functional_names
from torchdata_remote.core.functional_names import FunctionalNames, ImportedWhenCalled, make_room

MODULE = "defines_datapipes_for_a_test"
SOURCE = "class IterDataPipe:\n    functions = {}\n"


@pytest.fixture
def defining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module in the place of torch's, which has not been imported."""
    path = tmp_path / f"{MODULE}.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(functional_names, "_DEFINING_MODULES", (MODULE,))
    finders = list(sys.meta_path)
    yield path
    sys.modules.pop(MODULE, None)
    sys.meta_path[:] = finders


class Pipes:
    """Pipes that register themselves when they are imported, as torch registers them."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}
        self.num_imports = 0

    def load(self) -> None:
        if self.num_imports == 0:
            make_room("twice", self.functions)
            assert "twice" not in self.functions
            self.functions["twice"] = twice
        self.num_imports += 1


def twice(source: list[int], *, times: int = 2) -> list[int]:
    """Repeat."""
    return source * times


def test_a_call_imports_the_pipes_and_passes_its_arguments_on() -> None:
    """The real function takes the place of the announced one."""
    pipes = Pipes()
    FunctionalNames(["twice"], pipes.load).register(pipes.functions)
    announced = pipes.functions["twice"]
    assert isinstance(announced, ImportedWhenCalled)
    assert pipes.num_imports == 0
    assert announced([1], times=3) == [1, 1, 1]
    assert pipes.functions["twice"] is twice
    assert announced([1]) == [1, 1]


def test_the_docstring_is_that_of_the_pipe() -> None:
    """``help(pipe.twice)`` imports the pipe."""
    pipes = Pipes()
    FunctionalNames(["twice"], pipes.load).register(pipes.functions)
    assert pipes.functions["twice"].__doc__ == "Repeat."


def test_names_that_are_taken_are_left_alone() -> None:
    """Also by ``make_room``, so that torch refuses to register a pipe under a name of the user's."""
    functions: dict[str, Callable[..., Any]] = {"twice": len}
    FunctionalNames(["twice"], lambda: None).register(functions)
    make_room("twice", functions)
    assert functions == {"twice": len}


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
    assert not isinstance(module.__loader__, functional_names._Loader)


def test_other_modules_are_left_to_other_finders(defining: Path) -> None:
    FunctionalNames(["twice"], lambda: None).register_when_imported()
    finder: Any = sys.meta_path[0]
    assert finder.find_spec("json", None) is None


def test_looking_for_the_module_does_not_end_the_wait(defining: Path) -> None:
    """``importlib.util.find_spec`` imports nothing."""
    FunctionalNames(["twice"], lambda: None).register_when_imported()
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


def test_a_module_that_does_not_exist_is_reported_as_ever(defining: Path) -> None:
    defining.unlink()
    FunctionalNames(["twice"], lambda: None).register_when_imported()
    with pytest.raises(ModuleNotFoundError, match=MODULE):
        import_module(MODULE)
