"""What a chain's listings hold: made in one process, read in others."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...core.urls import RemoteUrl
from ..state.fingerprints import Fingerprint

_LEVEL = 1  # URLs of one folder shrink to a quarter already


class Listed(NamedTuple):
    """What the listings of a chain hold in one epoch.

    Args:
        urls: of each listing, before they are shuffled by epoch.
        fingerprints: what a state is to remember of each.
    """

    urls: list[list[Any]]
    fingerprints: list[Fingerprint]


def packed(found: Listed | Exception) -> bytes:
    """A listing, or the error instead of one, for other processes of this job: 26 bytes a shard of a manifest.

    Raises:
        pickle.PicklingError, TypeError, AttributeError: if an item cannot be pickled.
    """
    told = found if isinstance(found, Exception) else ([_columns(urls) for urls in found.urls], found.fingerprints)
    return zlib.compress(pickle.dumps(told, pickle.HIGHEST_PROTOCOL), _LEVEL)


def unpacked(data: bytes) -> Listed | Exception:
    """What :func:`packed` took apart. As for any pickle, the bytes must come from a trusted process."""
    told = pickle.loads(zlib.decompress(data))  # noqa: S301  # of this job
    if isinstance(told, Exception):
        return told
    columns, fingerprints = told
    return Listed([_urls(*column) for column in columns], fingerprints)


def _columns(urls: Sequence[Any]) -> tuple[bool, list[Any]]:
    """A column of each field: a fifth of the time and of the bytes that an object for each URL takes."""
    if urls and all(type(url) is RemoteUrl for url in urls):
        return True, list(zip(*(url.__getnewargs__() for url in urls), strict=True))
    return False, list(urls)


def _urls(are_remote: bool, columns: list[Any]) -> list[Any]:
    return list(map(RemoteUrl, *columns)) if are_remote else columns
