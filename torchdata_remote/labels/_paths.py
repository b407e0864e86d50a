"""Labels taken from the path itself, and the one grammar of ``classes=`` arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import isfunction
from typing import Any

from ..core import arguments as check
from ..core.arguments import explained
from ..errors import LabelError, RemoteDataError
from ._class_numbers import Classes, class_numbers
from ._sources import MAX_LABEL, label_number

Labeller = Callable[[str], int | str]


@explained
def parent_directory() -> Labeller:
    """Create a labeller that returns the name of the parent directory.

    Raises:
        LabelError: when it is called with a path without a parent directory.

    Example:
        >>> parent_directory()("train/cat/1.jpg")
        'cat'
    """
    return ParentDirectory()


@explained
def from_pattern(regex: str | re.Pattern[str]) -> Labeller:
    r"""Create a labeller that returns the group of a regular expression.

    Args:
        regex: searched in the path; its only group is the name of the class.

    Raises:
        ValueError: if it has no group or several.
        LabelError: when it is called with a path without a match, or with an empty group.

    Example:
        >>> from_pattern(r"_([a-z]+)[0-9]*\.jpg$")("train/0001_cat7.jpg")
        'cat'
    """
    expected = "pattern must be a regular expression such as '^([^/]+)/'"
    given = getattr(regex, "pattern", regex)
    if isinstance(given, bytes):
        raise check.marked(TypeError(f"{expected}, because paths are str; got a pattern of bytes."))
    if not isinstance(given, str):
        raise check.marked(TypeError(f"{expected}, got {check.shown(regex)}."))
    try:
        pattern = re.compile(regex)
    except re.error as error:
        advice = " It looks like a glob." if isinstance(regex, str) and regex.startswith(("*", "?")) else ""
        raise check.marked(ValueError(f"{expected}, got {regex!r:.200}: {error}.{advice}")) from None
    if pattern.groups != 1:
        raise check.marked(
            ValueError(f"{expected}, with exactly one group, the class; {pattern.pattern!r:.200} has {pattern.groups}.")
        )
    return FromPattern(pattern)


@dataclass(frozen=True)
class ParentDirectory:
    """The labeller of :func:`parent_directory`."""

    def __call__(self, path: str) -> str:
        name = path.rpartition("/")[0].rpartition("/")[2]
        if name in ("", ".", ".."):
            raise LabelError(
                f"{path!r} has no parent directory to take a label from. If the label is elsewhere in the path, use "
                "labels.from_pattern(regex), or pattern= of label_from_path."
            )
        return name


@dataclass(frozen=True)
class FromPattern:
    """The labeller of :func:`from_pattern`."""

    pattern: re.Pattern[str]

    def __call__(self, path: str) -> str:
        match = self.pattern.search(path)
        if match is None or not match[1]:
            raise LabelError(f"{self.pattern.pattern!r} finds no label in {path!r}.")
        return match[1]


def labeller_of(
    classes: Classes | Labeller | None, *, name_of: Labeller | None = None, digits_are_numbers: bool = False
) -> Labeller:
    """Return the labeller that a ``classes=`` argument stands for.

    Args:
        classes: a labeller, which is returned as it is; class names or a dict name -> number, which number what
            ``name_of`` finds; ``None`` for what ``name_of`` finds.
        name_of: from path to class name; the parent directory by default.
        digits_are_numbers: whether the labeller has to give a number for each path on its own, without having seen the
            other paths: then a name that is in no table of classes but consists of digits is the number itself, and any
            other one is an error.

    Raises:
        TypeError, ValueError: as :func:`class_numbers`, and for a labeller together with ``name_of``.

    Example:
        >>> labeller_of(["cat", "dog"])("train/dog/1.jpg"), labeller_of(None)("train/dog/1.jpg")
        (1, 'dog')
    """
    if callable(classes):
        if isfunction(classes) and str(classes.__module__).startswith(__package__):
            name = f"labels.{classes.__name__}"
            raise check.marked(
                TypeError(f"classes must be a labeller, got the function {name} itself. Write {name}(...).")
            )
        if name_of is not None:
            raise check.marked(
                ValueError("classes= is a labeller, which takes no pattern=: use labels.from_pattern(regex) instead.")
            )
        table: Mapping[str, Any] = getattr(classes, "table", None) or {}
        numbers = {key: entry["id"] for key, entry in table.items()}
        return NumberedClasses(classes, numbers, digits_are_numbers=True) if digits_are_numbers else classes
    if classes is None and not digits_are_numbers:
        return name_of or ParentDirectory()
    return NumberedClasses(
        name_of or ParentDirectory(),
        {} if classes is None else class_numbers(classes),
        digits_are_numbers=digits_are_numbers,
    )


@dataclass(frozen=True)
class NumberedClasses:
    """A labeller: the number of the class that another labeller finds.

    Args:
        labeller: from path to class name; a number that it gives is handed on.
        numbers: class name -> number.
        digits_are_numbers: whether a name that is not in ``numbers`` may be a number in decimal digits.
    """

    labeller: Labeller
    numbers: Mapping[str, int] = field(repr=False)
    digits_are_numbers: bool = False

    def __call__(self, path: str) -> int:
        """The class number of a path.

        Raises:
            LabelError: if the label is neither the name of a class nor a number.
        """
        label = call_labeller(self.labeller, path)
        if not isinstance(label, str):
            number = label_number(label)
            if number is None:
                raise unexpected_label(path, label, has_table=bool(self.numbers))
            return number
        if label in self.numbers:
            return self.numbers[label]
        if self.digits_are_numbers and label.isascii() and label.isdigit() and len(label) < 19:
            found = label_number(int(label))
            if found is None:
                raise LabelError(
                    f"{path!r} has the label {label!r}, expected a number from 0 to {MAX_LABEL}. If it is a name, pass "
                    "classes=."
                )
            return found
        if not self.numbers:
            raise LabelError(
                f"{path!r} has the label {label!r}, which is not a number, and no classes are known: pass classes=, "
                "their names or a labeller that gives numbers."
            )
        known = sorted(self.numbers)
        more = ", ..." if len(known) > 10 else ""
        what = f"{path!r} has the label {label!r}, which is {'not a number, and ' if self.digits_are_numbers else ''}"
        raise LabelError(f"{what}none of the {len(known)} classes {', '.join(known[:10])}{more}.")


def call_labeller(labeller: Labeller, path: str) -> object:
    """Call a labeller, which may be a user's function.

    Raises:
        LabelError: if it raises anything but an error of this package. Names the path.
    """
    try:
        return labeller(path)
    except RemoteDataError:  # it names the path, or the URL that could not be read
        raise
    except Exception as error:  # anything may be wrong in a user's function
        raise LabelError(f"{path!r} has no label: the labeller raised {error!r}.") from error


def unexpected_label(path: str, label: object, *, has_table: bool) -> LabelError:
    """The error of a label that is neither a class's name nor its number."""
    expected = (
        "a class of the labeller's table: its id as an int, or its key."
        if has_table
        else f"the name of a class, which is not empty, or its number from 0 to {MAX_LABEL}."
    )
    return LabelError(f"{path!r} has the label {label!r:.100} ({type(label).__name__}), expected {expected}")
