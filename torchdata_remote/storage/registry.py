"""One store for each bucket, options and process: opened by the URL of an object, and dropped in a forked child.

========================= ==================================================================================
URL                       by
========================= ==================================================================================
``s3://``                 obstore; s3fs for keys that obstore cannot express, versions, options without a
                          translation, access points, large objects that are written, and in a child that
                          was forked after obstore was used
``gs://``, ``gcs://``     obstore; gcsfs where s3 uses s3fs, but obstore writes
``az://``, ``abfs://``,   obstore; adlfs where gs uses gcsfs
``abfss://``
``http://``, ``https://`` obstore; urllib3 for URLs with a query, and HEAD
``datasets://``           obstore reads, or urllib3 in a forked child; urllib3 lists and writes
``hf://``                 urllib3; never written
``file://``, local paths  mapped, or ``pread`` where small; ``scandir``, rename
all else                  fsspec
========================= ==================================================================================

This is ``Backend.AUTOMATIC``. Another backend is used for reading, or is an error if it cannot read the URL.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from ..core.bucket_names import split_access_point
from ..core.chained_urls import without_target
from ..core.options import FALLBACK_NAMES, Backend, RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import AZURE, DATASETS, GS, HTTP, HUGGING_FACE, LOCAL, S3, join_url, redact, split_url
from ..errors import StorageError, UrlError
from . import request_counts
from .clouds import azure, gcs, s3
from .errors import unusable_options
from .local.store import LocalStore
from .options import require_certificate_files, require_known_options
from .protocol import Store

_log = logging.getLogger("torchdata_remote")


class Connection(NamedTuple):
    """How to connect to a store.

    Args:
        backend: the library that reads.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    backend: Backend = Backend.AUTOMATIC
    read_timeout_s: float = RetryPolicy().progress_timeout_s


_DEFAULT = Connection()
_Key = tuple[str, str, str, Connection]
_stores: dict[_Key, Store] = {}
_lock = threading.RLock()
# Never freed: their finalizers would wait for threads that do not exist here
_stores_of_parent: list[dict[_Key, Store]] = []


def _drop_after_fork() -> None:
    global _lock, _stores
    _stores_of_parent.append(_stores)
    _stores, _lock = {}, threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_after_fork)


def open_store(url: str, options: StorageOptions, connection: Connection = _DEFAULT) -> tuple[Store, str]:
    """Return the store of a URL, and the URL's path in it. There is one store per bucket, options and process.

    Raises:
        UrlError: if the URL is invalid, its scheme is unknown, or the chosen backend cannot read it; and for selected
            samples of shards, which no store has.
        AccessDeniedError: if the credentials are incomplete, or their profile does not exist.
    """
    scheme, bucket, path = split_url(url)
    options = options.for_url(url)
    if scheme not in S3 and any(name in options for name in FALLBACK_NAMES):
        options = StorageOptions({name: options[name] for name in options.keys() - {*FALLBACK_NAMES}})
    key = scheme, bucket, options.identity(), connection
    with _lock:
        if key not in _stores:
            require_known_options(url, scheme, options)
            if scheme in S3:
                require_certificate_files(redact(url), options)
            store, reason = _make_store(scheme, bucket, options, connection)
            _stores.setdefault(key, store)  # a finalizer may have opened it in this thread meanwhile
            _log.info("%s is read by %s", redact(join_url(scheme, bucket, "")), reason)
        if request_counts.counting:
            request_counts.watch(_stores[key])
        return _stores[key], path


def publish(url: str, data: bytes, options: StorageOptions, *, overwrite: bool) -> None:
    """Write a small object, which becomes visible as a whole.

    Raises:
        ObjectExistsError: if it exists and ``overwrite`` is ``False``.
    """
    store, path = open_store(url, options)
    writer = store.create(path, overwrite=overwrite)
    try:
        writer.write(data)
        writer.commit()
    except BaseException:
        writer.abort()
        raise


class WithoutObstore:
    """Reads of a store by the library after whose use a process can be forked.

    Args:
        store: which may read by obstore.
    """

    def __init__(self, store: Store) -> None:
        self.read = getattr(store, "read_without_obstore", store.read)


def read_whole(
    url: str, options: StorageOptions, retry: RetryPolicy, *, by_obstore: bool = True, etag: str | None = None
) -> bytes:
    """Read a small object.

    Args:
        url: of the object.
        options: for the store.
        retry: how transient errors are retried.
        by_obstore: whether obstore may be used. Pass ``False`` in a process that will be forked: children cannot use
            obstore after their parent did.
        etag: of the version to read; ``None`` for the current one.

    Raises:
        ObjectChangedError: if ``etag`` is that of another version.
        StorageError: if it cannot be read.
    """
    store, path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    read = store.read if by_obstore else WithoutObstore(store).read
    return call_with_retries(lambda: read(path, 0, None, etag).whole(), retry, url=url)


# Which library is used


