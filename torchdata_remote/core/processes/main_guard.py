"""Detect scripts that start worker processes outside of ``if __name__ == "__main__":``.

A process that is started by spawn or forkserver imports the script of its parent. A statement of the script that starts
processes is then executed again, in the new process, where multiprocessing refuses it: the worker ends, and its parent
waits.
"""

from __future__ import annotations

import ast
import multiprocessing
import sys
import tokenize
from pathlib import Path
from types import FrameType
from typing import Any

from ...errors import WorkerStartError

# Names by which a script can tell a worker from its parent
_TELLING = {"__name__", "__mp_main__", "parent_process", "current_process", "get_worker_info"}


def require_main_guard() -> None:
    """Check that a process that imports this script would not start worker processes itself.

    Call it before processes are started by spawn or forkserver. The check reads the script, so that the error is raised
    before anything was started. A script with conditions that may tell a worker from its parent passes; if it starts
    processes in a worker nevertheless, this raises there.

    Raises:
        WorkerStartError: names the script and the line.
    """
    main: Any = sys.modules["__main__"]
    if getattr(main, "__file__", None) == "<stdin>":
        del main.__file__  # multiprocessing would import a file of this name
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise WorkerStartError(
            "A worker process was asked to start worker processes, while it imported the script of its parent. "
            + _advice("the code that starts them")
        )
    found = _unguarded_line()
    if found is not None:
        path, line = found
        raise WorkerStartError(
            f'{path}, line {line}: worker processes would be started outside of `if __name__ == "__main__":`. Each of '
            "them imports the script, and would start workers again. " + _advice("this line")
        )


def name_missing_guard(error: Exception) -> None:
    """Raise a better error, if workers ended while they started, and nothing in the script tells them from its parent.

    :func:`require_main_guard` lets a script pass that starts workers under any condition. Call this in the ``except``
    of what starts them.

    Args:
        error: what was raised.

    Raises:
        WorkerStartError: names the script and the line, in place of the error.
    """
    if "exited unexpectedly" not in str(error):
        return
    found = _unguarded_line(under_any_condition=True)
    if found is not None:
        path, line = found
        raise WorkerStartError(
            f"{path}, line {line}: a worker process ended while it started. Each of them imports the script, and its "
            'condition at this line is no `if __name__ == "__main__":`: it holds in them, too, and would start workers '
            "again. " + _advice("this line")
        ) from None


def is_forking(context: Any) -> bool:
    """Return whether a multiprocessing context forks this process, so that nothing is imported or pickled.

    Args:
        context: of a loader; ``None`` is the default one.
    """
    if context is not None:
        return bool(context.get_start_method() == "fork")
    # The default may still be set by the user, which get_start_method() without an argument would prevent
    return (multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]) == "fork"


def is_main_imported() -> bool:
    """Return whether a new process imports this one's script: not that of a notebook or ``python -m package``."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    is_package = spec is not None and spec.name.rpartition(".")[2] == "__main__"
    return bool(getattr(main, "__file__", None)) and not is_package and not getattr(sys, "frozen", False)


def _advice(what: str) -> str:
    return (
        f"Put {what} into a function, and call it at the end of the script: "
        '`if __name__ == "__main__": main()`. num_workers=0 needs no processes.'
    )


def _unguarded_line(*, under_any_condition: bool = False) -> tuple[str, int] | None:
    """Return path and line of the script's current statement, if every process that imports it executes it, too.

    Args:
        under_any_condition: whether a condition counts as none if it cannot tell a worker from its parent.
    """
    if not is_main_imported():
        return None
    main = sys.modules["__main__"]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    if frame is None:
        return None  # another thread
    path, line = frame.f_code.co_filename, frame.f_lineno
    try:
        with tokenize.open(path) as file:
            script = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None
    if _tells_workers(script) or (_is_conditional(script, line) and not under_any_condition):
        return None
    return Path(path).name, line


def _is_conditional(script: ast.Module, line: int) -> bool:
    """Whether the script executes a line under a condition only."""
    return any(
        isinstance(node, ast.If | ast.IfExp | ast.Match) and node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(script)
    )


def _tells_workers(script: ast.Module) -> bool:
    """Whether a condition of the script may tell workers from their parent."""
    conditions = [
        node.subject if isinstance(node, ast.Match) else node.test
        for node in ast.walk(script)
        if isinstance(node, ast.If | ast.IfExp | ast.Match | ast.While)
    ]
    return any(_TELLING & set(_words(part)) for condition in conditions for part in ast.walk(condition))


def _words(node: ast.AST) -> tuple[object, ...]:
    return tuple(getattr(node, name) for name in ("id", "attr", "value") if isinstance(getattr(node, name, None), str))
