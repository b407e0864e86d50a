"""Metadata of a file as the service reports it: entity tag, date, and the JSON object of a listing."""

from __future__ import annotations

import datetime as dt
from email.utils import format_datetime
from functools import lru_cache
from typing import Any

from ....storage import Entry
from .names import percent_encoded


def etag_of(entry: Entry) -> str:
    """Return the entity tag with its quotes. A store without one gets a tag made of size and date."""
    if entry.etag is None:
        return f'"{entry.size}-{entry.modified_s}"'
    return entry.etag if entry.etag.startswith('"') else f'"{entry.etag}"'


def last_modified(entry: Entry) -> str | None:
    """Format the date for a Last-Modified header; ``None`` if it is unknown."""
    return None if entry.modified_s is None else _formatted(int(entry.modified_s))


@lru_cache(1000)
def _formatted(modified_s: int) -> str | None:
    when = _when(modified_s)
    return None if when is None else format_datetime(when, usegmt=True)


def _when(modified_s: float | None) -> dt.datetime | None:
    if modified_s is None:
        return None
    try:
        return dt.datetime.fromtimestamp(int(modified_s), dt.timezone.utc)
    except (ValueError, OverflowError, OSError):  # file systems can store years after 9999
        return None


def file_info(entry: Entry, path: str) -> dict[str, Any]:
    """Describe a file as in listings."""
    when = _when(entry.modified_s)
    modified = None if when is None else when.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"path": path, "size": entry.size, "etag": etag_of(entry), "modified": modified}


def location(dataset: str, path: str | None = None) -> str:
    """Return the URL path of a dataset, or of a file in it."""
    return f"/datasets/{dataset}" + ("" if path is None else f"/files/{percent_encoded(path)}")
