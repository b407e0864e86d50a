"""``examples/loose_files.ipynb`` runs from top to bottom, with the expected output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "loose_files.ipynb"

# Like a notebook's kernel: runs cells in order in one namespace, and prints the value of a last expression.
KERNEL = """
import ast, json, sys

names = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1]))["cells"]):
    if cell["cell_type"] == "code":
        body = ast.parse("".join(cell["source"])).body
        shown = body.pop().value if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)
        value = shown and eval(compile(ast.Expression(shown), f"cell {number}", "eval"), names)
        if value is not None:
            print(value)
"""


def test_the_notebook_runs_without_warnings(tmp_path: Path) -> None:
    """All cells in one process, without a warning about a slower fallback."""
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, str(NOTEBOOK)],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search("forkserver|GET", done.stderr), done.stderr
    printed = done.stdout.splitlines()
    assert "160 images: {'circle': 0, 'hexagon': 1, 'square': 2, 'triangle': 3}" in printed
    assert "('s3://shapes/train/circle/0000.jpg', 0)" in printed
    assert len([line for line in printed if line.startswith("(32, 64, 64, 3) torch.uint8 ")]) == 5
    assert "5 batches, the same ones" in printed
    assert "100 images, 4 classes, first: train/circle/0000.jpg" in printed
    assert [len(set(re.findall(r"'[a-z]+/\d{4}'", line))) for line in printed if line.startswith("['")] == [5]
    assert sum(line.startswith("<PIL.Image.Image") for line in printed) == 2


def test_the_notebook_is_committed_without_outputs() -> None:
    """So that its diffs are readable."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in cells] == [([], None)] * len(cells)
