"""Check arguments: each error names the argument, what was passed and what was expected.

NumPy's scalars, tensors without dimensions, and subclasses such as ``IntEnum`` are converted to Python's numbers and
flags, because torch compares types. Neither library is imported.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

if TYPE_CHECKING:
    from PIL.Image import Image

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=Enum)
Error = TypeVar("Error", TypeError, ValueError)

MESSAGE = "_message_of_argument"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def marked(error: Error, message: str | None = None) -> Error:
    """Mark an error as one of an argument, so that the public function puts its name before the message."""
    vars(error)[MESSAGE] = str(error) if message is None else message
    return error


def explained(function_or_class: F) -> F:
    """Decorate a public function or class: an error of an argument begins with its name."""
    if isinstance(function_or_class, type):
        explain_init(function_or_class, function_or_class.__name__)
        return function_or_class
    return explained_as(function_or_class.__name__)(function_or_class)


def explain_init(cls: type, name: str) -> None:
    """Let the errors of a class's arguments begin with a name; its base classes stay as they are."""
    wrapped = explained_as(name)(cls.__init__)  # type: ignore[misc]
    setattr(cls, "__init__", wrapped)  # noqa: B010  # mypy refuses an assignment to a method


def explained_as(name: str) -> Callable[[F], F]:
    """Decorate a function that checks arguments: their errors begin with this name."""

    def wrapped(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except (TypeError, ValueError) as error:
                if MESSAGE in vars(error):
                    error.args = (f"{name}: {vars(error)[MESSAGE]}",)
                raise

        return call  # type: ignore[return-value]  # same signature

    return wrapped


def unknown_option(function: str, name: str, known: Iterable[str]) -> TypeError:
    """Make the error of a keyword argument that does not exist.

    >>> unknown_option("list_remote", "patern", ["pattern"])
    TypeError("list_remote() got an unexpected keyword argument 'patern'; did you mean 'pattern'?")
    """
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{did_you_mean(name, known)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name that is nearest to ``name``, or ``""`` if none is near.

    Example:
        >>> did_you_mean("patern", ["pattern", "recursive"]), did_you_mean("x", ["pattern"])
        ("; did you mean 'pattern'?", '')
    """
    from difflib import get_close_matches  # needed in errors only

    # Without what differs between the spellings of one word: case and underscores
    by_folded = {re.sub("[_-]", "", other.lower()): other for other in known}
    nearest = get_close_matches(re.sub("[_-]", "", name.lower()), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[nearest[0]]!r}?" if nearest else ""


def a_kind(value: object) -> str:
    """Name the type of a value with its article.

    >>> a_kind(1), a_kind("x"), a_kind(None)
    ('an int', 'a str', 'None')
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def shown(value: object) -> str:
    """Show a value and its type in an error; of a mapping, which may hold secrets, only the names.

    >>> shown("16"), shown(True), shown({"key": "AKIA"}), shown(int)
    ("'16' (str)", 'True (bool)', "a dict with 'key'", 'the class int')
    """
    if isinstance(value, type | FunctionType):
        return f"the {'class' if isinstance(value, type) else 'function'} {value.__name__}"
    if isinstance(value, Mapping):
        return f"{a_kind(value)} with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    text = repr(value)
    if value is None or "://" in text or len(text) > 100 or text.startswith("<") or text == type(value).__name__:
        return a_kind(value)
    return f"{text} ({type(value).__name__})"


def int_of(value: Any) -> int | None:
    """Return what has ``__index__`` as an int; ``None`` for anything else, such as a bool, a float or an array.

    >>> int_of(3), int_of(True), int_of(3.0)
    (3, None, None)
    """
    if type(value) is int:
        return value
    return None if _is_bool(value) else _index(value)


def bool_of(value: Any) -> bool | None:
    """Return a bool, or an integer that is 0 or 1, as a bool; ``None`` for anything else.

    >>> bool_of(1), bool_of(2), bool_of("True")
    (True, None, None)
    """
    number = value if _is_bool(value) else _index(value)
    return bool(number) if number in (0, 1) else None


def float_of(value: Any) -> float | None:
    """Return a number as an int, if it is an integer, or a float; ``None`` for anything else, such as a bool or a text.

    Raises:
        OverflowError: for an integer that a float cannot hold.

    >>> float_of(3), float_of(0.5), float_of("0.5")
    (3, 0.5, None)
    """
    if _is_bool(value) or not hasattr(value, "__float__") or getattr(value, "ndim", 0) != 0:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):  # a complex tensor; a signaling NaN of decimal
        return None
    whole_number = int_of(value)
    return number if whole_number is None else whole_number


def _is_bool(value: Any) -> bool:
    # "bool" is NumPy's and "torch.bool" torch's
    dtype = str(getattr(value, "dtype", "")) if getattr(value, "ndim", 0) == 0 else ""
    return isinstance(value, bool) or dtype.endswith("bool")


def _index(value: Any) -> int | None:
    try:
        return operator.index(value) if getattr(value, "ndim", 0) == 0 else None
    except TypeError:
        return None


def is_pil_image(value: Any) -> TypeGuard[Image]:
    """Return whether a value is a ``PIL.Image``: none can be one before PIL has been imported.

    While another thread imports PIL, its module is there without its class.
    """
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return kind is not None and isinstance(value, kind)


def whole(name: str, value: Any, *, at_least: int | None = 1, or_none: bool = False, of: str = "") -> int:
    """Return an int, also from NumPy's integers.

    Args:
        name: of the argument.
        value: that was passed.
        at_least: lower limit; ``None`` for any int.
        or_none: whether the caller accepts ``None``, which the message mentions.
        of: what is counted, such as ``"samples"``.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is below the limit.

    Example:
        >>> whole("part_bytes", "8MiB")
        Traceback (most recent call last):
            ...
        TypeError: part_bytes must be an int of at least 1, got '8MiB' (str).
    """
    number = int_of(value)
    if number is not None and (at_least is None or number >= at_least):
        return number
    limit = "" if at_least is None else f" of at least {at_least}"
    counted = f"a number of {of}, " if of else ""
    expected = f"{name} must be {counted}an int{limit}{' or None' if or_none else ''}"
    if number is not None:
        raise marked(ValueError(f"{expected}, got {number}."))
    raise marked(TypeError(f"{expected}, got {shown(value)}."))


def whole_or_none(name: str, value: Any, *, at_least: int | None = 1) -> int | None:
    """Return an int or ``None``; raises as :func:`whole`."""
    return None if value is None else whole(name, value, at_least=at_least, or_none=True)


def seed_of(value: Any, *, or_none: str | None = None) -> int:
    """Return the seed of an order.

    Args:
        value: that was passed.
        or_none: what ``None`` means where it is allowed.

    Raises:
        TypeError: if it is not an int.
    """
    number = int_of(value)
    if number is None:
        expected = "seed must be an int" + (f", or None for {or_none}" if or_none else "")
        raise marked(TypeError(f"{expected}, got {shown(value)}."))
    return number


def seconds(name: str, value: Any, *, positive: bool = True) -> float:
    """Return a number of seconds; raises as :func:`real`."""
    return real(name, value, positive=positive, unit="a number of seconds")


def real(name: str, value: Any, *, positive: bool = True, unit: str = "a number") -> float:
    """Return a number as Python's int or float, whatever its type: waits and libraries refuse a ``Decimal``.

    Args:
        name: of the argument.
        value: that was passed.
        positive: whether it must be more than 0, or may be 0.
        unit: what the number is.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is negative, 0 though it must not be, or not a number (NaN).
    """
    try:
        number = float_of(value)
    except OverflowError:
        raise marked(ValueError(f"{name} must be a number that a float holds, got {shown(value)}.")) from None
    if number is None:
        raise marked(TypeError(f"{name} must be {unit}, got {shown(value)}."))
    if math.isnan(number) or number < 0 or (positive and number == 0):
        raise marked(ValueError(f"{name} must be {'positive' if positive else '0 or more'}, got {value}."))
    return number


def flag(name: str, value: Any) -> bool:
    """Return a bool. Those of NumPy and torch and the integers 0 and 1 are accepted.

    A text is refused, because ``"False"`` is true. torch compares types, so pass on what this returns.

    Raises:
        TypeError: for anything else.
    """
    found = bool_of(value)
    if found is None:
        raise marked(TypeError(f"{name} must be True or False, got {shown(value)}."))
    return found


def flag_or_none(name: str, value: Any) -> bool | None:
    """Return a bool or ``None``; raises as :func:`flag`."""
    return None if value is None else flag(name, value)


def text(name: str, value: Any, *, example: str, or_none: bool = False) -> str:
    """Return a str.

    Raises:
        TypeError: for anything else.
    """
    if not isinstance(value, str):
        other = ", or None" if or_none else ""
        raise marked(TypeError(f"{name} must be a str such as {example!r}{other}, got {shown(value)}."))
    return value


def text_or_none(name: str, value: Any, *, example: str) -> str | None:
    """Return a str or ``None``; raises as :func:`text`."""
    return None if value is None else text(name, value, example=example, or_none=True)


def extension(name: str, value: Any, *, example: str) -> str:
    """Return the extension of a member in lower case, as samples of shards have it.

    Raises:
        TypeError: for anything but a str.
        ValueError: for one with a dot before it, or with characters that separate extensions.
    """
    if not re.fullmatch(r"[^.\s,;*][^\s,;*]*", text(name, value, example=example)):
        allowed = f"Write {example!r}: no dot before it, no '*', comma or space."
        raise marked(ValueError(f"{name}: no member has the extension {value!r}. {allowed}"))
    return str(value).lower()


def path_or_url(name: str, value: Any, *, example: str) -> str:
    """Return a URL, or a local path that was given as ``str`` or ``os.PathLike``.

    Raises:
        TypeError: for anything else.
    """
    return text(name, os.fspath(value) if isinstance(value, os.PathLike) else value, example=example)


def local_path(name: str, value: Any, *, example: str) -> str:
    """Return the path of a local file or folder.

    Raises:
        TypeError: if it is neither ``str`` nor ``os.PathLike``.
        ValueError: for a URL, or an empty path.
    """
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    expected = f"{name} must be a local path such as {example!r}, got"
    if not isinstance(found, str):
        raise marked(TypeError(f"{expected} {shown(value)}."))
    if not found or _URL.match(found):
        what = "an empty str" if not found else f"a URL ({found.partition('://')[0]}://...)"
        raise marked(ValueError(f"{expected} {what}."))
    return found


def function(name: str, value: Any, *, example: str) -> Any:
    """Return a function, or another callable.

    Raises:
        TypeError: for what cannot be called, and for an exception's class: calling it raises nothing.
    """
    if not callable(value) or (isinstance(value, type) and issubclass(value, BaseException)):
        raise marked(TypeError(f"{name} must be a function such as {example}, got {shown(value)}."))
    return value


def function_or_none(name: str, value: Any, *, example: str) -> Any:
    """Return a function or ``None``; raises as :func:`function`."""
    return None if value is None else function(name, value, example=example)


def instance_or_none(name: str, value: Any, cls: type, *, example: str) -> Any:
    """Return an instance of a class, or ``None``.

    Raises:
        TypeError: for anything else, such as the class itself.
    """
    if value is None or isinstance(value, cls):
        return value
    raise marked(TypeError(f"{name} must be a {cls.__name__} or None, got {shown(value)}. Write {name}={example}."))


def choice(name: str, value: Any, options: type[E]) -> E:
    """Return a member of an enumeration, from the member or its name.

    Raises:
        ValueError: for another name.
        TypeError: for what is neither.
    """
    if isinstance(value, options):
        return value
    return options(one_of(name, value, [str(option.value) for option in options]))


def one_of(name: str, value: Any, names: Iterable[str]) -> str:
    """Return one of several texts.

    Raises:
        ValueError: for another text.
        TypeError: for anything else.
    """
    known = list(names)
    if value in known:
        return str(value)
    expected = f"{name} must be one of {', '.join(map(repr, known))}, got {shown(value)}"
    if isinstance(value, str):
        raise marked(ValueError(expected + (did_you_mean(value, known) or ".")))
    raise marked(TypeError(f"{expected}."))


_LOADER_OPTIONS: dict[str, Callable[[str, Any], Any]] = {
    "batch_size": whole_or_none,
    "drop_last": flag,
    "in_order": flag,
    "num_workers": functools.partial(whole, at_least=0),
    "persistent_workers": flag,
    "pin_memory": flag_or_none,
    "prefetch_factor": whole_or_none,
    "timeout": functools.partial(seconds, positive=False),
}


def converted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of ``DataLoader`` with Python's numbers and flags, which torch expects; others as they are.

    Raises:
        TypeError, ValueError: for the first one that is wrong.
    """
    return {
        name: _LOADER_OPTIONS[name](name, value) if name in _LOADER_OPTIONS else value
        for name, value in options.items()
    }


def check_start_method(context: Any) -> None:
    """Check a ``multiprocessing_context``: the name of a start method, or a context.

    Raises:
        TypeError, ValueError: with the names of this platform.
    """
    if not hasattr(context, "Process") and context != "forkserver":  # stateful_loader replaces that on Windows
        one_of("multiprocessing_context", context, multiprocessing.get_all_start_methods())
