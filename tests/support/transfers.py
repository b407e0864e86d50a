"""Trees of files of any names, and pushes and pulls in processes that a test may end."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import random
import resource
import shutil
import signal
import tempfile
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import torchdata_remote as tdr

Tree = dict[str, bytes]
QUICK: dict[str, Any] = {"retry": tdr.RetryPolicy(deadline_s=60, first_wait_s=0.01), "max_in_flight": 3}
_OWN = (".torchdata_remote-pull.json", ".torchdata_remote-pull.lock", ".torchdata_remote-pull.journal")

_names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/\\"), min_size=1, max_size=6
).filter(lambda name: name not in (".", ".."))
_paths = st.lists(_names, min_size=1, max_size=3).map("/".join)
_contents = st.builds(
    lambda size, seed: random.Random(seed).randbytes(size), st.integers(0, 400), st.integers(0, 1 << 20)
)
trees = st.dictionaries(_paths, _contents, min_size=1, max_size=8).filter(
    lambda tree: not any(other.startswith(path + "/") for path in tree for other in tree)
)


def write_tree(folder: Path, tree: Tree) -> None:
    """Make a folder hold these files and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, data in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def read_tree(folder: Path) -> Tree:
    """Its files, without those that transfers keep there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in _OWN
    }


def counts(done: tdr.Transferred) -> tuple[int, int, int, int]:
    """Files copied, unchanged, removed, foreign."""
    return done.num_files, done.num_unchanged, done.num_removed, done.num_foreign


def push(folder: Path, url: str, **options: Any) -> tdr.Transferred:
    return tdr.push(folder, url, **{**QUICK, **options})


def pull(url: str, folder: Path, **options: Any) -> tdr.Transferred:
    return tdr.pull(url, folder, **{**QUICK, **options})


class Job:
    """A push or a pull in a process of its own.

    Args:
        kind: ``"push"`` or ``"pull"``.
        source: as they take it.
        target: likewise.
        **options: theirs; ``fsize`` limits the size of files; ``nobody`` does it without the rights of root.
    """

    def __init__(self, kind: str, source: object, target: object, **options: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        self._answers, other = context.Pipe(duplex=False)
        arguments = (kind, str(source), str(target), options, other)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._started = threading.Event()

    def start(self) -> Job:
        self._process.start()
        self._started.set()
        return self

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, also from a hook that its first request calls."""
        assert self._started.wait(60)
        os.kill(self._process.pid or 0, how)

    def next_warning(self) -> str:
        """Wait for it."""
        kind, text = self._answers.recv()
        assert kind == "log"
        return str(text)

    def wait(self) -> dict[str, Any]:
        """What it returned, or ``{"error": ...}``; nothing if it was killed."""
        self._process.join(120)
        assert self._process.exitcode is not None
        found: dict[str, Any] = {}
        with contextlib.suppress(EOFError):
            while self._answers.poll():
                kind, value = self._answers.recv()
                found = value if kind == "done" else found
        return found

    def run(self) -> dict[str, Any]:
        return self.start().wait()


def _work(kind: str, source: str, target: str, options: dict[str, Any], answers: Connection) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: answers.send(("log", record.getMessage()))  # type: ignore[method-assign]
    logging.getLogger("torchdata_remote").addHandler(handler)
    if (fsize := options.pop("fsize", None)) is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fsize, fsize))
    if options.pop("nobody", False) and os.getuid() == 0:
        tdr.pull(source, tempfile.mkdtemp())  # which imports what nobody may not be allowed to read
        os.setgid(65534)
        os.setuid(65534)
    try:
        copy = tdr.push if kind == "push" else tdr.pull
        done: dict[str, Any] = dict(vars(copy(source, target, **{**QUICK, **options})))
    except BaseException as error:
        done = {"error": f"{type(error).__name__}: {error}"}
    answers.send(("done", done))
