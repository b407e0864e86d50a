"""The manual's Python: it runs as it stands, and prints what the page shows.

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

from tests.support.paths import ROOT

from .manual import DOCS, END_OF_BLOCK, PAGES, as_pattern, program_of


@pytest.fixture(scope="module")
def page_runner() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch once, for all pages."""
    runner = [sys.executable, "-W", "error", str(ROOT / "tests" / "support" / "page_runner.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(runner, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "```python" in page])
def test_python_blocks_of_a_page_run_and_print_the_shown_output(
    name: str, tmp_path: Path, page_runner: subprocess.Popen[str]
) -> None:
    """In one fresh process, from top to bottom, with warnings as errors."""
    program, outputs = program_of(PAGES[name])
    assert page_runner.stdin is not None
    assert page_runner.stdout is not None
    page = {"name": str(DOCS / name), "program": program, "folder": str(tmp_path)}
    print(json.dumps(page), file=page_runner.stdin, flush=True)
    done = json.loads(page_runner.stdout.readline())
    assert done["code"] == 0, done["errors"]
    printed = done["output"].split(END_OF_BLOCK)
    for shown, real in zip(outputs, printed[:-1], strict=True):
        assert re.fullmatch(as_pattern(shown), real.strip(), re.DOTALL), f"shown:\n{shown}\nprinted:\n{real}"
