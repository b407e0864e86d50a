"""Register functional names of pipes before the pipes are imported, and without importing torch.

A chain may begin with torch's own ``IterableWrapper``, whatever was imported first. So each name is registered as a
function that imports the pipes when it is called: at once if ``IterDataPipe`` exists, otherwise as soon as the module
that defines it has been executed. Until then an entry in ``sys.meta_path`` waits for that module, and for no other.

The last import of this package takes the place of those before, such as by ``importlib.reload``. Names that other
packages have too are shared: ``shared_names.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .shared_names import PACKAGE, SHARED, is_announced, is_current, is_of_reload, is_ours, share, share_with_later_ones

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Functions = dict[str, Callable[..., Any]]

_DEFINING_MODULE = "torch.utils.data.datapipes.datapipe"


class ImportedWhenCalled:
    """A functional name whose pipe has not been imported.

    Args:
        name: functional name.
        load: imports the pipes, which replace this object.
        functions: registry of functional names.
    """

    announced_by = PACKAGE  # an earlier import of this package has another class

    def __init__(self, name: str, load: Callable[[], object], functions: Functions) -> None:
        self._name = name
        self._load = load
        self._functions = functions

    def __call__(self, source_datapipe: Any, *args: Any, **kwargs: Any) -> Any:
        return self._pipe()(source_datapipe, *args, **kwargs)

    # What help(pipe.list_remote) shows: torch copies it from here
    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return self._pipe().__doc__

    def _pipe(self) -> Callable[..., Any]:
        self._load()
        return SHARED.get(self._name) or self._functions[self._name]


class FunctionalNames:
    """Functional names of one package.

    Args:
        names: functional names.
        load: imports the pipes, which register themselves under these names, after :func:`make_room`.
    """

    def __init__(self, names: Iterable[str], load: Callable[[], object]) -> None:
        self._names = tuple(names)
        self._load = load

    def register(self, base: Any) -> None:
        """Add the names to torch's registry, in place of those of an earlier import of this package.

        Args:
            base: ``IterDataPipe``, which holds the registry.
        """
        share_with_later_ones(base, self._names)
        for name in self._names:
            taken = base.functions.get(name)
            if taken is None or (is_ours(taken) and not is_current(taken)):
                base.functions[name] = ImportedWhenCalled(name, self._load, base.functions)
        # Last, as a warning may be an error
        for name in self._names:
            taken = base.functions[name]
            if not is_ours(taken) and name not in SHARED:
                share(name, ImportedWhenCalled(name, self._load, base.functions), taken)

    def register_when_imported(self) -> None:
        """Add the names to torch's registry, now or as soon as torch has defined it."""
        finder = _Finder(self)
        earlier = [other for other in sys.meta_path if _waits(other)]
        sys.meta_path.insert(0, finder)
        for other in earlier:
            sys.meta_path.remove(other)
        if _DEFINING_MODULE in sys.modules:
            # Waits for another thread that is just importing it
            finder.finish(import_module(_DEFINING_MODULE))


def make_room(name: str, pipe: type, functions: Functions) -> bool:
    """Tell whether a pipe of this package is to be registered, and remove what it replaces: torch refuses taken names.

    Args:
        name: functional name.
        pipe: class that is about to be registered.
        functions: registry of functional names.

    Returns:
        ``False`` if a pipe of another package has the name: it stays there, and is shared.
    """
    taken = functions.get(name)
    if taken is None:
        return True
    if not is_ours(taken):
        if name in SHARED:
            SHARED[name] = pipe
        else:
            share(name, pipe, taken)
        return False
    if is_announced(taken) or is_of_reload(taken, pipe):
        del functions[name]
    return True


def _waits(finder: object) -> bool:
    return getattr(finder, "waits_for", None) == PACKAGE


class _Finder:
    """A meta path finder that waits for the module that defines ``IterDataPipe``; leaves no trace in it.

    There is one at a time: two of them would ask each other without end.
    """

    waits_for = PACKAGE  # an earlier import of this package has another class

    def __init__(self, names: FunctionalNames) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname != _DEFINING_MODULE:
            return None
        for finder in sys.meta_path:
            find = None if _waits(finder) else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]  # importlib.abc takes 10 ms to import
                return spec
        return None

    def finish(self, module: ModuleType) -> None:
        """Register the names, and wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._names.register(module.IterDataPipe)


class _Loader:
    """Executes a module with its own loader, and then tells the finder."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.finish(module)
