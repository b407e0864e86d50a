"""Where in a document something stands, and strict readers of what stands there."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

from ...errors import JobError

_WORD = re.compile(r"\w+")
_MOST_CHARACTERS = 100  # of what came, in an error
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class FieldPath(NamedTuple):
    """A field of a document.

    Args:
        source: file, and which document of it.
        path: from the document's root to the field, with dots.

    Example:
        >>> print(Place("job.yaml").at("spec").at("containers").at(0).wrong(3, "a mapping"))
        job.yaml: spec.containers[0]: came 3, expected a mapping.
    """

    source: str
    path: str = ""

    def at(self, key: str | int) -> FieldPath:
        """A field of this one, by its name or its number."""
        if isinstance(key, int):
            step = f"[{key}]"
        elif _WORD.fullmatch(key):
            step = f".{key}" if self.path else key
        else:
            step = f"[{key!r}]"  # such as a label's, which may have dots of its own
        return FieldPath(self.source, self.path + step)

    def wrong(self, came: Any, expected: str) -> JobError:
        """The error that tells of it."""
        return JobError(f"{self.source}: {self.path or 'the document'}: came {_shown(came)}, expected {expected}.")

    def missing(self, key: str, expected: str) -> JobError:
        """The error about a field that is not there."""
        return JobError(f"{self.source}: {self.at(key).path}: came nothing, expected {expected}.")


def _shown(came: Any) -> str:
    for kind, name in ((dict, "mapping"), (list, "list")):
        if isinstance(came, kind):
            return f"a {name}" if came else f"an empty {name}"
    shown = repr(came)
    return "nothing" if came is None else shown[:_MOST_CHARACTERS] + "..." * (len(shown) > _MOST_CHARACTERS)


def mapping(value: Any, place: FieldPath, *, known: Collection[str] = ()) -> dict[str, Any]:
    """The value, a mapping; with no other fields than those that are ``known``, if any are.

    Raises:
        JobError: if it is something else.
    """
    if not isinstance(value, dict):
        raise place.wrong(value, "a mapping")
    strange = [key for key in value if known and key not in known]
    if strange:
        raise place.at(strange[0]).wrong(value[strange[0]], f"no such field, but {', '.join(known)} only")
    return value


def part(parent: dict[str, Any], key: str, place: FieldPath) -> dict[str, Any]:
    """A mapping in a mapping, empty if it is not there.

    Raises:
        JobError: if it is something else.
    """
    return {} if parent.get(key) is None else mapping(parent[key], place.at(key))


def mappings(parent: dict[str, Any], key: str, place: FieldPath) -> list[tuple[dict[str, Any], FieldPath]]:
    """The mappings of a list that may be missing, each with its place.

    Raises:
        JobError: if it is something else.
    """
    return [(mapping(one, where), where) for one, where in _elements(parent, key, place)]


def texts(parent: dict[str, Any], key: str, place: FieldPath) -> None:
    """Require a list of texts, or none at all.

    Raises:
        JobError: if it is something else.
    """
    for one, where in _elements(parent, key, place):
        if not isinstance(one, str):
            raise where.wrong(one, "a text: put it into quotes")


def _elements(parent: dict[str, Any], key: str, place: FieldPath) -> list[tuple[Any, FieldPath]]:
    value = parent.get(key)
    if value is None:  # as Kubernetes reads it
        return []
    if not isinstance(value, list):
        raise place.at(key).wrong(value, "a list")
    return [(one, place.at(key).at(number)) for number, one in enumerate(value)]


def text(parent: dict[str, Any], key: str, place: FieldPath, *, pattern: str = r".+", expected: str = "a text") -> str:
    """A text that has to be there.

    Raises:
        JobError: if it is not, or is something else.
    """
    if parent.get(key) is None:
        raise place.missing(key, expected)
    value = parent[key]
    if not isinstance(value, str) or re.fullmatch(pattern, value, re.DOTALL) is None:
        raise place.at(key).wrong(value, expected)
    return value


def dns_label(parent: dict[str, Any], key: str, place: FieldPath) -> str:
    """A name as Kubernetes has them for containers, volumes and namespaces.

    Raises:
        JobError: if it is missing, or none.
    """
    return text(
        parent, key, place, pattern=_DNS_LABEL, expected="a name of at most 63 lower-case letters, digits and hyphens"
    )
