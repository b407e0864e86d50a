"""Functional names that are registered before their pipes are imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial, update_wrapper
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from torchdata_remote.core import functional_names
from torchdata_remote.core.functional_names import FunctionalNames, ImportedWhenCalled, make_room
from torchdata_remote.core.shared_names import SHARED

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


@pytest.fixture(autouse=True)
def shared() -> Iterator[dict[str, Callable[..., Any]]]:
    """The names that are shared within a test."""
    before = dict(SHARED)
    SHARED.clear()
    yield SHARED
    SHARED.clear()
    SHARED.update(before)


class Pipes:
    """Pipes that register themselves when they are imported, and their base class, with a registry as torch's."""

    def __init__(self) -> None:
        found: dict[str, Any] = {}
        exec(SOURCE, found)
        self.base = found["IterDataPipe"]
        self.functions: dict[str, Callable[..., Any]] = self.base.functions
        self.num_imports = 0

    def load(self) -> None:
        if self.num_imports == 0 and make_room("twice", Twice, self.functions):
            assert "twice" not in self.functions
            self.functions["twice"] = update_wrapper(partial(build, Twice), Twice, assigned=("__doc__",))
        self.num_imports += 1


class Twice(list[int]):
    """Repeat."""

    def __init__(self, source: list[int], *, times: int = 2) -> None:
        super().__init__(source * times)


Twice.__module__ = "torchdata_remote.pipes.twice"


class Theirs(list[int]):
    """A pipe of another package."""


def build(cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return cls(*args, **kwargs)


def test_a_call_imports_the_pipes_and_passes_its_arguments_on() -> None:
    """The real function takes the place of the announced one."""
    pipes = Pipes()
    FunctionalNames(["twice"], pipes.load).register(pipes.base)
    announced = pipes.functions["twice"]
    assert isinstance(announced, ImportedWhenCalled)
    assert pipes.num_imports == 0
    assert announced([1], times=3) == [1, 1, 1]
    assert pipes.functions["twice"].args == (Twice,)  # type: ignore[attr-defined]
    assert announced([1]) == [1, 1]


def test_the_docstring_is_that_of_the_pipe() -> None:
    """``help(pipe.twice)`` imports the pipe."""
    pipes = Pipes()
    FunctionalNames(["twice"], pipes.load).register(pipes.base)
    assert pipes.functions["twice"].__doc__ == "Repeat."


@pytest.mark.parametrize(
    "taken", [Theirs, partial(build, Theirs), len], ids=["class", "as torch registers", "function"]
)
def test_a_name_that_is_taken_is_shared(taken: Callable[..., Any], shared: dict[str, Callable[..., Any]]) -> None:
    """The registry keeps the other pipe. One warning names both, and where they met; ``shared`` has this package's."""
    pipes = Pipes()
    pipes.functions["twice"] = taken
    with pytest.warns(RuntimeWarning, match=r"torchdata_remote\.Twice and .*(Theirs|len)\.") as caught:
        FunctionalNames(["twice"], pipes.load).register(pipes.base)
    assert [warning.filename for warning in caught] == [__file__]
    assert shared["twice"]([1]) == [1, 1]
    assert shared["twice"] is Twice
    assert pipes.functions == {"twice": taken}


@pytest.mark.parametrize("loaded", [True, False])
def test_a_name_of_this_package_can_be_registered_by_another(
    loaded: bool, shared: dict[str, Callable[..., Any]]
) -> None:
    """Which is then shared, too; a third pipe is refused, as torch refuses it."""
    pipes = Pipes()
    FunctionalNames(["twice"], pipes.load).register(pipes.base)
    if loaded:
        pipes.load()
    with pytest.warns(RuntimeWarning, match="Theirs"):
        pipes.base.register_datapipe_as_function("twice", Theirs)
    assert pipes.functions == {"twice": Theirs}
    assert shared["twice"]([1]) == [1, 1]
    with pytest.raises(Exception, match="taken"):
        pipes.base.register_datapipe_as_function("twice", list)


def test_names_of_others_are_refused_as_ever() -> None:
    pipes = Pipes()
    FunctionalNames(["twice"], pipes.load).register(pipes.base)
    pipes.base.register_datapipe_as_function("once", Twice)
    with pytest.raises(Exception, match="taken"):
        pipes.base.register_datapipe_as_function("once", Theirs)


def test_a_pipe_whose_module_is_executed_again_takes_its_own_place() -> None:
    """Another pipe of this package does not."""
    again = type("Twice", (), {"__module__": Twice.__module__})
    functions: dict[str, Callable[..., Any]] = {"twice": partial(build, Twice)}
    assert make_room("twice", again, functions)
    assert functions == {}
    functions["twice"] = partial(build, Twice)
    assert make_room("twice", type("Other", (), {"__module__": Twice.__module__}), functions)
    assert list(functions) == ["twice"]


def test_names_of_an_earlier_import_are_announced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they build what an import finds; the registry is shared by one function, not by one for each import."""
    pipes = Pipes()
    pipes.load()
    module = ModuleType(Twice.__module__)
    module.Twice = Twice  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    FunctionalNames(["twice"], pipes.load).register(pipes.base)
    assert not isinstance(pipes.functions["twice"], ImportedWhenCalled)
    first = pipes.base.register_datapipe_as_function.in_place_of
    monkeypatch.delitem(sys.modules, module.__name__)
    FunctionalNames(["twice"], pipes.load).register(pipes.base)
    assert isinstance(pipes.functions["twice"], ImportedWhenCalled)
    assert pipes.base.register_datapipe_as_function.in_place_of is first


def test_one_finder_waits_at_a_time(defining: Path) -> None:
    """The names of the last import are registered."""
    finders = list(sys.meta_path)
    for name in ("once", "twice"):
        FunctionalNames([name], lambda: None).register_when_imported()
        assert sys.meta_path[1:] == finders
    assert list(import_module(MODULE).IterDataPipe.functions) == ["twice"]


def test_a_finder_asks_no_other_of_its_kind(defining: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may be of another import of this package, so of another class."""
    FunctionalNames(["twice"], lambda: None).register_when_imported()
    finder: Any = sys.meta_path[0]
    earlier = type("Earlier", (), {"waits_for": "torchdata_remote", "find_spec": finder.find_spec})()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, earlier])
    assert finder.find_spec(MODULE, None) is not None
    defining.unlink()
    importlib.invalidate_caches()
    assert finder.find_spec(MODULE, None) is None


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
