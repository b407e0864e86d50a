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
    """A docstring names the functional name, every argument, what comes out, and an example."""
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
TESTED_WITH = {"stateful_loader": "loader", "progress": "push", "fetching": "options", "stores": "options"}


def test_the_root_has_few_entries() -> None:
    """A stranger reads the folder's names in one look."""
    entries = [path.name for path in (ROOT / "torchdata_remote").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 17, sorted(entries)


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_tests_and_a_sentence(room: str) -> None:
    """The tests mirror the package; a room says what it is for."""
    assert list((ROOT / "tests" / room).rglob("test_*.py"))
    assert (importlib.import_module(f"torchdata_remote.{room}").__doc__ or "").strip()


@pytest.mark.parametrize("name", tdr.__all__)
def test_public_name_has_a_test_file(name: str) -> None:
    """It is named like the module that defines the name."""
    value = getattr(tdr, name)
    module = value.__name__ if inspect.ismodule(value) else value.__module__
    if module.startswith("torchdata_remote"):
        last = module.rpartition(".")[2]
        assert f"test_{TESTED_WITH.get(last, last)}" in TEST_FILES


@pytest.mark.parametrize("name", tdr.__all__)
def test_public_name_is_in_the_readme(name: str) -> None:
    """Every public name has a README row."""
    assert re.search(rf"^\|.*`{name}`.*\|$", README, re.MULTILINE), f"{name} has no row"


def test_exports_are_sorted() -> None:
    """``__all__`` is sorted and each of its names is there."""
    assert list(tdr.__all__) == sorted(tdr.__all__)
    assert all(hasattr(tdr, name) for name in tdr.__all__)
