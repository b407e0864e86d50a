"""What the commands import, and how long they take to start."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.archive_bytes import pack_tar
from tests.support.kubernetes_documents import SMALLEST
from tests.support.paths import ROOT
from torchdata_remote import __version__, cli
from torchdata_remote.cli import _commands

BOUND_S = 0.3
LIBRARIES = (
    "aiobotocore", "aiohttp", "asyncio", "botocore", "fsspec", "matplotlib", "s3fs", "starlette", "torch", "granian",
    "torchdata_remote.pipes", "torchdata_remote.testing",
)  # fmt: skip
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6360000000020001e521bc33"
    "0000000049454e44ae426082"
)


def test_help_shows_each_command_with_the_summary_of_its_own_help() -> None:
    """The line in ``--help``, which imports no command, is the beginning of the command's description."""
    parser = _commands.build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    described = {name: one.description.partition(".")[0].partition(";")[0] for name, one in commands.choices.items()}
    assert described == {name: text[0].upper() + text[1:] for name, text in _commands.COMMANDS.items()}


def test_commands_are_the_modules_of_the_folder() -> None:
    """Each module that adds a parser is a command."""
    folder = ROOT / "torchdata_remote" / "cli"
    adds = {path.stem[1:] for path in folder.glob("_*.py") if "\ndef add(" in path.read_text()}
    assert adds == set(_commands.COMMANDS)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"torchdata-remote {__version__}\n"


@pytest.mark.system
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_take_less_than_300_ms_of_cpu(option: str) -> None:
    """Of the interpreter, too; the best of three, as the machine may be busy. ``python -m`` starts the same command."""
    spent_s = []
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-m", "torchdata_remote", option], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            shown = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        assert "torchdata-remote" in shown
        spent_s.append(used.ru_utime + used.ru_stime)
    assert min(spent_s) < BOUND_S


@pytest.mark.system
def test_commands_run_without_torch_and_other_slow_libraries(tmp_path: Path) -> None:
    """All but ``bench``, which reads as a training does; Pillow is imported by those that may draw pictures."""
    (tmp_path / "0.tar").write_bytes(pack_tar([("0.png", PNG), ("0.cls", b"0")]))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.png").write_bytes(PNG)
    (tmp_path / "job.yaml").write_text(json.dumps(SMALLEST))  # JSON is YAML
    lines = [
        "ls .",
        "index . -o index.json.gz",
        "manifest .",
        "shard photos shards/{shard:06d}.tar",
        "push --help",
        "pull --help",
        "render job.yaml",
        "+ PIL",
        "inspect 0.tar",
        "verify .",
        "show . --grid sheet.png",
    ]
    program = f"""
import contextlib, io, json, sys
from torchdata_remote import cli

slow, found = {{"PIL", *{LIBRARIES!r}}}, []
for line in {lines!r}:
    if line.startswith("+ "):
        slow.remove(line[2:])
        continue
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        status = cli.main(line.split())
        assert status == 0, line
    imported = sorted(slow & set(sys.modules))
    found += [f"{{line}} imports {{name}}" for name in imported]
    slow -= set(imported)
import torchdata_remote.service.server.run  # which "serve" runs
found += ["serve imports torch"] * ("torch" in sys.modules)
print(json.dumps(found))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.system
@pytest.mark.parametrize("module", ["argparse", "torchdata_remote.cli._ls"])
def test_ctrl_c_during_imports_ends_without_a_traceback(module: str) -> None:
    """With the documented status, whatever is imported at that moment."""
    program = f"""
import sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from torchdata_remote.cli import main
sys.exit(main(["ls", "."]))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