def _make_store(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> tuple[Store, str]:
    """Return a store, and which library reads it and why.

    The stores that need urllib3, obstore or fsspec are imported where they are made: each takes as long as NumPy, and
    local files need none of them.

    Raises:
        UrlError: if the chosen backend cannot read the URL with these options.
    """
    backend = connection.backend
    chosen, url = f"backend={backend.value!r}", f"{scheme}://{bucket}"
    if backend is Backend.FSSPEC:
        return _by_fsspec(scheme, bucket, options, connection), f"fsspec ({chosen})"
    if scheme not in _OWN:
        what, slower = "", ""
    else:
        make, slower, untranslated = _OWN[scheme]
        what = ", ".join(untranslated(options))
        if scheme in S3 and split_access_point(bucket) is not None:
            what = "access points"
        made = None if what else make(scheme, bucket, options, connection)
        if made is not None:
            return made
    if backend is Backend.OBSTORE:
        raise UrlError(
            f"{chosen} cannot read {url} with {options!r}. Pass backend='automatic', or backend='fsspec', which "
            "supports every option of its filesystems.",
            url=url,
        )
    if not slower:
        return _by_fsspec(scheme, bucket, options, connection), "fsspec (the transport for all other URLs)"
    what = what or f"an option of {options!r}"
    _log.warning("%s is read by %s, more slowly: no translation for %s", url, slower, what)
    return _by_fsspec(scheme, bucket, options, connection), f"{slower} (no translation for {what})"


_Made = tuple[Store, str] | None  # None if an option has no translation


def _cloud(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> _Made:
    package = _OWN[scheme][1]

    def make_slower() -> Store:
        try:
            return _by_fsspec(scheme, bucket, options, connection)
        except UrlError as error:
            raise UrlError(
                f"{error} obstore cannot be used here: it has no word for keys with empty segments, '.' or '..' "
                "between slashes, or control characters, and does not work in a child that was forked after its use. "
                f"Install {package} (pip install {package}), rename the objects, or pass "
                "multiprocessing_context='forkserver' to the DataLoader.",
                url=error.url,
            ) from error

    by_obstore, reason = _choose_obstore(scheme, bucket, connection.backend, instead=package)
    if not by_obstore:
        return make_slower(), reason
    from .buckets import AzureBucket, GcsBucket, S3Bucket
    from .obstore_store import ObstoreStore

    timeout_s, made = connection.read_timeout_s, GcsBucket if scheme in GS else S3Bucket
    found = AzureBucket(scheme, bucket, options, timeout_s) if scheme in AZURE else made(bucket, options, timeout_s)
    return ObstoreStore(found, make_slower, has_slower=find_spec(package) is not None), reason


def _http(scheme: str, host: str, options: StorageOptions, connection: Connection) -> _Made:
    from .http_store import HttpStore, http_headers

    headers = http_headers(options)
    if headers is None:
        return None
    by_obstore, reason = _choose_obstore(scheme, host, connection.backend, instead="urllib3")
    store = HttpStore(scheme, host, connection.read_timeout_s, read_by_obstore=by_obstore, headers=headers)
    return store, reason


def _datasets(scheme: str, host: str, options: StorageOptions, connection: Connection) -> _Made:
    from .dataset_service.store import DatasetsStore

    by_obstore, reason = _choose_obstore(scheme, host, connection.backend, instead="urllib3")
    return DatasetsStore(host, options, connection.read_timeout_s, read_by_obstore=by_obstore), reason


def _hub(scheme: str, first: str, options: StorageOptions, connection: Connection) -> _Made:
    from .hugging_face.settings import hub_settings
    from .hugging_face.store import HubStore

    automatic = connection.backend is Backend.AUTOMATIC
    settings = hub_settings(options, connection.read_timeout_s) if automatic else None
    return None if settings is None else (HubStore(first, settings), "urllib3 (the transport for the Hub)")


def _local(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> _Made:
    if options or connection.backend is not Backend.AUTOMATIC:
        return None
    return LocalStore(), "the operating system (local files)"


class _Own(NamedTuple):
    """How the URLs of a scheme are read: by which store, and by which library with options that have no translation."""

    make: Callable[[str, str, StorageOptions, Connection], _Made]
    slower: str
    untranslated: Callable[[StorageOptions], list[str]] = lambda options: []


_OWN: dict[str, _Own] = {
    **dict.fromkeys(S3, _Own(_cloud, "s3fs", s3.untranslated)),
    **dict.fromkeys(GS, _Own(_cloud, "gcsfs", gcs.untranslated)),
    **dict.fromkeys(AZURE, _Own(_cloud, "adlfs", azure.untranslated)),
    **dict.fromkeys(HTTP, _Own(_http, "fsspec")),
    **dict.fromkeys(LOCAL, _Own(_local, "")),
    DATASETS: _Own(_datasets, ""),
    HUGGING_FACE: _Own(_hub, "fsspec"),
}


def _choose_obstore(scheme: str, bucket: str, backend: Backend, *, instead: str) -> tuple[bool, str]:
    """Return whether to read by obstore, and which library is used and why."""
    from .obstore_reader import is_usable

    if is_usable():
        return True, f"obstore (backend={backend.value!r})"
    forked = "This process was forked after its parent had used obstore, which then does not work in it"
    advice = "Pass multiprocessing_context='forkserver' to the DataLoader."
    if backend is Backend.OBSTORE:
        raise StorageError(f"{scheme}://{bucket}: {forked}. {advice}", url=f"{scheme}://{bucket}")
    warnings.warn(f"{forked}: {scheme} is read by {instead}, more slowly. {advice}", RuntimeWarning, stacklevel=2)
    return False, f"{instead} (forked process)"


def _by_fsspec(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> Store:
    if mistake := without_target(scheme, options):
        raise UrlError(f"{scheme}://{bucket}: {mistake}", url=f"{scheme}://{bucket}")
    try:
        if scheme in S3:
            from .s3fs_store import S3fsStore

            return S3fsStore(bucket, options, connection.read_timeout_s)
        from .fsspec_store import FsspecStore

        return FsspecStore(scheme, bucket, options, connection.read_timeout_s)
    except (TypeError, AttributeError) as error:
        raise unusable_options(scheme, bucket, error, options) from error
