"""Find the callers of this code on the call stack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

_PACKAGE = __name__.partition(".")[0]


def callers(*packages: str) -> Iterator[object]:
    """Yield the ``self`` of each method of some packages on this thread's stack, innermost first.

    A forked process has the stack of its parent.

    Args:
        *packages: names of packages or modules, such as ``"accelerate.data_loader"``.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_in(str(frame.f_globals.get("__name__", "")), packages):
            yield frame.f_locals.get("self")
        frame = frame.f_back


def calling_module() -> str:
    """The name of the module that has called into this package; ``""`` if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != _PACKAGE:
            return module
        frame = frame.f_back
    return ""


def is_in(module: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of these packages or modules, or inside one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)
