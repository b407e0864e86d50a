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
from importlib.util import find_spec
from typing import NamedTuple

from ..core.options import FALLBACK_NAMES, Backend, RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import (
    AZURE,
    DATASETS,
    GS,
    HTTP,
    HUGGING_FACE,
    LOCAL,
    S3,
    join_url,
    redact,
    split_access_point,
    split_url,
)
from ..errors import RemoteDataError, StorageError, UrlError
from . import request_counts
from .errors import unusable_options
from .local.store import LocalStore
from .options import check_options, untranslated
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
            check_options(url, options)
            store, library = _make_store(scheme, bucket, options, connection)
            _stores.setdefault(key, store)  # a finalizer may have opened it in this thread meanwhile
            _log.info("%s is read by %s", redact(join_url(scheme, bucket, "")), library)
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


# Which library is used: each is imported here, as it takes as long as NumPy, and local files need none of them

_CLOUDS = {**dict.fromkeys(S3, "s3fs"), **dict.fromkeys(GS, "gcsfs"), **dict.fromkeys(AZURE, "adlfs")}


def _make_store(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> tuple[Store, str]:
    """Return a store, and which library reads it.

    Raises:
        UrlError: if the chosen backend cannot read the URL with these options.
    """
    backend, url = connection.backend, f"{scheme}://{bucket}"
    what = ""
    if scheme in _CLOUDS:
        what = ", ".join(untranslated(scheme, options))
        what = "access points" if scheme in S3 and split_access_point(bucket) is not None else what
    if backend is Backend.FSSPEC and scheme not in (*HTTP, HUGGING_FACE):  # it would send headers to other hosts, too
        return _by_fsspec(scheme, bucket, options, connection), "fsspec"
    if scheme in _CLOUDS:
        made = None if what else _cloud(scheme, bucket, options, connection)
    else:
        made = _other(scheme, bucket, options, connection)
    if made is not None:
        return made
    if backend is not Backend.AUTOMATIC:
        raise UrlError(
            f"backend={backend.value!r} cannot read {url} with {options!r}. Pass backend='automatic', or open the URLs "
            "by fsspec, and pass the streams to a reader.",
            url=url,
        )
    if what:
        _log.warning("%s is read by %s, more slowly: no translation for %s", url, _CLOUDS[scheme], what)
    return _by_fsspec(scheme, bucket, options, connection), _CLOUDS.get(scheme, "fsspec")


def _other(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> tuple[Store, str] | None:
    """Return a store that is no bucket of a cloud; ``None`` if it, or an option, is for fsspec only."""
    timeout_s, is_automatic = connection.read_timeout_s, connection.backend is Backend.AUTOMATIC
    if scheme in LOCAL and is_automatic and not options:
        return LocalStore(), "the operating system"
    if scheme == HUGGING_FACE and is_automatic:
        from .hub import HubStore

        return HubStore(bucket, options, timeout_s), "urllib3"
    if scheme == DATASETS:
        from .dataset_service.store import DatasetsStore

        library = _choose_obstore(scheme, bucket, connection.backend, instead="urllib3")
        return DatasetsStore(bucket, options, timeout_s, read_by_obstore=library == "obstore"), library
    if scheme in HTTP and connection.backend is not Backend.FSSPEC:
        from .http_store import HttpStore, http_headers

        root, headers = f"{scheme}://{bucket}", http_headers(options)
        library = _choose_obstore(scheme, bucket, connection.backend, instead="urllib3")
        return HttpStore(root, timeout_s, headers, read_by_obstore=library == "obstore"), library
    return None


def _cloud(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> tuple[Store, str]:
    package = _CLOUDS[scheme]

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

    library = _choose_obstore(scheme, bucket, connection.backend, instead=package)
    if library == package:
        return make_slower(), library
    from .clouds import make_bucket
    from .obstore_store import ObstoreStore

    made = make_bucket(scheme, bucket, options, connection.read_timeout_s)
    return ObstoreStore(made, make_slower, has_slower=find_spec(package) is not None), library


def _choose_obstore(scheme: str, bucket: str, backend: Backend, *, instead: str) -> str:
    """Return ``"obstore"``, or the library that reads where it does not work."""
    from .obstore_reader import is_usable

    if is_usable():
        return "obstore"
    forked = "This process was forked after its parent had used obstore, which then does not work in it"
    advice = "Pass multiprocessing_context='forkserver' to the DataLoader."
    if backend is Backend.OBSTORE:
        raise StorageError(f"{scheme}://{bucket}: {forked}. {advice}", url=f"{scheme}://{bucket}")
    warnings.warn(f"{forked}: {scheme} is read by {instead}, more slowly. {advice}", RuntimeWarning, stacklevel=2)
    return instead


def _by_fsspec(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> Store:
    try:
        if scheme in S3:
            from .s3fs_store import S3fsStore

            return S3fsStore(bucket, options, connection.read_timeout_s)
        from .fsspec_store import FsspecStore

        return FsspecStore(scheme, bucket, options, connection.read_timeout_s)
    except RemoteDataError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise unusable_options(scheme, bucket, error, options) from error
