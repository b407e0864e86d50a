"""What import contracts cannot say of a module: its size, and how it imports."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

MODULES = sorted((ROOT / "torchdata_remote").rglob("*.py"))
MAX_LINES = 250


def test_a_module_is_read_in_one_sitting() -> None:
    """More than 250 lines are two ideas."""
    lengths = {str(module): len(module.read_text().splitlines()) for module in MODULES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_modules_import_each_other_relatively() -> None:
    """A copy of the package, as vendors make them, then holds together."""
    absolute = re.compile(r"^\s*(import|from) torchdata_remote\b", re.MULTILINE)
    assert [str(module) for module in MODULES if absolute.search(_without_docstrings(module.read_text()))] == []


def test_of_torchdata_only_the_stateful_loader_is_imported() -> None:
    """torchdata.datapipes prints a banner when it is imported; DataLoader2 is optional, and nodes inside functions."""
    others = re.compile(
        r"^(\s+(import|from) torchdata\b(?!\.(stateful_dataloader|nodes) import)"
        r"|(import|from) torchdata\b(?!\.stateful_dataloader import))",
        re.MULTILINE,
    )
    assert [str(module) for module in MODULES if others.search(module.read_text())] == []


def _without_docstrings(text: str) -> str:
    return re.sub(r'"""[\s\S]*?"""', "", text)
