"""Split the names of loose files into key and extension, and notice files that share a key."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal

from ..core.arguments import check
from .sample import split_key

Split = Callable[[str], tuple[str, str]]
SplitName = Literal["first", "last"] | Split | None


def splitter(split_name: SplitName) -> Split:
    """Return the function that splits paths, for a ``split_name=`` argument.

    Raises:
        ValueError: for another value.
    """
    if split_name is None or split_name == "first":
        return split_key
    if split_name == "last":
        return split_at_last_dot
    if not callable(split_name):
        raise check.marked(
            ValueError(
                "split_name must be 'first' or 'last', the dot at which names are split, None, or a function from a "
                f"name to (key, extension), got {check.shown(split_name)}."
            )
        )
    return partial(_split_by, split_name)


def split_at_last_dot(path: str) -> tuple[str, str]:
    """Split at the last dot of the base name. Dots before it become underscores: keys of shards have none.

    >>> split_at_last_dot("cat/22.05.PNG"), split_at_last_dot("README")
    (('cat/22_05', 'png'), ('README', ''))
    """
    return _split_by(_at_last_dot, path)


def _at_last_dot(name: str) -> tuple[str, str]:
    key, dot, extension = name.rpartition(".")
    return (key.replace(".", "_"), extension) if dot else (name, "")


def _split_by(function: Split, path: str) -> tuple[str, str]:
    folder, slash, name = path.rpartition("/")
    answer = function(name)
    if not (isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(part, str) for part in answer)):
        raise check.marked(
            TypeError(f"split_name must return (key, extension) for {name!r:.200}, got {check.shown(answer)}.")
        )
    key, extension = answer
    return f"{folder}{slash}{key}" if key else "", extension.lower()


class SharedKeys:
    """Warns once if two files of a listing have the same key: called with the paths of each page.

    Args:
        split: a path into key and extension.
    """

    def __init__(self, split: Split) -> None:
        self._split, self._is_over = split, False
        self._last: list[str] = []  # of the page before

    def __call__(self, paths: list[str]) -> None:
        paths = [*self._last, *paths]
        self._last = paths[-1:]
        # Equal keys have equal names before their first dot
        if self._is_over or (
            self._split is split_key and len({path.partition(".")[0] for path in paths}) == len(paths)
        ):
            return
        found: dict[str, str] = {}
        for path in paths:
            key = self._split(path)[0]
            other = found.setdefault(key, path)
            if key and other != path:
                self._is_over = True
                warn_of_key(other, path, key, "two samples with one key")
                return


def warn_of_key(one: str, other: str, key: str, what: str) -> None:
    """Warn that two files such as ``22.05.png`` and ``22.06.png`` have the same key.

    Args:
        one: path.
        other: path.
        key: of both.
        what: they are.
    """
    warnings.warn(
        f"{one!r:.200} and {other!r:.200} are {what}, {key!r:.200}. Pass split_name='first' if that is right, "
        "split_name='last' to split names at their last dot, or a function from a name to (key, extension).",
        RuntimeWarning,
        stacklevel=3,
    )
