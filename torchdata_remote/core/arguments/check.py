"""Check the kind of an argument: a flag, a text, a path, a function, an instance, one of several names.

A failed check raises ``TypeError`` or ``ValueError`` whose message starts with the argument. The public function in
whose call this happens puts its own name before it: see ``calls``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum
from types import FunctionType
from typing import Any, TypeVar

from .scalars import bool_of
from .suggestions import did_you_mean

E = TypeVar("E", bound=Enum)
Error = TypeVar("Error", TypeError, ValueError)

MESSAGE = "_message_of_argument"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def marked(error: Error, message: str | None = None) -> Error:
    """Mark an error as one of an argument, so that the public function puts its name before the message."""
    vars(error)[MESSAGE] = str(error) if message is None else message
    return error


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
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, FunctionType):
        return f"the function {value.__name__}"
    if isinstance(value, Mapping):
        return f"{a_kind(value)} with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    if value is None:
        return "None"
    text = repr(value)
    if "://" in text or len(text) > 100 or text.startswith("<") or text == type(value).__name__:
        return a_kind(value)
    return f"{text} ({type(value).__name__})"


def flag(name: str, value: Any) -> bool:
    """Return a bool. Those of NumPy and torch and the integers 0 and 1 are accepted.

    A text is refused, because ``"False"`` is true. torch compares types, so pass on what this returns.

    Raises:
        TypeError: for anything else.
    """
    found = bool_of(value)
    if found is not None:
        return found
    advice = ""
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "yes", "no", "0", "1"):
        advice = f" Write {value.strip().lower() in ('true', 'yes', '1')}, without quotes."
    raise marked(TypeError(f"{name} must be True or False, got {shown(value)}.{advice}"))


def flag_or_none(name: str, value: Any) -> bool | None:
    """Return a bool or ``None``.

    Raises:
        TypeError: as :func:`flag`.
    """
    return None if value is None else flag(name, value)


def text(name: str, value: Any, *, example: str) -> str:
    """Return a str.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(value, str):
        return value
    raise marked(TypeError(f"{name} must be a str such as {example!r}, got {shown(value)}.{_decoded(value)}"))


def extension(name: str, value: Any, *, example: str) -> str:
    """Return the extension of a member in lower case, as samples of shards have it.

    Raises:
        TypeError: for anything but a str.
        ValueError: for one with a dot before it, or with characters that separate extensions.
    """
    if not re.fullmatch(r"[^.\s,;*][^\s,;*]*", text(name, value, example=example)):
        raise marked(
            ValueError(
                f"{name}: no member has the extension {value!r}. Write {example!r}: no dot before it, no '*', comma or "
                "space."
            )
        )
    return str(value).lower()


def text_or_none(name: str, value: Any, *, example: str) -> str | None:
    """Return a str or ``None``.

    Raises:
        TypeError: for anything else.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value
    raise marked(TypeError(f"{name} must be a str such as {example!r}, or None, got {shown(value)}.{_decoded(value)}"))


def path_or_url(name: str, value: Any, *, example: str) -> str:
    """Return a URL, or a local path that was given as ``str`` or ``os.PathLike``.

    Raises:
        TypeError: for anything else.
    """
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    return text(name, found, example=example)


def local_path(name: str, value: Any, *, example: str) -> str:
    """Return the path of a local file or folder.

    Raises:
        TypeError: if it is neither ``str`` nor ``os.PathLike``.
        ValueError: for a URL, or an empty path.
    """
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise marked(
            TypeError(f"{name} must be a local path such as {example!r}, got {shown(value)}.{_decoded(found)}")
        )
    if not found or _URL.match(found):
        what = "an empty str" if not found else f"a URL ({found.partition('://')[0]}://...)"
        raise marked(ValueError(f"{name} must be a local path such as {example!r}, got {what}."))
    return found


def function(name: str, value: Any, *, example: str) -> Any:
    """Return a function, or another callable.

    Raises:
        TypeError: for what cannot be called, and for an exception's class: calling it raises nothing.
    """
    if isinstance(value, type) and issubclass(value, BaseException):
        raise marked(
            TypeError(
                f"{name} must be a function such as {example}, got the class {value.__name__}: calling it makes an "
                "error, and does not raise it."
            )
        )
    if not callable(value):
        raise marked(TypeError(f"{name} must be a function such as {example}, got {shown(value)}.{_called(value)}"))
    return value


def function_or_none(name: str, value: Any, *, example: str) -> Any:
    """Return a function or ``None``.

    Raises:
        TypeError: as :func:`function`.
    """
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
    names = [str(option.value) for option in options]
    expected = f"{name} must be one of {', '.join(map(repr, names))}, got {shown(value)}"
    if not isinstance(value, str):
        raise marked(TypeError(f"{expected}."))
    if value not in names:
        raise marked(ValueError(expected + (did_you_mean(value, names) or ".")))
    return options(value)


def _decoded(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return " Decode the bytes: value.decode()."
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
        return " Pass the str itself, not a list of it."
    return ""


def _called(value: object) -> str:
    return " Pass the function itself, not what it returned." if value is None else ""
