"""Tests name what is public: outside of ``tests/internal`` no private module of the package, and nothing from there."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType

import pytest

import torchdata_remote as tdr
from tests.support.paths import ROOT

TESTS = ROOT / "tests"
MODULES = ("errors", "testing", "labels", "pipes", "cli")
NAMES = {*tdr.__all__, *MODULES, "__all__", "__file__", "__name__", "__version__", "*"}
NAMES |= {"datasets", "loaders"}  # which a fork server preloads
NAMES |= {"stream_shard"}  # a mistake that is explained
TRAINERS = ("LightningResume", "RemoteTrainerMixin")  # as docs/tasks/trainers.md imports them
FILES = sorted(path for path in TESTS.rglob("*.py") if not path.is_relative_to(TESTS / "internal"))


def is_public(dotted: str) -> bool:
    """Whether a name below the package may be used: ``torchdata_remote.errors.UrlError``, but no name with ``_``."""
    package, *parts = dotted.split(".")
    if not parts or dotted in [f"{package}.loaders.trainers.{name}" for name in TRAINERS]:
        return True
    if parts[0] not in NAMES or any(part.startswith("_") for part in parts[1:]):
        return False
    if parts[0] not in MODULES or len(parts) == 1:
        return len(parts) == 1
    module = importlib.import_module(f"{package}.{parts[0]}")
    names = getattr(module, "__all__", vars(module))
    return len(parts) == 2 and parts[1] in names and not isinstance(getattr(module, parts[1]), ModuleType)


def dotted_of(node: ast.AST) -> str:
    """The name of a chain of attributes, such as ``tdr.errors.UrlError``; ``""`` for other expressions."""
    if isinstance(node, ast.Name):
        return "torchdata_remote" if node.id == "tdr" else node.id
    before = dotted_of(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if isinstance(node, ast.Attribute) and before else ""


def named(code: str) -> Iterator[str]:
    """Yield what a module uses of the package and of the tests, and strings that name a module or a part of one."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            below = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (f"tests.{name}" for name in below)
        elif isinstance(node, ast.Attribute) and dotted_of(node).startswith("torchdata_remote."):
            _, first, *more = dotted_of(node).split(".")
            yield ".".join(["torchdata_remote", first, *more[: first in MODULES]])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from named_in_text(node.value)


def named_in_text(text: str) -> Iterator[str]:
    """Yield what the program of another process uses, and the name that a string is."""
    if re.fullmatch(r"torchdata_remote(\.\w+)+", text):
        yield text
    elif "torchdata_remote" in text and re.search("[\n;]", text):
        try:
            yield from named(textwrap.dedent(text))
        except SyntaxError:  # of a template, or no program at all
            yield from re.findall(r"(?:^|;) *(?:from|import) (torchdata_remote[\w.]*)", text, re.MULTILINE)


def private(code: str) -> list[str]:
    """Return what a module may not name."""
    found = {name for name in named(code) if name.split(".")[0] == "torchdata_remote" and not is_public(name)}
    return sorted(found | {name for name in named(code) if name.startswith("tests.internal")})


def test_no_module_of_tests_names_what_is_private() -> None:
    found = {str(path.relative_to(TESTS)): private(path.read_text("utf-8")) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import PACKAGE.core.urls", ["PACKAGE.core.urls"]),
        ("from PACKAGE.core import urls", ["PACKAGE.core.urls"]),
        ("from PACKAGE import core", ["PACKAGE.core"]),
        ("from PACKAGE.cli._ls import add", ["PACKAGE.cli._ls.add"]),
        ("monkeypatch.setattr('PACKAGE.cli._ls.x', 1)", ["PACKAGE.cli._ls.x"]),
        ("run('''\nimport sys\nimport PACKAGE.core.urls\n''')", ["PACKAGE.core.urls"]),
        ("run('''\nimport sys; from PACKAGE import core\n''')", ["PACKAGE.core"]),
        ("run('import PACKAGE.core.urls; print()')", ["PACKAGE.core.urls"]),
        ("import PACKAGE.pipes.maps", ["PACKAGE.pipes.maps"]),
        ("from PACKAGE.testing import faulty_store", ["PACKAGE.testing.faulty_store"]),
        ("import PACKAGE as tdr\ntdr.core.retry._log", ["PACKAGE.core"]),
        ("from tests.internal.core import a", ["tests.internal.core.a"]),
        ("from ..internal.core import a", ["tests.internal.core"]),
        ("from .. import internal", ["tests.internal"]),
        ("import PACKAGE as tdr\nfrom PACKAGE import World, errors", []),
        ("from PACKAGE.errors import UrlError\nfrom PACKAGE.cli import main", []),
    ],
)
def test_private_names_are_found(code: str, found: list[str]) -> None:
    # the name is put in here, so that this module passes
    assert private(code.replace("PACKAGE", "torchdata_remote")) == [
        name.replace("PACKAGE", "torchdata_remote") for name in found
    ]
