"""Split the names of loose files into key and extension, and notice files that share a key."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal

from ..core.arguments import check
from .nested import is_archive_name
from .sample import split_key

Split = Callable[[str], tuple[str, str]]
SplitName = Literal["first", "last"] | Split | None


def splitter(split_name: SplitName) -> Split:
    """Return the function that splits paths, for a ``split_name=`` argument.

    Raises:
        TypeError: for another value.

    >>> splitter("last")("cat/22.05.PNG"), splitter("last")("README")
    (('cat/22_05', 'png'), ('README', ''))
    """
    if split_name is None or split_name == "first":
        return split_key
    if split_name == "last":
        return partial(_split_by, _at_last_dot)  # dots become underscores, as keys of shards have none
    return partial(
        _split_by,
        check.function("split_name", split_name, example="lambda name: (key, extension), or 'first' or 'last'"),
    )


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
        split: a path into key and extension; ``None`` checks nothing.
        what: the two are.
    """

    def __init__(self, split: Split | None, what: str = "two samples with one key") -> None:
        self._split, self._what = split, what
        self._last: list[str] = []  # of the page before

    def __call__(self, paths: list[str]) -> None:
        paths = [*self._last, *paths]
        self._last = paths[-1:]
        # Equal keys have equal names before their first dot
        is_plain = self._split in _AT_FIRST and len({path.partition(".")[0] for path in paths}) == len(paths)
        if self._split is None or is_plain:
            return
        found: dict[str, str] = {}
        for path in paths:
            key = self._split(path)[0]
            other = found.setdefault(key, path)
            if key and other != path:
                self._split = None  # once
                warnings.warn(
                    f"{other!r:.200} and {path!r:.200} are {self._what}. Pass split_name='first' if that is right, "
                    "split_name='last' to split names at the last dot, or a function from a name to (key, extension).",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return


def split_by_kind(path: str) -> tuple[str, str]:
    """Split at the first dot, with the last part of the extension in the key: ``22.05.png`` is ``22 png``."""
    key, extension = split_key(path)
    is_member = bool(key) and not is_archive_name(path)
    return f"{key} {extension.rpartition('.')[2]}" if is_member else "", extension


_AT_FIRST = (split_key, split_by_kind)
