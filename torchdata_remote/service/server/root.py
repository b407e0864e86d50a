"""What folders and buckets have in common: files, pages of listings, and what is said of missing ones."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from .problems import Problem
from .requests import percent_encoded

CHUNK_BYTES = 1 << 20
STREAM_BYTES = 256 << 10  # of a piece of a response, of which a client that stalls keeps three or four in memory
WORK_FOLDER = ".torchdata_remote/"  # beside the datasets, for what is none of their files


class File(NamedTuple):
    """A file of a dataset: path in it, size in bytes, etag in quotes, time of the last write, and SHA-256 if known."""

    path: str
    size: int
    etag: str
    modified_s: float | None = None
    sha256: str | None = None

    def as_json(self, **more: str) -> dict[str, Any]:
        """Describe it as in listings."""
        when = date_of(self.modified_s)
        modified = None if when is None else when.isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"path": self.path, "size": self.size, "etag": self.etag, "modified": modified, **more}


class Files(NamedTuple):
    """A page of a listing: files, folders with a slash at their ends, and the path after which the next one begins."""

    files: list[File]
    folders: list[str]
    next: str | None


def no_dataset(name: str) -> Problem:
    """Make the response for a dataset that does not exist."""
    return Problem(404, f"There is no dataset {name!r}. POST /datasets creates one, GET /datasets lists them.")


def no_file(path: str) -> Problem:
    """Make the response for a file that does not exist."""
    return Problem(404, f"There is no file {path!r:.200} in the dataset.")


def removed() -> Problem:
    """Make the response to a request during which its dataset was removed."""
    return Problem(404, "The dataset was removed during the request.")


def date_of(modified_s: float | None) -> dt.datetime | None:
    """Return a time as a date in UTC."""
    try:
        return None if modified_s is None else dt.datetime.fromtimestamp(int(modified_s), dt.timezone.utc)
    except (ValueError, OverflowError, OSError):  # file systems can store years after 9999
        return None


def location(dataset: str, path: str | None = None) -> str:
    """Return the URL path of a dataset, or of a file in it."""
    return f"/datasets/{dataset}" + ("" if path is None else f"/files/{percent_encoded(path)}")
