"""Which objects of a package run this code: found on the stack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

_PACKAGE = __name__.partition(".")[0]


def callers(*packages: str) -> Iterator[object]:
    """The ``self`` of each method of some packages on this thread's stack, innermost first.

    A forked process has the stack of the one that it was forked from.

    Args:
        *packages: names of packages or modules, such as ``"accelerate.data_loader"``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_in(str(frame.f_globals.get("__name__", "")), packages):
            yield frame.f_locals.get("self")
        frame = frame.f_back


def calling_module() -> str:
    """Name of the module outside this package that has called into it; ``""`` if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != _PACKAGE:
            return module
        frame = frame.f_back
    return ""


def raised_here(error: BaseException) -> bool:
    """Whether an error was raised by a line of this package, and not by what it has called."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is not None and is_in(str(innermost.tb_frame.f_globals.get("__name__", "")), (_PACKAGE,))


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of some packages or modules, or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)
