"""Read the sources of labels: a URL, a path, or a parsed object."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ..core.arguments import int_of
from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import LabelError
from ..storage import read_whole

Location = str | os.PathLike[str]
MAX_LABEL = (1 << 31) - 1  # labels are stored as int32


@dataclass(frozen=True)
class Origin:
    """Name of a source in errors.

    Args:
        shown: the URL without credentials, or a description.
        url: the URL without credentials, or ``None``.
    """

    shown: str
    url: str | None = None

    def error(self, message: str) -> LabelError:
        """Create an error that starts with the source."""
        return LabelError(f"{self.shown}: {message}", url=self.url)

    def label(self, value: object, *, id_base: int, what: str) -> int:
        """Convert a class number of the source to one that is counted from 0.

        Args:
            value: the number.
            id_base: the number that the source counts from.
            what: name of the number in errors.

        Raises:
            LabelError: if it is not an int, less than ``id_base``, or more than an int32 holds.
        """
        number = int_of(value)
        if number is None:
            raise self.error(f"{what} is {value!r:.100} ({type(value).__name__}), expected an int.")
        if not 0 <= number - id_base <= MAX_LABEL:
            raise self.error(
                f"{what} is {number}, expected {id_base} to {id_base + MAX_LABEL} where numbers count from {id_base} "
                "(id_base). Look up what the source counts from."
            )
        return number - id_base


def is_location(source: object) -> TypeGuard[Location]:
    """Whether a source is a URL or a path, not a parsed object."""
    return isinstance(source, (str, os.PathLike))


def origin_of(source: object, function: str) -> Origin:
    """Name the source argument of a function in errors."""
    if not is_location(source):
        return Origin(f"the {type(source).__name__} given to {function}")
    shown = redact(_url(source))
    return Origin(shown, shown)


def read_bytes(source: Location, storage_options: Mapping[str, Any] | None) -> bytes:
    """Read the complete object at a URL or path.

    Raises:
        StorageError: if it cannot be read.
    """
    return read_whole(_url(source), StorageOptions(storage_options), RetryPolicy())


def parse_json(data: bytes, origin: Origin) -> object:
    """Parse a JSON document. A repeated key is an error.

    Raises:
        LabelError: if it is not such a document.
    """
    try:
        return json.loads(data, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise origin.error(f"not a valid JSON document: {error}") from error


def read_json(source: object, origin: Origin, storage_options: Mapping[str, Any] | None) -> object:
    """Read the document at a URL or path; return a parsed object unchanged."""
    return parse_json(read_bytes(source, storage_options), origin) if is_location(source) else source


def label_number(label: object) -> int | None:
    """A labeller's result as a class number, or ``None`` if it is not one."""
    number = int_of(label)
    return number if number is not None and 0 <= number <= MAX_LABEL else None


def _url(source: Location) -> str:
    url = os.fspath(source)
    if not isinstance(url, str):
        raise TypeError(f"A path must be a str, got {type(url).__name__}: {url!r:.200}")
    return url


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; ``json`` would silently keep the last of equal keys."""
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.100} occurs more than once")
    return result
