"""What fsspec's filesystems tell of an object."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from torchdata_remote.storage.fsspec_info import entry_of
from torchdata_remote.storage.protocol import Entry

WHEN = dt.datetime(2025, 1, 27, 10, 0, 0, 500_000, dt.timezone.utc)


@pytest.mark.parametrize(
    ("scheme", "info", "etag", "modified_s"),
    [
        ("s3", {"ETag": "8d1", "LastModified": WHEN}, '"8d1"', 1737972000.0),
        ("az", {"etag": "0x8D1", "last_modified": WHEN}, '"0x8D1"', 1737972000.5),
        ("gs", {"etag": "CJjK3oq=", "updated": "2025-01-27T10:00:00Z"}, None, None),
        ("http", {"ETag": 'W/"1"', "mtime": 5.0}, 'W/"1"', 5.0),
        ("ftp", {"modify": "20250127"}, None, None),
    ],
)
def test_each_filesystem_has_its_names(
    scheme: str, info: dict[str, Any], etag: str | None, modified_s: float | None
) -> None:
    """Etags are those of this package's own stores: one may list what the other reads."""
    found = entry_of({"name": "box/a/b", "size": 3, **info}, scheme, "box/")
    assert found == Entry("a/b", 3, etag, modified_s)
