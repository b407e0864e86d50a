"""Tests name what is public: outside of ``tests/internal`` no private module of the package, and nothing from there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

import torchdata_remote as tdr
from tests.support.paths import ROOT

TESTS = ROOT / "tests"
MODULES = ("errors", "testing", "labels", "pipes", "cli")
NAMES = {*tdr.__all__, *MODULES, "__version__"}
FILES = sorted(path for path in TESTS.rglob("*.py") if not path.is_relative_to(TESTS / "internal"))


def is_public(dotted: str) -> bool:
    """Whether a name below the package may be used: ``torchdata_remote.errors.UrlError``, but no name with ``_``."""
    package, *parts = dotted.split(".")
    if not parts or dotted == f"{package}.loaders.trainers.RemoteTrainerMixin":  # as docs/tasks/trainers.md imports it
        return True
    return parts[0] in NAMES and len(parts) <= 2 and not any(part.startswith("_") for part in parts)


def named(code: str) -> Iterator[str]:
    """Yield what a module imports of the package and of the tests, and strings that name a module or a part of one."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"torchdata_remote(\.\w+)+", node.value):
                yield node.value
            elif "torchdata_remote" in node.value and "\n" in node.value:  # a program of another process
                yield from re.findall(r"^ *(?:from|import) (torchdata_remote[\w.]*)", node.value, re.MULTILINE)


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
        ("from tests.internal.core import a", ["tests.internal.core.a"]),
        ("import PACKAGE as tdr\nfrom PACKAGE import World, errors", []),
        ("from PACKAGE.errors import UrlError\nfrom PACKAGE.cli import main", []),
    ],
)
def test_private_names_are_found(code: str, found: list[str]) -> None:
    # the name is put in here, so that this module passes
    assert private(code.replace("PACKAGE", "torchdata_remote")) == [
        name.replace("PACKAGE", "torchdata_remote") for name in found
    ]
