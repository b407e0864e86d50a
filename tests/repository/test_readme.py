"""The README's code runs as it stands, and it stays short."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_python_blocks_run_one_after_the_other() -> None:
    """Pasted into one interpreter, in order; their assertions hold and no warning is raised."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks("python"))],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "8 torch.Size([8])"
    assert second.startswith("['cat', 'dog'] [")


def test_shell_commands_are_those_of_ci() -> None:
    """What CI runs on a fresh clone is what the README says."""
    ci = (ROOT / ".ci" / "run").read_text()
    commands = [line for block in blocks("bash") for line in block.strip().splitlines()]
    assert len(commands) == 2
    for command in commands:
        assert command in ci


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len(README.splitlines()) <= 200


def test_links_of_the_readme_resolve() -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert links
    assert [link for link in links if not re.match(r"https?:", link) and not (ROOT / link).exists()] == []


def test_the_speed_table_has_at_most_eight_rows() -> None:
    table = README.split("## Speed\n")[1].split("\n## ")[0]
    assert 1 <= len([line for line in table.splitlines() if line.startswith("|")]) - 2 <= 8
