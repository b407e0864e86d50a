"""The project's commands: ``nox -s fmt``, ``check``, ``test``, ``test_all``, ``test_long``, ``docs``, ``bench``...

They use the environment that nox runs in, so nothing is installed here; ``release`` alone makes one of its own.
Arguments after ``--`` go to the tool.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["fmt", "check", "test"]

PYTEST = ("python", "-m", "pytest")
IN_PARALLEL = ("-n", "4", "--dist", "loadfile")  # on 2 cores: tests wait
FAST = ("-m", "not slow and not system")
OF_SDIST = ("tests/pipes", "tests/writing")  # what release runs of it
BENCHMARKS = (
    "bench_async_prefetch", "bench_datapipe", "bench_objects", "bench_loose_files", "bench_shards", "bench_tar",
    "bench_local_files", "bench_writer", "bench_shard_resume", "bench_tables", "bench_selection_plan",
    "bench_selection", "bench_items", "bench_resume", "bench_cache", "bench_service", "bench_storm", "bench_stores",
)  # fmt: skip


@nox.session
def fmt(session: nox.Session) -> None:
    """Format the code and apply safe fixes."""
    session.run("ruff", "format", ".")
    session.run("ruff", "check", "--fix", ".")


@nox.session
def check(session: nox.Session) -> None:
    """Formatting, lint, types, import contracts."""
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports", "--no-logo")
    session.run("mypy")


@nox.session
def test(session: nox.Session) -> None:
    """The fast tests: no servers, no training frameworks, few processes."""
    session.run(*PYTEST, *IN_PARALLEL, *FAST, *session.posargs)


@nox.session
def test_all(session: nox.Session) -> None:
    """All tests but the slow ones."""
    session.run(*PYTEST, *IN_PARALLEL, *session.posargs)


@nox.session
def test_long(session: nox.Session) -> None:
    """All tests and the slow ones, with 25 times the examples of property tests: hours."""
    session.run(*PYTEST, *IN_PARALLEL, "-m", "slow or not slow", "--hypothesis-profile=long", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the manual strictly into ``site/``. Its code is run by ``test_all``."""
    session.run("zensical", "build", "--strict", "--clean")


@nox.session
def bench(session: nox.Session) -> None:
    """Each benchmark, shortened; or those that are named."""
    for name in session.posargs or BENCHMARKS:
        session.run("python", os.path.join("benchmarks", f"{name}.py"), "--quick")


@nox.session(venv_backend="venv")
def release(session: nox.Session) -> None:
    """Build ``dist/`` and try it: metadata, the quickstart on the wheel in a new environment, tests from the sdist."""
    folder = Path(session.create_tmp())
    shutil.rmtree("dist", ignore_errors=True)
    session.run(sys.executable, "-m", "build", external=True)
    (wheel,), (sdist,) = Path("dist").glob("*.whl"), Path("dist").glob("*.tar.gz")
    session.run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist), external=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")

    session.install("-c", "constraints.txt", f"{wheel}[quickstart]", env={"PIP_NO_COMPILE": "1"})
    outside = folder / "outside"
    outside.mkdir(exist_ok=True)
    shutil.copy(source / "examples" / "quickstart.py", outside)
    with session.chdir(outside):
        session.run("torchdata-remote", "--version")
        session.run("python", "quickstart.py")

    session.install("-c", "constraints.txt", "pytest", "pytest-timeout", "hypothesis", env={"PIP_NO_COMPILE": "1"})
    with session.chdir(source):
        session.run(*PYTEST, *FAST, *(session.posargs or OF_SDIST))
