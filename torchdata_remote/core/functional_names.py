"""Register functional names of pipes before the pipes are imported, and without importing torch.

A chain may begin with torch's own ``IterableWrapper``, whatever was imported first. So each name is registered as a
function that imports the pipes when it is called: at once if ``IterDataPipe`` exists, otherwise as soon as the module
that defines it has been executed. Until then an entry in ``sys.meta_path`` waits for that module, and for no other.

torch's registry has one pipe for each name. A name that another package registered before stays that package's, with a
warning; pipes of this package find their own.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_DEFINING_MODULE = "torch.utils.data.datapipes.datapipe"

OWN: dict[str, Callable[..., Any]] = {}
"""Functional name -> the pipe of this package, once it has been imported."""

_one_at_a_time = threading.RLock()


def import_first(name: str, package: str, *, after_torch: bool) -> ModuleType:
    """Import a module of this package when a name of it is first used, in one thread at a time.

    Python locks each module by itself, so two threads that import different modules of one package may find each
    other's half executed, or each wait for the other. torch then fails, and cannot be imported again.

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


class _ImportedWhenCalled:
    """A functional name whose pipe has not been imported."""

    def __init__(self, name: str, load: Callable[[], object]) -> None:
        self._name, self._load = name, load

    def __call__(self, source_datapipe: Any, *args: Any, **kwargs: Any) -> Any:
        return self._pipe()(source_datapipe, *args, **kwargs)

    # What help(pipe.list_remote) shows: torch copies it from here
    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self._pipe().__doc__

    def _pipe(self) -> Callable[..., Any]:
        self._load()
        return OWN[self._name]


class _Finder:
    """A meta path finder that waits for the module that defines ``IterDataPipe``."""

    def __init__(self, finish: Callable[[ModuleType], None]) -> None:
        self.finish = finish

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _DEFINING_MODULE else None
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader

            def executed(module: ModuleType) -> None:
                del loader.exec_module  # that of its class is left
                loader.exec_module(module)
                self.finish(module)

            loader.exec_module = executed
        return spec


def register_when_imported(names: Sequence[str], load: Callable[[], object]) -> None:
    """Add functional names to torch's registry, now or as soon as torch has defined it.

    Args:
        names: functional names.
        load: imports the pipes, which register themselves under these names, after :func:`is_free`.
    """

    def finish(module: Any) -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        functions = module.IterDataPipe.functions
        for name in names:
            if is_free(name, functions):
                functions[name] = _ImportedWhenCalled(name, load)
            else:
                warnings.warn(
                    f"The functional name {name!r} belongs to two pipes: .{name}(...) builds that of {_PACKAGE} on its "
                    f"own pipes, and {functions[name]} on all others, such as IterableWrapper. Rename yours, or call "
                    f"the class in {_PACKAGE}.pipes.",
                    RuntimeWarning,
                    stacklevel=3,
                )

    finder: Any = _Finder(finish)
    sys.meta_path.insert(0, finder)
    if _DEFINING_MODULE in sys.modules:
        # Waits for another thread that is just importing it
        finish(import_module(_DEFINING_MODULE))


def is_free(name: str, functions: dict[str, Callable[..., Any]]) -> bool:
    """Free a functional name, announced or of an earlier import of this package: torch refuses taken ones.

    Args:
        name: functional name.
        functions: registry of functional names.

    Returns:
        ``False`` if it belongs to a pipe of another package.
    """
    taken: Any = functions.get(name)
    kind = type(taken) if isinstance(taken, _ImportedWhenCalled) else (getattr(taken, "args", None) or (taken,))[0]
    if taken is not None and str(getattr(kind, "__module__", "")).partition(".")[0] != _PACKAGE:
        return False
    functions.pop(name, None)
    return True
