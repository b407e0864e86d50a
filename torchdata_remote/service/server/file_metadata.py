"""How the service tells of a file: version, date, and the JSON object of a listing."""

from __future__ import annotations

import datetime as dt
from email.utils import format_datetime
from typing import Any

from ...storage.registry import Entry
from .names import percent_encoded


def etag_of(entry: Entry) -> str:
    """The entity tag, with its quotes. Where the store has none, it is made of size and date."""
    if entry.etag is None:
        return f'"{entry.size}-{entry.modified_s}"'
    return entry.etag if entry.etag.startswith('"') else f'"{entry.etag}"'


def last_modified(entry: Entry) -> str | None:
    """As a header tells it."""
    when = _when(entry)
    return None if when is None else format_datetime(when, usegmt=True)


def _when(entry: Entry) -> dt.datetime | None:
    if entry.modified_s is None:
        return None
    try:
        return dt.datetime.fromtimestamp(int(entry.modified_s), dt.timezone.utc)
    except (ValueError, OverflowError, OSError):  # file systems know later years than 9999
        return None


def file_info(entry: Entry, path: str) -> dict[str, Any]:
    """As listings tell it."""
    when = _when(entry)
    modified = None if when is None else when.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"path": path, "size": entry.size, "etag": etag_of(entry), "modified": modified}


def location(dataset: str, path: str | None = None) -> str:
    """Where a dataset or a file of it is found."""
    return f"/dataset/{dataset}" + ("" if path is None else f"/files/{percent_encoded(path)}")
