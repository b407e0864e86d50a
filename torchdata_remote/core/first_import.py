"""Import a module when a name of it is first used, which may be in several threads at once.

Python locks each module by itself, so two threads that import different modules of one package may find each other's
half executed, or each wait for the other. torch then fails, and cannot be imported again.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from types import ModuleType

_one_at_a_time = threading.RLock()


def import_first(name: str, package: str, *, after_torch: bool) -> ModuleType:
    """Import a module of this package, in one thread at a time.

    Args:
        name: relative to the package.
        package: that holds it.
        after_torch: whether the module imports torch. All of torch is imported before a part of it: in other threads
            ``import torch`` then waits for the same lock, and a module that torch itself imports may use this package.

    Returns:
        The module.
    """
    if after_torch:
        import_module("torch")
        import_module("torch.utils.data")
    with _one_at_a_time:
        return import_module(name, package)


def _after_fork_in_child() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
