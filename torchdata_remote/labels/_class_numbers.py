"""Number the classes that a ``classes=`` argument names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ..core import arguments as check
from ..core.arguments import int_of
from ._sources import MAX_LABEL, label_number

Classes = Sequence[str] | Mapping[str, int]


def class_numbers(classes: Classes) -> dict[str, int]:
    """Return the mapping class name -> number.

    Args:
        classes: names in the order of their numbers, from 0; or the mapping.

    Raises:
        TypeError: if it is neither, or a number is not an int.
        ValueError: if there is no name, a name occurs twice, or a number is not from 0 to 2**31 - 1.
    """
    expected = "classes must be a list of names or a dict name -> int"
    if isinstance(classes, Mapping):
        numbers = {name: int_of(number) for name, number in classes.items()}
        wrong = {name: classes[name] for name, n in numbers.items() if n is None or not isinstance(name, str)}
        if wrong:
            turned = all(isinstance(name, str) for name in classes.values())
            advice = " Turn it round: {name: number for number, name in classes.items()}." if turned else ""
            raise check.marked(TypeError(f"classes must give each name its label, an int, got {wrong!r:.200}.{advice}"))
        outside = {name: number for name, number in numbers.items() if label_number(number) is None}
        if outside:
            raise check.marked(
                ValueError(f"classes must give each name a label from 0 to {MAX_LABEL}, got {outside!r:.200}.")
            )
        return _some({name: number for name, number in numbers.items() if number is not None}, classes)
    if isinstance(classes, str) or not isinstance(classes, Sequence):
        raise check.marked(TypeError(f"{expected}, got {_unfit(classes)}"))
    for name in classes:
        if not isinstance(name, str):
            raise check.marked(TypeError(f"{expected}, got a list with {check.shown(name)}."))
    places = {name: number for number, name in enumerate(classes)}
    if len(places) < len(classes):
        twice = sorted({name for name in classes if list(classes).count(name) > 1})
        raise check.marked(ValueError(f"classes names {twice} more than once."))
    return _some(places, classes)


def _some(numbers: dict[str, int], classes: Classes) -> dict[str, int]:
    """Require one class at least."""
    if not numbers:
        raise check.marked(
            ValueError(
                f"classes must name at least one class, got {classes!r}. Leave it out to number the parent directories."
            )
        )
    return numbers


def _unfit(classes: object) -> str:
    """Describe a ``classes`` argument of another type, and say what to write instead."""
    if isinstance(classes, str):
        is_file = classes.endswith((".json", ".txt", ".mat")) or "://" in classes
        advice = "Read the file: tdr.labels.classes_json(url, id_base=0)" if is_file else f"Write [{classes!r:.100}]"
        return f"a str. {advice}."
    if isinstance(classes, Set):
        return f"a {type(classes).__name__}, whose order differs between processes. Write sorted(classes)."
    return f"{check.a_kind(classes)}. Write list(classes)." if hasattr(classes, "__iter__") else (
        f"{check.shown(classes)}. The names decide which label a file gets."
    )  # fmt: skip
