"""Functional names that a pipe of another package has too.

torch's registry has one pipe for each name, and refuses a second one. Here a second one is a warning, in whatever order
the two come: the name builds the other pipe, except on pipes of this package.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

PACKAGE = __name__.partition(".")[0]

SHARED: dict[str, Callable[..., Any]] = {}
"""Functional name -> the pipe of this package, or the function that imports it."""


def share_with_later_ones(base: Any, names: Sequence[str]) -> None:
    """Let pipes of other packages register these names later, as they may before.

    Args:
        base: ``IterDataPipe``, which holds the registry.
        names: functional names of this package.
    """
    replaced = base.register_datapipe_as_function.__func__
    register = getattr(replaced, "in_place_of", replaced)  # torch's, not that of an earlier import of this package

    def register_datapipe_as_function(cls: Any, function_name: str, pipe: Any, *args: Any, **options: Any) -> None:
        own = cls.functions.get(function_name) if function_name in names else None
        if own is None or not is_ours(own) or is_ours(pipe):
            register(cls, function_name, pipe, *args, **options)
        else:
            del cls.functions[function_name]
            register(cls, function_name, pipe, *args, **options)
            share(function_name, own if is_announced(own) else _built_by(own), pipe)

    register_datapipe_as_function.__doc__ = register.__doc__
    register_datapipe_as_function.in_place_of = register  # type: ignore[attr-defined]
    base.register_datapipe_as_function = classmethod(register_datapipe_as_function)


def share(name: str, own: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Keep a name for pipes of this package, and warn the line outside of it that brought the two together.

    Args:
        name: functional name.
        own: the pipe of this package, or the function that imports it.
        other: what the registry has under this name.
    """
    SHARED[name] = own
    own_class, their_class = "".join(word.capitalize() for word in name.split("_")), _place(_built_by(other))
    caller = sys._getframe(1)
    while caller.f_back is not None and _is_passed_over(caller):
        caller = caller.f_back
    warnings.warn_explicit(
        f"The functional name {name!r} belongs to two pipes, {PACKAGE}.{own_class} and {their_class}. .{name}(...) "
        f"builds {own_class} on pipes of {PACKAGE}, and {their_class} on all others, such as IterableWrapper. Rename "
        f"yours, or call the class: {PACKAGE}.{own_class}(pipe, ...).",
        RuntimeWarning,
        caller.f_code.co_filename,
        caller.f_lineno,
        registry=caller.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_passed_over(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in (PACKAGE, "torch", "importlib")


def is_announced(function: object) -> bool:
    """Whether a function stands for a pipe of this package that has not been imported."""
    return getattr(function, "announced_by", None) == PACKAGE


def is_ours(function: object) -> bool:
    """Whether a pipe, or a registered function, is of this package, or of an earlier import of it."""
    return is_announced(function) or _place(_built_by(function)).startswith(f"{PACKAGE}.")


def is_current(function: object) -> bool:
    """Whether the pipe behind a name is the one that an import finds: not announced, not of an earlier import."""
    pipe = _built_by(function)
    module = sys.modules.get(getattr(pipe, "__module__", ""))
    return getattr(module, getattr(pipe, "__qualname__", ""), None) is pipe


def is_of_reload(function: Callable[..., Any], pipe: object) -> bool:
    """Whether a registered function builds a class of the same module and name, whose module is executed again."""
    return _place(_built_by(function)) == _place(pipe)


def _built_by(function: Any) -> Any:
    """Return the class behind a name, for which torch registers a ``functools.partial``."""
    args = getattr(function, "args", None)
    return args[0] if isinstance(args, tuple) and args else function


def _place(pipe: object) -> str:
    return f"{getattr(pipe, '__module__', None)}.{getattr(pipe, '__qualname__', repr(pipe))}"
