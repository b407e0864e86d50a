"""Labels that the path itself holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import LabelError

Classes = Sequence[str] | Mapping[str, int]
Labeller = Callable[[str], int | str]


def parent_directory() -> Labeller:
    """A labeller: the name of the folder that the file lies in.

    Raises:
        LabelError: when it is called with a path without a folder.

    Example:
        >>> parent_directory()("train/cat/1.jpg")
        'cat'
    """
    return ParentDirectory()


def from_pattern(regex: str | re.Pattern[str]) -> Labeller:
    r"""A labeller: what a regular expression finds in the path.

    Args:
        regex: searched in the path; its only group is the class's name.

    Raises:
        ValueError: if it has no group or several.
        LabelError: when it is called with a path in which the expression finds nothing, or an empty name.

    Example:
        >>> from_pattern(r"_([a-z]+)[0-9]*\.jpg$")("train/0001_cat7.jpg")
        'cat'
    """
    pattern = re.compile(regex)
    if not isinstance(pattern.pattern, str):
        raise TypeError(f"from_pattern searches in paths, which are str; got a pattern of bytes: {pattern.pattern!r}")
    if pattern.groups != 1:
        raise ValueError(f"from_pattern needs exactly one group, {pattern.pattern!r} has {pattern.groups}.")
    return FromPattern(pattern)


@dataclass(frozen=True)
class ParentDirectory:
    """What :func:`parent_directory` returns."""

    def __call__(self, path: str) -> str:
        name = path.rpartition("/")[0].rpartition("/")[2]
        if name in ("", ".", ".."):
            raise LabelError(
                f"{path!r} has no parent directory to take a label from. If the label sits elsewhere in the path, use "
                "from_pattern(regex)."
            )
        return name


@dataclass(frozen=True)
class FromPattern:
    """What :func:`from_pattern` returns."""

    pattern: re.Pattern[str]

    def __call__(self, path: str) -> str:
        match = self.pattern.search(path)
        if match is None or not match[1]:
            raise LabelError(f"{self.pattern.pattern!r} finds no label in {path!r}.")
        return match[1]


def class_numbers(classes: Classes) -> dict[str, int]:
    """Class name -> number.

    Args:
        classes: names in the order of their numbers, from 0; or the mapping itself.

    Raises:
        ValueError: if a name comes twice.
    """
    if isinstance(classes, Mapping):
        return dict(classes)
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise TypeError(
            f"classes must be a list of names or a dict name -> int, got a {type(classes).__name__}: {classes!r:.200}"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    if len(numbers) < len(classes):
        twice = sorted({name for name in classes if list(classes).count(name) > 1})
        raise ValueError(f"classes names {twice} more than once.")
    return numbers


def label_text(path: str, pattern: re.Pattern[str] | None) -> str:
    """The part of a path that names the class.

    Args:
        path: a key or the path of an object.
        pattern: searched in ``path``, its only group is the label; ``None`` takes the parent directory.

    Raises:
        LabelError: if there is no such part.

    Example:
        >>> label_text("train/cat/0001", None)
        'cat'
        >>> label_text("0001_dog", re.compile(r"_([a-z]+)$"))
        'dog'
    """
    if pattern is not None:
        match = pattern.search(path)
        if match is None or match[1] is None:
            raise LabelError(f"{pattern.pattern!r} finds no label in {path!r}.")
        return str(match[1])
    parent = path.rpartition("/")[0].rpartition("/")[2]
    if not parent:
        raise LabelError(
            f"{path!r} has no parent directory to take a label from. If the label sits elsewhere in the path, "
            "pass pattern= with one group."
        )
    return parent


def label_number(text: str, numbers: Mapping[str, int]) -> int:
    """The class number of a label: its entry in ``numbers``, or the number that it is.

    Raises:
        LabelError: if it is neither.

    Example:
        >>> label_number("dog", {"cat": 0, "dog": 1}), label_number("007", {})
        (1, 7)
    """
    if text in numbers:
        return numbers[text]
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    known = f"the {len(numbers)} classes {sorted(numbers)[:10]}" if numbers else "any class: pass classes="
    raise LabelError(f"Label {text!r} is neither a number nor among {known}.")
