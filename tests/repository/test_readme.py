"""The README's code runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

from PIL import Image

from tests.service.kubernetes.pods import free_port
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_python_blocks_run_one_after_the_other() -> None:
    """Pasted into one interpreter, in order, they print what they promise."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks("python"))],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert [line for line in printed if line.startswith(("cat/", "dog/"))] == [
        f"{'cat' if i % 2 else 'dog'}/{i} {1 - i % 2} 8" for i in range(6)
    ]
    assert "miaow 0" in printed
    assert "woof 1" in printed
    assert "memory://numbers/0001.tar 1 3072" in printed
    assert {"sharded: miaow 0", "sharded: woof 1"} <= set(printed)


def test_preparing_a_dataset_runs_as_pasted(tmp_path: Path) -> None:
    """The shell's block draws, shards and looks at a data set, in an environment of any name."""
    (block,) = (block for block in blocks("sh") if "torchdata-remote inspect" in block)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        ["bash", "-e", "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "120 samples" in done.stdout
    assert "120" in re.findall(r"samples +(\d+)|(\d+) samples", done.stdout)[-1]
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 400


def test_hosting_datasets_runs_as_pasted(tmp_path: Path) -> None:
    """The shell's block hosts a data set, copies it there and back, and speaks to the service by curl."""
    (block,) = (block for block in blocks("sh") if "torchdata-remote serve" in block)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = block.replace("8080", str(free_port())).replace("curl ", "curl --fail-with-body ")
    script = f"trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n{commands}wait"
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pictures = {path.relative_to(tmp_path / "pictures"): path for path in (tmp_path / "pictures").rglob("*.*")}
    assert len(pictures) == 120
    for path, picture in pictures.items():
        assert (tmp_path / "datasets" / "my_dataset" / path).read_bytes() == picture.read_bytes()
    assert (tmp_path / "copy.csv").read_text() == "a,b\n1,2\n"
    with tarfile.open(tmp_path / "tables.tar") as archive:
        assert set(archive.getnames()) == {"my_file.csv", *(f"pictures/{path}" for path in pictures)}
    assert '{"name":"tables","location":"/dataset/tables"}' in done.stdout
    assert "8 objects, 120 samples" in done.stdout
    assert done.stdout.rstrip().endswith(
        '{"datasets":[{"name":"my_dataset","location":"/dataset/my_dataset"},'
        '{"name":"shards","location":"/dataset/shards"}]}'
    )


def test_shell_commands_are_those_of_ci() -> None:
    """What CI runs on a fresh clone is what the README says."""
    ci = (ROOT / ".ci" / "run").read_text()
    commands = [line for block in blocks("bash") for line in block.strip().splitlines()]
    assert len(commands) == 2
    for command in commands:
        assert command in ci
