"""The project's commands: ``nox -s fmt``, ``check``, ``test``, ``test_all``, ``docs``, ``bench``.

They use the environment that nox runs in, so nothing is installed here. Arguments after ``--`` go to the tool.
"""

from __future__ import annotations

import os

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["fmt", "check", "test"]

PYTEST = ("python", "-m", "pytest")
IN_PARALLEL = ("-n", "3", "--dist", "loadfile")  # on 2 cores: a third of the time, tests wait
FAST = ("-m", "not slow and not system", "--hypothesis-profile=fast")
BENCHMARKS = (
    "bench_async_prefetch", "bench_datapipe", "bench_objects", "bench_loose_files", "bench_shards", "bench_tar",
    "bench_writer", "bench_resume", "bench_service", "bench_storm",
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
    """The fast tests: no servers, no training frameworks, few processes, fewer examples of property tests."""
    session.run(*PYTEST, *IN_PARALLEL, *FAST, *session.posargs)


@nox.session
def test_all(session: nox.Session) -> None:
    """All tests but the slow ones."""
    session.run(*PYTEST, *IN_PARALLEL, *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the manual strictly into ``site/``. Its code is run by ``test_all``."""
    session.run("zensical", "build", "--strict", "--clean")


@nox.session
def bench(session: nox.Session) -> None:
    """Each benchmark, shortened; or those that are named."""
    for name in session.posargs or BENCHMARKS:
        session.run("python", os.path.join("benchmarks", f"{name}.py"), "--quick")
