"""Python in the manual, the README and the notebook: it runs as it stands and prints what is shown; generated pages.

All blocks ```` ```python ```` of a page are one program, from top to bottom. A block ```` ```text title="Output" ````
holds what the blocks since the previous one print; ``...`` stands for any text.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.page_runner import PageRunner, page_runner
from tests.support.paths import ROOT

from .manual import DOCS, END_OF_BLOCK, PAGES, as_pattern, program_of

IMPORTS = """
import multiprocessing
import moto.server, s3fs, torchdata.stateful_dataloader
from PIL import Image
from torchdata_remote import *
multiprocessing.set_forkserver_preload(["torchdata_remote.pipes"])
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[PageRunner]:
    with page_runner(IMPORTS) as started:
        yield started


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "```python" in page])
def test_python_blocks_of_a_page_run_and_print_the_shown_output(name: str, tmp_path: Path, runner: PageRunner) -> None:
    """In one process, from top to bottom, with warnings as errors."""
    program, outputs = program_of(PAGES[name])
    done = runner.run(program, folder=tmp_path, name=str(DOCS / name))
    assert done.code == 0, done.errors
    printed = done.output.split(END_OF_BLOCK)
    for shown, real in zip(outputs, printed[:-1], strict=True):
        assert re.fullmatch(as_pattern(shown), real.strip(), re.DOTALL), f"shown:\n{shown}\nprinted:\n{real}"


def test_the_readmes_python_runs_as_it_stands(tmp_path: Path) -> None:
    """Pasted into one program, in order, also with workers; it prints what is shown."""
    program, outputs = program_of((ROOT / "README.md").read_text())
    (tmp_path / "readme.py").write_text(program)
    command = [sys.executable, "-W", "ignore::UserWarning:torchdata", "readme.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    for shown, real in zip(outputs, done.stdout.split(END_OF_BLOCK)[:-1], strict=True):
        assert re.fullmatch(as_pattern(shown), real.strip(), re.DOTALL), f"shown:\n{shown}\nprinted:\n{real}"


@pytest.mark.parametrize("generator", ["make_cli.py", "make_errors.py"])
def test_generated_pages_are_what_the_package_says(generator: str, runner: PageRunner) -> None:
    """The help of each command, and the messages of the programs on the pages about errors."""
    program = f"""
import runpy, sys, warnings
warnings.simplefilter("default")
sys.argv = [{generator!r}, "--check"]
runpy.run_path(".ci/{generator}", run_name="__main__")
"""
    done = runner.run(program, folder=ROOT)
    assert done.code == 0, done.errors


NOTEBOOK = ROOT / "examples" / "loose_files.ipynb"

# Like a notebook's kernel: runs cells in order in one namespace, and prints the value of a last expression.
KERNEL = f"""
import ast, json, warnings

warnings.simplefilter("default")
names = {{"__name__": "__main__"}}
for number, cell in enumerate(json.load(open({str(NOTEBOOK)!r}))["cells"]):
    if cell["cell_type"] == "code":
        body = ast.parse("".join(cell["source"])).body
        shown = body.pop().value if isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), f"cell {{number}}", "exec"), names)
        value = shown and eval(compile(ast.Expression(shown), f"cell {{number}}", "eval"), names)
        if value is not None:
            print(value)
"""


def test_the_notebook_runs_without_warnings(tmp_path: Path, runner: PageRunner) -> None:
    """All cells in one process, without a warning about a slower fallback."""
    done = runner.run(KERNEL, folder=tmp_path)
    assert done.code == 0, done.output + done.errors
    assert not re.search("forkserver|GET", done.errors), done.errors
    printed = done.output.splitlines()
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
