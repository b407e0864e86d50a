"""What neither import contracts nor lint can say of a module."""

from __future__ import annotations

import ast

from tests.support.paths import ROOT


def test_modules_import_each_other_relatively() -> None:
    """A copy of the package, as vendors make them, then holds together."""
    for module in (ROOT / "torchdata_remote").rglob("*.py"):
        nodes = [
            node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ImportFrom | ast.Import)
        ]
        names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        assert not {name for name in names if name.partition(".")[0] == "torchdata_remote"}, module
