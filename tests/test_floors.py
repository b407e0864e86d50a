"""The house stands: imports go down a floor, never up and never sideways."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "torchdata_remote"
TRANSPORTS = re.compile(r"^\s*(?:import|from) (obstore|botocore|s3fs|fsspec|urllib3|requests)\b", re.MULTILINE)
MODULES = sorted(PACKAGE.rglob("*.py"))


def floors() -> dict[str, int]:
    """Room -> floor, from the README's table."""
    table = (ROOT / "README.md").read_text().split("<!-- floors -->")[1].split("<!-- /floors -->")[0]
    rooms: dict[str, int] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 2 and cells[1].isdigit():
            rooms.update(dict.fromkeys(re.findall(r"`(\w+)`", cells[2]), int(cells[1])))
    return rooms


def room(module: Path) -> str:
    """First part of the module's name below the package; the package's own is ``__init__``."""
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(module: Path) -> set[str]:
    """Rooms of this package that a module imports, anywhere in it."""
    depth = len(module.relative_to(PACKAGE).parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("torchdata_remote")}
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            found |= {node.module.partition(".")[0]} if node.module else {alias.name for alias in node.names}
        elif (
            isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("torchdata_remote")
        ):
            found.add(node.module or "")
    return found


def test_every_room_has_a_floor() -> None:
    """The README's table names each module and package, and nothing else."""
    assert {room(module) for module in MODULES} == set(floors())


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_imports_go_down(module: Path) -> None:
    """A module imports rooms of lower floors only, and never by the package's absolute name."""
    level = floors()
    here = room(module)
    wrong = {name for name in imported_rooms(module) - {here} if level.get(name, 99) >= level[here]}
    assert not wrong, f"{here} (floor {level[here]}) imports {wrong}: what they share belongs one floor down"


def test_pipes_do_not_import_each_other() -> None:
    """What two pipes share lies below them."""
    for module in (PACKAGE / "pipes").glob("[!_]*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level == 1), f"{module.name} imports {node.module}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE)))
def test_a_module_is_read_in_one_sitting(module: Path) -> None:
    """More than 250 lines are two ideas."""
    assert len(module.read_text().splitlines()) <= 250


def test_of_torchdata_only_the_stateful_loader_is_imported() -> None:
    """torchdata.datapipes prints a banner when it is imported; DataLoader2 is optional, and nodes inside functions."""
    others = re.compile(
        r"^(\s+(import|from) torchdata\b(?!\.(stateful_dataloader|nodes) import)"
        r"|(import|from) torchdata\b(?!\.stateful_dataloader import))",
        re.MULTILINE,
    )
    for module in MODULES:
        assert not others.search(module.read_text()), module


def test_transports_stay_behind_the_door() -> None:
    """Only ``storage`` imports obstore, botocore, s3fs or fsspec."""
    for module in MODULES:
        if room(module) != "storage":
            clients = TRANSPORTS.findall(module.read_text())
            assert not clients, f"{module} imports {clients}"
