"""Paths of fields in a document, for errors, and strict readers of fields."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

from ...errors import JobError

_WORD = re.compile(r"\w+")
_MAX_SHOWN = 100  # characters of a value in an error
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class FieldPath(NamedTuple):
    """A field of a document.

    Args:
        source: file, and number of the document in it.
        path: from the document's root to the field, with dots.

    Example:
        >>> print(FieldPath("job.yaml").at("spec").at("containers").at(0).wrong(3, "a mapping"))
        job.yaml: spec.containers[0]: got 3, expected a mapping.
    """

    source: str
    path: str = ""

    def at(self, key: str | int) -> FieldPath:
        """Return the path of a field in this one, by its name or index."""
        if isinstance(key, int):
            step = f"[{key}]"
        elif _WORD.fullmatch(key):
            step = f".{key}" if self.path else key
        else:
            step = f"[{key!r}]"  # for example a label's, which may contain dots
        return FieldPath(self.source, self.path + step)

    def wrong(self, value: Any, expected: str) -> JobError:
        """Return the error for a wrong value."""
        return JobError(f"{self.source}: {self.path or 'the document'}: got {_shown(value)}, expected {expected}.")

    def missing(self, key: str, expected: str) -> JobError:
        """Return the error for a missing field."""
        return JobError(f"{self.source}: {self.at(key).path}: got nothing, expected {expected}.")


def _shown(value: Any) -> str:
    for kind, name in ((dict, "mapping"), (list, "list")):
        if isinstance(value, kind):
            return f"a {name}" if value else f"an empty {name}"
    shown = repr(value)
    return "nothing" if value is None else shown[:_MAX_SHOWN] + "..." * (len(shown) > _MAX_SHOWN)


def mapping(value: Any, field: FieldPath, *, known: Collection[str] = ()) -> dict[str, Any]:
    """Require a mapping, without other fields than those that are ``known``, if any are given.

    Raises:
        JobError: if it is something else.
    """
    if not isinstance(value, dict):
        raise field.wrong(value, "a mapping")
    strange = [key for key in value if known and key not in known]
    if strange:
        raise field.at(strange[0]).wrong(value[strange[0]], f"no such field, but {', '.join(known)} only")
    return value


def part(parent: dict[str, Any], key: str, field: FieldPath) -> dict[str, Any]:
    """Return a mapping in a mapping; an empty one if it is missing.

    Raises:
        JobError: if it is something else.
    """
    return {} if parent.get(key) is None else mapping(parent[key], field.at(key))


def mappings(parent: dict[str, Any], key: str, field: FieldPath) -> list[tuple[dict[str, Any], FieldPath]]:
    """Return the mappings of a list, which may be missing, each with its path.

    Raises:
        JobError: if it is something else.
    """
    return [(mapping(one, where), where) for one, where in _elements(parent, key, field)]


def texts(parent: dict[str, Any], key: str, field: FieldPath) -> None:
    """Require a list of texts, or no such field.

    Raises:
        JobError: if it is something else.
    """
    for one, where in _elements(parent, key, field):
        if not isinstance(one, str):
            raise where.wrong(one, "a text: put it into quotes")


def _elements(parent: dict[str, Any], key: str, field: FieldPath) -> list[tuple[Any, FieldPath]]:
    value = parent.get(key)
    if value is None:  # as in Kubernetes
        return []
    if not isinstance(value, list):
        raise field.at(key).wrong(value, "a list")
    return [(one, field.at(key).at(number)) for number, one in enumerate(value)]


def text(parent: dict[str, Any], key: str, field: FieldPath, *, pattern: str = r".+", expected: str = "a text") -> str:
    """Return a required text.

    Raises:
        JobError: if it is missing, or does not match.
    """
    if parent.get(key) is None:
        raise field.missing(key, expected)
    value = parent[key]
    if not isinstance(value, str) or re.fullmatch(pattern, value, re.DOTALL) is None:
        raise field.at(key).wrong(value, expected)
    return value


def dns_label(parent: dict[str, Any], key: str, field: FieldPath) -> str:
    """Return a required name that is valid in Kubernetes for containers, volumes and namespaces.

    Raises:
        JobError: if it is missing or invalid.
    """
    return text(
        parent, key, field, pattern=_DNS_LABEL, expected="a name of at most 63 lower-case letters, digits and hyphens"
    )
