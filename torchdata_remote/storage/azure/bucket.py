"""A container of Azure Blob Storage for obstore, with the credentials that this package finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core.options import StorageOptions
from ...errors import UrlError
from ..clouds.azure import azure_target
from ..clouds.bucket import CloudBucket
from ..obstore_reader import ODD_KEY
from ..obstore_writer import HiddenWriter
from ..protocol import ObjectWriter

if TYPE_CHECKING:
    from ..obstore_store import ObstoreStore

_CHANGED = re.compile(r"(?:^|/)\.{1,2}(?:/|$)|\\")


class AzureBucket(CloudBucket):
    """One container.

    Args:
        scheme: of the URL.
        bucket: ``container``, or ``container@account.dfs.core.windows.net``.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    odd = odd_key = re.compile(rf"{ODD_KEY.pattern}|\\")
    lists_in_order = False  # with a hierarchical namespace, folders are listed as a tree
    hides_uploads = True
    lists_by_fsspec = False

    def __init__(self, scheme: str, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        super().__init__(azure_target(bucket, options, read_timeout_s))
        self.root = f"{scheme}://{bucket}/"

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        if _CHANGED.search(path):
            raise UrlError(
                f"{self.root}{path}: a name with '.' or '..' between slashes, or with a backslash, is another one on "
                "its way to Azure.",
                url=self.root + path,
            )
        return path, None

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        return HiddenWriter(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Do nothing: Azure deletes blocks that are not committed after a week, and nobody else can."""
