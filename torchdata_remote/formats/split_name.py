"""Split the names of loose files into key and extension, and notice files that share a key."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby, pairwise
from posixpath import splitext
from typing import Literal

from ..core import arguments as check
from .sample import split_key

Split = Callable[[str], tuple[str, str]]
SplitName = Literal["first", "last"] | Split | None

_MOST_EXTENSIONS = 300
# From the first dot of a base name on, if there is something before the last one, apart from a compression
_MIDDLE = re.compile(r"\.((?P<number>\d[\d.]*)|[^/]+?)\.(?!(gz|bz2|xz|zst)$)[^./]*(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
_BY_KIND = (
    ". Choose one kind by pattern=, such as '*.jpg', make one sample of both by shard_dataset, or pass "
    "split_name='first' if that is right."
)
_BY_DOT = (
    ". Pass split_name='first' if that is right, split_name='last' to split names at the last dot, or a function from "
    "a name to (key, extension)."
)


def splitter(split_name: SplitName) -> Split:
    """Return the function that splits paths, for a ``split_name=`` argument.

    Raises:
        TypeError: for another value.

    >>> splitter("last")("cat/22.05.PNG"), splitter("last")("README")
    (('cat/22_05', 'png'), ('README', ''))
    """
    if split_name in (None, "first"):
        return split_key
    example = "lambda name: (key, extension), or 'first' or 'last'"
    return partial(
        _split_by,
        splitext if split_name == "last" else check.function("split_name", split_name, example=example),
    )


def _split_by(function: Split, path: str) -> tuple[str, str]:
    folder, slash, name = path.rpartition("/")
    match function(name):
        case (str(key), str(extension)):
            # Keys of shards have no dots
            return f"{folder}{slash}{key.replace('.', '_')}" if key else "", extension.lstrip(".").lower()
        case answer:
            raise check.marked(
                TypeError(f"split_name must return (key, extension) for {name!r:.200}, got {check.shown(answer)}.")
            )


def shared_keys(split: Split | None) -> Callable[[list[str]], None]:
    """Return a function that is called with the paths of each page of a listing, and warns once of two with one key.

    Names that are split at the first dot only: those with equal keys are beside each other in a listing.

    Args:
        split: a path into key and extension; ``None`` checks nothing.
    """
    last: list[str] = []  # of the page before
    is_done = split is not split_key

    def check_page(paths: list[str]) -> None:
        nonlocal last, is_done
        paths = [] if is_done else [*last, *paths]
        last = paths[-1:]
        # Equal keys have equal names before their first dot
        if len({path.partition(".")[0] for path in paths}) == len(paths):
            return
        for path, other in pairwise(paths):
            if split_key(path)[0] == split_key(other)[0] != "":
                advice = _BY_KIND if splitext(path)[0] == splitext(other)[0] else _BY_DOT
                _warn(path, other, "two samples with one key" + advice)
                is_done = True
                return

    return check_page


def warn_of_merged(paths: Iterable[str], num_samples: int) -> None:
    """Name two files that became one sample at the first dot of their names, and look like two.

    What is between the first and the last dot belongs to a name if it is a number (``22.05.png``), and to a layout if
    it occurs in several samples (``a.seg.png``, ``b.seg.png``).

    Args:
        paths: of the files of all samples, those of each together.
        num_samples: is one if there are no others to compare a layout with.
    """
    alone: dict[str, list[str]] = {}  # extension -> two files, if they are of the only sample that has it
    for _, group in groupby(paths, lambda path: split_key(path)[0]):
        files = list(group)
        for found in filter(None, map(_MIDDLE.search, files)) if len(files) > 1 else ():
            pair = sorted(files, key=found.string.__ne__)[:2]
            extension = found[0].lower()
            if found["number"] or len(alone) > _MOST_EXTENSIONS:
                alone.setdefault("", pair)
            else:
                alone[extension] = [] if extension in alone else pair
    for extension, pair in alone.items():
        if pair and (num_samples > 1 or not extension[1:2].isalpha()):
            _warn(pair[0], pair[1], "one sample" + _BY_DOT)
            return


def _warn(one: str, other: str, what: str) -> None:
    warnings.warn(f"{one!r:.200} and {other!r:.200} are {what}", RuntimeWarning, stacklevel=3)
