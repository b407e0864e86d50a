"""One name, everywhere: functional name, module, class, test file, README row."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from torch.utils.data import IterDataPipe

import torchdata_remote as tdr
from tests.support.paths import ROOT

PIPES = sorted(path.stem for path in (ROOT / "torchdata_remote" / "pipes").glob("[!_]*.py"))
README = (ROOT / "README.md").read_text()


def class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@pytest.mark.parametrize("name", PIPES)
def test_pipe_has_its_name_everywhere(name: str) -> None:
    """Module, class, functional name, export, test file and README row agree."""
    pipe = getattr(importlib.import_module(f"torchdata_remote.pipes.{name}"), class_name(name))
    assert issubclass(pipe, IterDataPipe)
    assert IterDataPipe.functions[name].args[0] is pipe  # type: ignore[attr-defined]  # a functools.partial
    assert getattr(tdr, class_name(name)) is pipe
    assert (ROOT / "tests" / "pipes" / f"test_{name}.py").is_file()
    assert f"| `{name}` | `{class_name(name)}` |" in README


@pytest.mark.parametrize("name", PIPES)
def test_pipe_is_documented(name: str) -> None:
    """A docstring names the functional name, every argument, the output, and an example."""
    pipe = getattr(tdr, class_name(name))
    text = inspect.getdoc(pipe) or ""
    assert f"(functional name: ``{name}``)" in text
    assert "Yields:" in text
    assert "Example:" in text
    for argument in list(inspect.signature(pipe).parameters):
        assert re.search(rf"^\s+\*?{argument}: ", text, re.MULTILINE), f"{name}: {argument} is not described"


@pytest.mark.parametrize("name", PIPES)
def test_options_of_pipes_are_keyword_only(name: str) -> None:
    """At most one argument after the source may be given by position."""
    parameters = list(inspect.signature(getattr(tdr, class_name(name))).parameters.values())
    assert parameters[0].name == "source_datapipe"
    positional = [p.name for p in parameters[1:] if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert len(positional) <= 1


ROOMS = sorted(path.parent.name for path in (ROOT / "torchdata_remote").glob("*/__init__.py"))
TEST_FILES = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
TESTED_WITH = {
    "stateful_loader": "loader",
    "progress": "push",
    "fetching": "options",
    "stores": "options",
    "testing": "faulty_store",
}


def test_the_root_has_few_entries() -> None:
    """A newcomer can read the folder's names at a glance."""
    entries = [
        path.name  # not what other commits left behind: folders of compiled modules
        for path in (ROOT / "torchdata_remote").iterdir()
        if path.name != "__pycache__" and (path.is_file() or list(path.rglob("*.py")))
    ]
    assert len(entries) <= 18, sorted(entries)


def test_each_room_has_tests_and_a_docstring() -> None:
    """The tests mirror the package; the docstring of a room says its purpose."""
    assert [room for room in ROOMS if not list((ROOT / "tests" / room).rglob("test_*.py"))] == []
    docs = {room: importlib.import_module(f"torchdata_remote.{room}").__doc__ for room in ROOMS}
    assert [room for room, text in docs.items() if not (text or "").strip()] == []


def test_each_public_name_has_a_test_file() -> None:
    """The file is named after the module that defines the name."""
    values = [getattr(tdr, name) for name in tdr.__all__]
    modules = {value.__name__ if inspect.ismodule(value) else value.__module__ for value in values}
    own = [module.rpartition(".")[2] for module in modules if module.startswith("torchdata_remote")]
    assert [name for name in own if f"test_{TESTED_WITH.get(name, name)}" not in TEST_FILES] == []


def test_each_public_name_has_a_readme_row() -> None:
    rows = [line for line in README.splitlines() if line.startswith("|")]
    assert [name for name in tdr.__all__ if not any(f"`{name}`" in row for row in rows)] == []


def test_exports_are_sorted() -> None:
    """``__all__`` is sorted and each of its names exists."""
    assert list(tdr.__all__) == sorted(tdr.__all__)
    assert all(hasattr(tdr, name) for name in tdr.__all__)
