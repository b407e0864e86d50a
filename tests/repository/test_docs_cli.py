"""The page about the command line agrees with the parsers."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import ROOT


def test_command_line_page_is_what_the_parsers_say() -> None:
    """The generator finds nothing to change."""
    done = subprocess.run(
        [sys.executable, ".ci/make_cli.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
