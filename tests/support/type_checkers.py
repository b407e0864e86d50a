"""mypy and pyright, run on files in a folder outside, with an environment of an editable install."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PROJECT = ("torchdata_remote", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
# Apart from that of `nox -s check`, because the same modules have other paths here
CACHE = ROOT / ".mypy_outside_cache"


@dataclass(frozen=True)
class Finding:
    """An error of a type checker."""

    file: str
    line: int
    text: str


def editable_environment(folder: Path) -> Path:
    """Install a copy of the project as the README does, with what this interpreter has as dependencies.

    Args:
        folder: where the environment and the copy are made.

    Returns:
        The interpreter of the environment.
    """
    project = folder / "project"
    project.mkdir()
    for name in PROJECT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, project)
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    installed = sysconfig.get_path("purelib")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check",
         "--no-deps", "--no-build-isolation", "-e", str(project)],
        env={**os.environ, "PYTHONPATH": installed}, check=True, timeout=120,
    )  # fmt: skip
    # The .pth files in there are not read, so that this project's own installation is not found
    (site_packages(environment) / "zz_dependencies.pth").write_text(f"{installed}\n")
    return python


def site_packages(environment: Path) -> Path:
    """Where the packages of an environment are."""
    return next(environment.glob("lib/python*/site-packages"))


class TypeCheckers:
    """Both checkers over all files of a folder, at the same time.

    Args:
        folder: with the files.
        python: interpreter whose packages are imported.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        if not CACHE.exists() and (ROOT / ".mypy_cache").exists():
            shutil.copytree(ROOT / ".mypy_cache", CACHE)  # has torch, which takes mypy most of the time
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
        (folder / "pyrightconfig.json").write_text(
            json.dumps({"typeCheckingMode": "standard", "venvPath": str(python.parents[2]), "venv": "environment"})
        )
        files = sorted(path.name for path in folder.glob("*.py"))
        mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"),
                "--cache-dir", str(CACHE), "--python-executable", str(python), "--no-pretty", *files]  # fmt: skip
        pyright = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", str(python), *files]
        running = {
            name: subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for name, command in {"mypy": mypy, "pyright": pyright}.items()
        }
        printed = {name: process.communicate(timeout=240) for name, process in running.items()}
        self.findings = {
            "mypy": _of_mypy(*printed["mypy"]),
            "pyright": _of_pyright(*printed["pyright"]),
        }

    def errors(self, checker: str, file: str) -> list[Finding]:
        """What a checker refuses in a file."""
        return [finding for finding in self.findings[checker] if finding.file == file]


def _of_mypy(stdout: str, stderr: str) -> list[Finding]:
    assert "checked" in stdout, stdout + stderr
    found = re.findall(r"^(.+?):(\d+): error: (.*)$", stdout, re.MULTILINE)
    return [Finding(Path(file).name, int(line), text) for file, line, text in found]


def _of_pyright(stdout: str, stderr: str) -> list[Finding]:
    assert '"generalDiagnostics"' in stdout, stdout + stderr
    return [
        Finding(Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"])
        for found in json.loads(stdout[stdout.index("{") :])["generalDiagnostics"]
        if found["severity"] == "error"
    ]
