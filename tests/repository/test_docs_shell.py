"""The shell commands of the manual run and print the shown output.

A block ```` ```sh ```` is run; all blocks of a page are one script. A block ```` ```text title="Shell output" ````
behind it holds what it prints; ``...`` stands for any text. Blocks ```` ```bash ```` need a cluster, and are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.ports import free_port

DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}
OUTPUT = r'```text title="Shell output"\n(?P<output>.*?)^```$'
BLOCK = re.compile(rf"^```sh\n(?P<commands>.*?)^```$(?:\n\n{OUTPUT})?", re.MULTILINE | re.DOTALL)
END_OF_BLOCK = "--- end of block ---"


def as_pattern(output: str) -> str:
    return ".*?".join(map(re.escape, output.strip().split("...")))


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "```sh\n" in page])
def test_shell_blocks_of_a_page_run_and_print_the_shown_output(name: str, tmp_path: Path) -> None:
    """Pasted into one shell, in order; the first command that fails ends it."""
    blocks = list(BLOCK.finditer(PAGES[name]))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, module in [("python", ""), ("torchdata-remote", " -m torchdata_remote.cli")]:
        (programs / program).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (programs / program).chmod(0o755)
    separator = f"\necho '{END_OF_BLOCK}'\n"
    commands = separator.join(block["commands"] for block in blocks)
    commands = commands.replace("8080", str(free_port())).replace("curl ", "curl --fail-with-body ")
    done = subprocess.run(
        ["bash", "-e", "-c", f"trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n{commands}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for block, printed in zip(blocks, done.stdout.split(END_OF_BLOCK), strict=True):
        if block["output"] is not None:
            shown = as_pattern(block["output"])
            assert re.fullmatch(shown, printed.strip(), re.DOTALL), f"shown:\n{block['output']}\nprinted:\n{printed}"
