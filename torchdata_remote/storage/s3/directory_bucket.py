"""Listings of directory buckets (S3 Express One Zone).

They have no order and no StartAfter, and only prefixes that end with a slash
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-differences.html).
"""

from __future__ import annotations

from typing import Any

from ...errors import StorageError
from ..entry_table import EntryTable
from ..protocol import Page
from .bucket_pages import S3Pages

_SUFFIXES = ("--x-s3", "--xa-s3")  # of buckets, and of their access points


def is_directory_bucket(bucket: str) -> bool:
    """Whether a bucket, or what an access point belongs to, is a directory bucket."""
    return bucket.endswith(_SUFFIXES)


class DirectoryBucketPages(S3Pages):
    """Requests pages of a directory bucket, of whole folders."""

    def page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        return super().page(prefix[: prefix.rfind("/") + 1], recursive=recursive, token=token)

    def beside(self, path: str, limit: int) -> Page:
        """Request objects below a path. Others that begin with it cannot be asked for."""
        return self.first(path if path.endswith("/") or not path else path + "/", {"MaxKeys": limit})

    def may_omit(self, page: Page) -> bool:
        return True

    def after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        url = self._url(prefix)
        raise StorageError(
            f"{url}: the listings of a directory bucket have no order, which this needs. Use a general purpose bucket.",
            url=url,
        )

    def keys(self, prefix: str, extra: dict[str, Any]) -> list[str]:
        extra = {name: value for name, value in extra.items() if name != "StartAfter"}
        below = EntryTable.of(self.first(prefix, extra).entries).keys
        return [key for key in below if key != prefix]
