"""The only door to stores: which transport carries which URL.

========================= ============================================= ==========================
URL                       reading                                       listing, stat, writing
========================= ============================================= ==========================
``s3://``                 obstore; botocore in a child that was forked  botocore
                          after obstore was used, and for keys that
                          obstore cannot express
``s3://``, with options   s3fs                                          s3fs
without a translation
``http://``, ``https://`` obstore; urllib3 for URLs with a query        HEAD only
``file://``, local paths  ``pread``                                     ``scandir``, rename
all else                  fsspec                                        fsspec
========================= ============================================= ==========================
"""

from __future__ import annotations

import logging
import os
import threading
import warnings

from ..options import StorageOptions
from ..urls import HTTP, LOCAL, split_url
from . import _obstore
from ._fsspec import FsspecStore
from ._http import HttpStore
from ._local import PARTIAL_SUFFIX, LocalStore
from ._protocol import Blob, Entry, Page, PendingObject, RangeNotSatisfiableError, Store
from ._s3 import S3Store
from ._s3_settings import s3_settings

__all__ = [
    "PARTIAL_SUFFIX",
    "Blob",
    "Entry",
    "Page",
    "PendingObject",
    "RangeNotSatisfiableError",
    "Store",
    "open_store",
]

_log = logging.getLogger("torchdata_remote")
_stores: dict[tuple[str, str, str], Store] = {}
_lock = threading.Lock()


_of_the_parent: list[dict[tuple[str, str, str], Store]] = []  # kept: their finalizers would wait for its threads


def _drop_after_fork() -> None:
    global _lock, _stores
    _of_the_parent.append(_stores)
    _stores = {}
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_drop_after_fork)


def open_store(url: str, options: StorageOptions) -> tuple[Store, str]:
    """The store that holds a URL, and the URL's path in it. One store per bucket, options and process.

    Raises:
        UrlError: if no transport knows the scheme, or the URL is not one.
        AccessDeniedError: for credentials that cannot be found.
    """
    scheme, bucket, path = split_url(url)
    key = scheme, bucket, options.identity()
    with _lock:
        if key not in _stores:
            _stores[key] = _make_store(scheme, bucket, options)
        return _stores[key], path


def _make_store(scheme: str, bucket: str, options: StorageOptions) -> Store:
    if scheme in LOCAL and not options:
        return LocalStore()
    if scheme in ("s3", "s3a"):
        settings = s3_settings(options)
        if settings is not None:
            usable = _obstore.usable()
            if not usable:
                _warn_of_fork(scheme, "botocore")
            _log.info("s3://%s is read by %s", bucket, "obstore" if usable else "botocore (forked process)")
            return S3Store(bucket, settings, read_by_obstore=usable)
        _log.warning("s3://%s is read by s3fs, slowly: an option of %r has no translation", bucket, options)
    if scheme in HTTP and not options:
        if not _obstore.usable():
            _warn_of_fork(scheme, "urllib3")
        return HttpStore(scheme, bucket)
    return FsspecStore(scheme, bucket, options)


def _warn_of_fork(scheme: str, instead: str) -> None:
    warnings.warn(
        f"This process was forked from one that had read by obstore, which does not survive that: {scheme} is read by "
        f"{instead}, more slowly. Pass multiprocessing_context='forkserver' to the DataLoader.",
        RuntimeWarning,
        stacklevel=2,
    )
