"""Check the fields of a service's responses. Each function raises ``ValueError`` for what no service sends."""

from __future__ import annotations

import datetime as dt
import email.utils

_MAX_BYTES = 2**63 - 1


def text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is no text")
    return value


def byte_count(value: object) -> int:
    """Return a number of bytes.

    >>> byte_count(7)
    7
    """
    if type(value) is not int or not 0 <= value <= _MAX_BYTES:
        raise ValueError(f"{value!r:.80} is no number of bytes")
    return value


def file_path(value: object) -> str:
    """Return the path of a file, which leads nowhere else when it is appended to that of a folder.

    >>> file_path("cat/1.jpg")
    'cat/1.jpg'
    """
    path = text(value)
    if any(segment in ("", ".", "..") for segment in path.split("/")) or "\0" in path:
        raise ValueError(f"{path!r:.80} is no path of a file")
    return path


def folder_path(value: object) -> str:
    """Return the path of a folder, which ends with a slash."""
    path = text(value)
    if not path.endswith("/"):
        raise ValueError(f"{path!r:.80} is no path of a folder")
    return file_path(path[:-1]) + "/"


def next_path(value: object, after: str) -> str | None:
    """Return the path after which the next page of a listing starts; ``None`` after the last page.

    Args:
        value: as received.
        after: of this page. The next one starts after it, or the listing would not end.
    """
    if value is None:
        return None
    path = text(value)
    if path <= after:
        raise ValueError(f"the page after {after!r:.80} continues at {path!r:.80}, so the listing does not end")
    return path


def date_in_json(value: object) -> float | None:
    """Convert a date of RFC 3339 to seconds since 1970. ``None`` if there is none, or one that is invalid.

    >>> date_in_json("1970-01-02T00:00:00Z"), date_in_json("yesterday")
    (86400.0, None)
    """
    if not isinstance(value, str):
        return None
    try:
        return _seconds(dt.datetime.fromisoformat(value.replace("Z", "+00:00")))
    except ValueError:
        return None


def date_in_header(value: str | None) -> float | None:
    """Convert the date of a header to seconds since 1970. ``None`` if there is none, or one that is invalid.

    >>> date_in_header("Fri, 02 Jan 1970 00:00:00 GMT"), date_in_header("Fri, 02 Jan 99999 00:00:00 GMT")
    (86400.0, None)
    """
    try:
        return None if value is None else _seconds(email.utils.parsedate_to_datetime(value))
    except (ValueError, TypeError, OverflowError):
        return None


def _seconds(when: dt.datetime) -> float | None:
    """Convert a date whose year in UTC is also one that ``datetime`` can express."""
    try:
        return None if when.tzinfo is None else when.astimezone(dt.timezone.utc).timestamp()
    except OverflowError:
        return None
