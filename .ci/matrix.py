"""Run the fast tests under every Python and with the oldest and newest dependencies that can be had here.

Usage: python3 .ci/matrix.py [--smoke] [--budget-s SECONDS] [--only NAME] [-- ARGUMENTS OF PYTEST]

Needs nothing but Python; ``uv`` is used where it is on the PATH. Environments are kept in ``.matrix/``. What could not
be run is reported, and not counted as passed. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import configparser
import glob
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".matrix"
SHOWN = ("torch", "torchdata", "numpy", "fsspec", "s3fs", "aiobotocore", "obstore", "pillow", "urllib3")
STRICT = "\n".join(
    f"error::{category}:torchdata_remote.*" for category in ("DeprecationWarning", "FutureWarning")
)  # warnings that this package's own code causes


@dataclass(frozen=True)
class Session:
    """One environment.

    Args:
        name: of its folder.
        python: version of the interpreter.
        oldest: whether each dependency has its declared lower bound.
        pins: requirements besides the declared ones.
        strict: whether deprecation warnings are errors.
    """

    name: str
    python: str
    oldest: bool = False
    pins: list[str] = field(default_factory=list)
    strict: bool = False


SESSIONS = [
    Session("py3.10-oldest", "3.10", oldest=True),
    Session("py3.14-newest", "3.14", strict=True),
    Session("py3.13-newest", "3.13", strict=True),
    Session("py3.11-numpy1", "3.11", pins=["torch==2.13.0", "torchdata==0.9.0", "numpy<2"]),
    Session("py3.12-torchdata0.9", "3.12", pins=["torchdata==0.9.0"]),
]


def requirements(extra: str | None = None) -> list[str]:
    """What ``setup.cfg`` declares, for the package or for one of its extras."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    text = config["options.extras_require"][extra] if extra else config["options"]["install_requires"]
    return [line.strip() for line in text.splitlines() if line.strip()]


def lower_bounds() -> list[str]:
    """Each dependency at its declared lower bound, with its marker."""
    return [re.sub(r"\s*>=\s*([\w.]+)", r"==\1", requirement, count=1) for requirement in requirements()]


def interpreters(version: str) -> Iterator[str]:
    """Where a Python of this version may be: on the PATH, and pyenv's."""
    on_path = shutil.which(f"python{version}")
    yield from [on_path] if on_path else []
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    yield from sorted(glob.glob(f"{root}/versions/{version}.*/bin/python"), reverse=True)


def find_python(version: str) -> str | None:
    """An interpreter of this version that runs and can make environments; pyenv's shims may not."""
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
    for path in interpreters(version):
        if subprocess.run([path, "-c", check], capture_output=True, check=False).returncode == 0:
            return path
    return None


def prepare(session: Session, interpreter: str, *, smoke: bool, log: Path) -> str:
    """Make the environment, or use the one that is there; returns its interpreter.

    Raises:
        subprocess.CalledProcessError: if something cannot be installed; ``log`` says why.
    """
    folder = FOLDER / session.name
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv")
    environment = dict(os.environ)
    for ours, theirs in {"UV_FIND_LINKS": "PIP_FIND_LINKS", "UV_EXTRA_INDEX_URL": "PIP_EXTRA_INDEX_URL"}.items():
        if theirs in environment:
            environment.setdefault(ours, environment[theirs])
    install = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install", "-q"]
    wanted = [*(lower_bounds() if session.oldest else requirements()), *session.pins]
    if not smoke:
        # The newest test tools, with the versions that are to be tested.
        wanted += [requirement for requirement in requirements("test-all") if not requirement.startswith("torchdata ")]
    made = [uv, "venv", "-q", "--allow-existing", "-p", interpreter] if uv else [interpreter, "-m", "venv"]
    with log.open("a") as output:
        for command in ([*made, str(folder)], [*install, *wanted], [*install, "--no-deps", "-e", str(ROOT)]):
            subprocess.run(command, check=True, stdout=output, stderr=output, env=environment)
    return python


def versions(python: str) -> str:
    """What is installed of that on which results depend."""
    code = f"from importlib.metadata import version\nprint(*(f'{{n}} {{version(n)}}' for n in {SHOWN}), sep=', ')"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def run(session: Session, *, smoke: bool, arguments: list[str]) -> tuple[str, str]:
    """What happened, and with which versions."""
    interpreter = find_python(session.python)
    if interpreter is None:
        return f"not run: no Python {session.python} with venv on this machine", ""
    FOLDER.mkdir(exist_ok=True)
    log = FOLDER / f"{session.name}.log"
    log.write_text("")
    try:
        python = prepare(session, interpreter, smoke=smoke, log=log)
    except subprocess.CalledProcessError:
        return f"not run: it cannot be installed here, see {log.relative_to(ROOT)}", ""
    command = [python, str(ROOT / ".ci" / "smoke.py")]
    if not smoke:
        strict = ["-o", f"filterwarnings={STRICT}"] if session.strict else []
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *strict, *arguments]
    with log.open("a") as output:
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False).returncode
    last = (log.read_text().strip().splitlines() or [""])[-1]
    return ("passed" if code == 0 else f"FAILED, see {log.relative_to(ROOT)}") + f": {last}", versions(python)


def main() -> None:
    """Run the sessions that were asked for, and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="import, chain, read and resume, instead of the tests")
    parser.add_argument("--budget-s", type=float, help="begin no further session after so many seconds")
    parser.add_argument("--only", choices=[session.name for session in SESSIONS], action="append")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    options = parser.parse_args()
    began, failed = time.monotonic(), False
    for session in SESSIONS:
        if options.only and session.name not in options.only:
            continue
        spent_s = time.monotonic() - began
        if options.budget_s is not None and spent_s > options.budget_s:
            result, shown = f"not run: {spent_s:.0f} s were spent of {options.budget_s:.0f}", ""
        else:
            result, shown = run(session, smoke=options.smoke, arguments=options.arguments)
        failed = failed or result.startswith("FAILED")
        print(f"{session.name} ({time.monotonic() - began - spent_s:.0f} s): {result}", flush=True)
        if shown and not options.smoke:
            print(f"    {shown}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
