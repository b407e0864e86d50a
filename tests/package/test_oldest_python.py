"""Uses of features that the oldest supported Python lacks, found without running it."""

from __future__ import annotations

import ast
import re

from tests.support.paths import ROOT

MODULES = sorted(
    path for folder in ("torchdata_remote", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")
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
    """``module.name`` of imports and attributes."""
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


def _faults(text: str) -> list[str]:
    """What a module has that the oldest Python lacks."""
    try:
        tree = ast.parse(text, feature_version=OLDEST)
    except SyntaxError as error:
        return [str(error)]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    generic = [node.name for node in classes if {"NamedTuple", "Generic"} <= _bases(node)]
    later = {f"{home}.{name}" for home, names in LATER.items() for name in names} & _used(tree)
    unguarded = sorted(name for name in later if f'"{name.rpartition(".")[2]}")' not in text)  # no hasattr before it
    return [f"{name}: a NamedTuple is generic from 3.11 on" for name in generic] + unguarded


def test_modules_need_nothing_newer_than_the_oldest_python() -> None:
    """Syntax, classes, and the names of the standard library that are used without a fallback."""
    faults = {str(module.relative_to(ROOT)): _faults(module.read_text()) for module in MODULES}
    assert {module: found for module, found in faults.items() if found} == {}
