"""What a check returns is used: it is the argument as Python's number, flag or text."""

from __future__ import annotations

import ast
from pathlib import Path

import torchdata_remote

_CHECKS = {
    "choice", "flag", "flag_or_none", "local_path", "path_or_url", "real", "seconds", "seed_of", "whole",
    "whole_or_none",
}  # fmt: skip


def dropped_results(code: str) -> list[str]:
    """Return the calls of checks whose result is not used."""
    calls = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Expr)]
    functions = [(call, call.func) for call in calls if isinstance(call, ast.Call)]
    return [
        ast.unparse(call)
        for call, function in functions
        if (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in _CHECKS
    ]


def test_no_result_of_a_check_is_dropped() -> None:
    """``drop_last=np.True_`` would be accepted here, and refused by torch."""
    package = Path(torchdata_remote.__file__).parent
    found = {path: dropped_results(path.read_text(encoding="utf-8")) for path in package.rglob("*.py")}
    assert len(found) > 100
    assert {str(path): calls for path, calls in found.items() if calls} == {}
