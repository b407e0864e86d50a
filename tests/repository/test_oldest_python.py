"""What the oldest supported Python lacks, found without having it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

MODULES = sorted(
    path for folder in ("torchdata_remote", "examples", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")
)
OLDEST = (3, 10)
LATER = {
    "asyncio": {"Runner", "TaskGroup", "timeout", "timeout_at"},
    "builtins": {"BaseExceptionGroup", "ExceptionGroup", "PythonFinalizationError"},
    "contextlib": {"chdir"},
    "datetime": {"UTC"},
    "enum": {"ReprEnum", "StrEnum", "member", "nonmember", "verify"},
    "hashlib": {"file_digest"},
    "itertools": {"batched"},
    "typing": {"LiteralString", "Never", "NotRequired", "Required", "Self", "TypeVarTuple", "Unpack", "assert_never"}
    | {"assert_type", "dataclass_transform", "override", "reveal_type"},
}


def _used(tree: ast.AST) -> set[str]:
    """``module.name`` of what is imported or reached by an attribute."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Name):
            names.add(f"builtins.{node.id}")
    return names


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}


def test_the_oldest_python_is_the_declared_one() -> None:
    """These tests are about the version that setup.cfg declares."""
    declared = re.search(r"python_requires = >=(\d+)\.(\d+)", (ROOT / "setup.cfg").read_text())
    assert declared is not None
    assert (int(declared[1]), int(declared[2])) == OLDEST


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_a_module_is_of_the_oldest_python(module: Path) -> None:
    """Its syntax, the classes it can make, and the names of the standard library that it uses without a fallback."""
    text = module.read_text()
    tree = ast.parse(text, feature_version=OLDEST)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert not {"NamedTuple", "Generic"} <= _bases(node), f"{node.name}: a NamedTuple is generic from 3.11 on"
    later = {f"{home}.{name}" for home, names in LATER.items() for name in names} & _used(tree)
    missing = {name for name in later if f'"{name.rpartition(".")[2]}")' not in text}  # which a hasattr asks for
    assert not missing, f"{module.name}: {missing} came after Python {OLDEST[0]}.{OLDEST[1]}"
