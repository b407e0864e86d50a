"""Where labels come from: a URL, a path, or an object that was read already."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import LabelError
from ..storage.registry import read_whole

Location = str | os.PathLike[str]
MAX_LABEL = (1 << 31) - 1  # labels are kept as int32


@dataclass(frozen=True)
class Origin:
    """A source as errors call it.

    Args:
        shown: the URL without credentials, or what stands for it.
        url: the same, or ``None`` where there is no URL.
    """

    shown: str
    url: str | None = None

    def error(self, message: str) -> LabelError:
        """An error that begins with the source."""
        return LabelError(f"{self.shown}: {message}", url=self.url)

    def label(self, value: object, *, id_base: int, what: str) -> int:
        """A class number as it is written, counted from 0.

        Args:
            value: the number.
            id_base: what the source counts from.
            what: names the number in errors.

        Raises:
            LabelError: if it is not an int, less than ``id_base``, or more than an int32 holds.
        """
        number = whole_number(value)
        if number is None:
            raise self.error(f"{what} is {value!r:.100} ({type(value).__name__}), expected an int.")
        if not 0 <= number - id_base <= MAX_LABEL:
            raise self.error(
                f"{what} is {number}, expected {id_base} to {id_base + MAX_LABEL} where numbers count from {id_base} "
                "(id_base). Look up what the source counts from."
            )
        return number - id_base


def is_location(source: object) -> TypeGuard[Location]:
    """Whether a source is a URL or a path; else it is a parsed object."""
    return isinstance(source, (str, os.PathLike))


def origin_of(source: object, function: str) -> Origin:
    """How errors call the source that a function was given."""
    if not is_location(source):
        return Origin(f"the {type(source).__name__} given to {function}")
    shown = redact(_url(source))
    return Origin(shown, shown)


def read_bytes(source: Location, storage_options: Mapping[str, Any] | None) -> bytes:
    """The whole object at a URL or path.

    Raises:
        StorageError: if it cannot be read.
    """
    return read_whole(_url(source), StorageOptions(storage_options), RetryPolicy())


def parse_json(data: bytes, origin: Origin) -> object:
    """A JSON document in which no object has a key twice.

    Raises:
        LabelError: if it is none.
    """
    try:
        return json.loads(data, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise origin.error(f"not the JSON document that was expected: {error}") from error


def read_json(source: object, origin: Origin, storage_options: Mapping[str, Any] | None) -> object:
    """The document at a URL or path; a parsed object is that itself."""
    return parse_json(read_bytes(source, storage_options), origin) if is_location(source) else source


def whole_number(value: object) -> int | None:
    """An ``int``, also one of numpy's, as ``int``; anything else, a ``bool`` too, is ``None``."""
    return int(value) if isinstance(value, (int, np.integer)) and not isinstance(value, bool) else None


def require_int(name: str, value: object) -> None:
    """A base is an int.

    Raises:
        TypeError: if it is not.
    """
    if whole_number(value) is None:
        raise TypeError(f"{name} must be an int, got {value!r:.100}")


def _url(source: Location) -> str:
    url = os.fspath(source)
    if not isinstance(url, str):
        raise TypeError(f"A path must be a str, got {type(url).__name__}: {url!r:.200}")
    return url


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a document; json itself would keep the last of equal keys without a word."""
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r:.100} comes more than once")
    return result
