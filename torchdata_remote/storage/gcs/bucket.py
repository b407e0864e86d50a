"""A bucket of Google Cloud Storage for obstore, with the tokens that google-auth finds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.options import StorageOptions
from ..clouds.bucket import CloudBucket
from ..clouds.gcs import gcs_target
from ..errors import unusable_response
from ..obstore_reader import ODD_KEY
from ..obstore_writer import HiddenWriter
from ..protocol import ObjectWriter

if TYPE_CHECKING:
    from ..obstore_store import ObstoreStore

_MD5 = re.compile("[0-9a-f]{32}")


class GcsBucket(CloudBucket):
    """One bucket.

    Args:
        bucket: its name.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    odd = odd_key = ODD_KEY
    lists_in_order = True
    hides_uploads = True
    lists_by_fsspec = False

    def __init__(self, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        super().__init__(gcs_target(bucket, options, read_timeout_s))

    def key(self, path: str, *, writing: bool = False) -> tuple[str, str | None]:
        return path, None

    def writer(self, store: ObstoreStore, key: str, *, overwrite: bool) -> ObjectWriter:
        return _Writer(store, key, overwrite=overwrite)

    def remove_unfinished(self, store: ObstoreStore, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Do nothing: obstore cannot list unfinished uploads. A lifecycle rule of the bucket removes them."""


class _Writer(HiddenWriter):
    def _check(self, made: Any, data: bytearray) -> None:
        """Compare the MD5 that the store answers with: obstore sends no digest of what it writes."""
        etag = (made["e_tag"] or "").strip('"')
        if _MD5.fullmatch(etag) and etag != hashlib.md5(data, usedforsecurity=False).hexdigest():
            raise unusable_response(self._url, "the store has other bytes than were sent")
