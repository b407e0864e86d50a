"""Explain calls with wrong arguments: names that were probably meant, what is missing, where a check failed.

Costs nothing in a correct call but one Python call per construction: the signature is looked at after a ``TypeError``.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from .check import MESSAGE, a_kind
from .suggestions import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# Words of torchvision, WebDataset, LitData, fsspec
_SYNONYMS = {
    **dict.fromkeys(("root", "path", "urls", "uri", "source", "prefix", "input_dir"), "url"),
    **dict.fromkeys(("concurrency", "num_threads", "threads", "max_workers"), "max_in_flight"),
    **dict.fromkeys(("suffix", "glob", "extensions", "extension"), "pattern"),
    **dict.fromkeys(("size", "bufsize", "initial"), "buffer_size"),
    "base": "number_base",
    "pattern": "regex",
    "maxsize": "max_shard_bytes",
    "maxcount": "max_shard_samples",
    "handler": "on_bad_shard",
    "loader": "decoder",
    "max_retries": "retry",
    "retries": "retry",
    "output_dir": "url_template",
}
# Options that users look for in other functions
_IN_LOADER = frozenset({"batch_size", "num_workers", "collate_fn", "drop_last", "pin_memory", "prefetch_factor"})
_IN_STORAGE_OPTIONS = frozenset({"key", "secret", "token", "endpoint_url", "anon", "profile", "client_kwargs"})
_IN_WORLD = frozenset({"rank", "world_size", "num_replicas"})
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def explained(function_or_class: F) -> F:
    """Decorate a public function or class: calls with wrong arguments get errors that say what was expected.

    Signature, documentation and type stay as they are. The class of an error does too.
    """
    if isinstance(function_or_class, type):
        explain_init(function_or_class, function_or_class.__name__)
        return function_or_class
    name = function_or_class.__name__
    return _wrapped(function_or_class, name, num_own=0, doc=lambda: function_or_class.__doc__)


def explained_as(name: str) -> Callable[[F], F]:
    """Decorate a method that checks arguments while a pipe is read: errors begin with the pipe's name."""
    return lambda method: _wrapped(method, name, num_own=1, doc=lambda: method.__doc__)


def explain_init(cls: type, name: str) -> None:
    """Let calls of a class with wrong arguments be explained.

    Args:
        cls: the class; its base classes stay as they are.
        name: by which errors call it.
    """
    wrapped = _wrapped(cls.__init__, name, num_own=1, doc=lambda: cls.__doc__)  # type: ignore[misc]
    setattr(cls, "__init__", wrapped)  # noqa: B010  # mypy refuses an assignment to a method


def unknown_option(function: str, name: str, known: Iterable[str]) -> TypeError:
    """Make the error of a keyword argument that does not exist.

    >>> unknown_option("list_remote", "patern", ["pattern"])
    TypeError("list_remote() got an unexpected keyword argument 'patern'; did you mean 'pattern'?")
    """
    names = [other for other in known if not other.startswith("_")]
    synonym = _SYNONYMS.get(name, "")
    advice = f"; did you mean {synonym!r}?" if synonym in names else did_you_mean(name, names)
    advice = advice or _other_place(name, names)
    advice = advice or (f". It takes {', '.join(names)}." if names else ". It takes no keyword arguments.")
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{advice}")


def _other_place(name: str, known: Sequence[str]) -> str:
    """Return where an option of this name belongs, if users look for it here."""
    if name in _IN_LOADER:
        return f". Pass it to stateful_loader(pipe, {name}=...)."
    if name in _IN_STORAGE_OPTIONS and "storage_options" in known:
        return f'. Pass it in storage_options={{"{name}": ...}}.'
    if name in _IN_WORLD and "world" in known:
        return ". Pass world=World(rank=..., world_size=...)."
    return ""


def _wrapped(function: F, name: str, *, num_own: int, doc: Callable[[], str | None]) -> F:
    """Wrap a function.

    Args:
        function: to wrap.
        name: by which errors call it.
        num_own: number of first arguments that users do not pass, such as ``self``.
        doc: returns the documentation, whose ``Args`` describe what is missing.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, ValueError) as error:
            if MESSAGE in vars(error):
                error.args = (f"{name}: {vars(error)[MESSAGE]}",)
            elif type(error) is TypeError and error.__traceback__ is not None and error.__traceback__.tb_next is None:
                # raised by the call itself, before the function's first line
                problem = _problem(name, function, args, kwargs, num_own, doc())
                error.args = (problem,) if problem else error.args
            raise

    return call  # type: ignore[return-value]  # same signature


def _problem(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], num_own: int, doc: str | None
) -> str | None:
    """Return what is wrong with a call, or ``None`` if nothing is."""
    known = list(inspect.signature(function).parameters.values())[num_own:]
    args = args[num_own:]
    kinds = {parameter.kind for parameter in known}
    public = [p.name for p in known if p.name not in ("source_datapipe", "_part_bytes") and p.kind not in _VARIABLE]
    names = {parameter.name for parameter in known if parameter.kind not in _VARIABLE}
    unknown = [given for given in kwargs if given not in names]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        return str(unknown_option(name, unknown[0], public))
    positional = [parameter.name for parameter in known if parameter.kind in _POSITIONAL]
    if len(args) > len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        return _too_many(name, positional, args, public)
    twice = [given for given in positional[: len(args)] if given in kwargs]
    if twice:
        return f"{name}() got multiple values for argument {twice[0]!r}: by position and by name. Pass it once."
    given = {*positional[: len(args)], *kwargs}
    missing = [
        p.name
        for p in known
        if p.name not in given and p.default is inspect.Parameter.empty and p.kind not in _VARIABLE
    ]
    if not missing:
        return None
    required = [p for p in known if p.default is inspect.Parameter.empty and p.kind not in _VARIABLE]
    needed = [p for p in required if p.name != "source_datapipe"]
    spelling = ", ".join(p.name if p.kind in _POSITIONAL else f"{p.name}=..." for p in needed)
    advice = f" Write {name}({spelling})." if needed else ""
    described = "; ".join(f"{argument!r}{_described(argument, doc)}" for argument in missing)
    return f"{name}() is missing {described}.{advice}"


def _too_many(name: str, positional: Sequence[str], args: Sequence[Any], public: Sequence[str]) -> str:
    shift = positional[:1] == ["source_datapipe"]  # the pipe that a functional name is called on
    accepted, num_given = positional[shift:], len(args) - shift
    kinds = ", ".join(a_kind(value) for value in args[len(positional) :])
    by_name = [other for other in public if other not in accepted]
    takes = f"takes {len(accepted)} argument{'s' * (len(accepted) != 1)} by position" if accepted else (
        "takes no argument by position"
    )  # fmt: skip
    named = f" ({', '.join(accepted)})" if accepted else ""
    advice = f" Pass the rest by name: {', '.join(f'{other}=' for other in by_name)}." if by_name else ""
    return f"{name}() {takes}{named}, got {num_given}; not expected: {kinds}.{advice}"


def _described(argument: str, doc: str | None) -> str:
    """Return the first sentence of an argument's documentation, in brackets."""
    found = re.search(rf"^ +\*{{0,2}}{argument}: ((?:.|\n +(?![*\w]+: ))*)", doc or "", re.MULTILINE)
    if found is None:
        return ""
    description = re.sub(r":[a-z]+:|`| \([^()]*\)", "", " ".join(found[1].split()))
    return f" ({re.split(r'(?<=[.;:]) ', description, maxsplit=1)[0].rstrip('.;:')})"
