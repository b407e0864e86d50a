"""Which transport is used for which URL.

========================= ==================================================================================
URL                       by
========================= ==================================================================================
``s3://``                 obstore; s3fs for keys that obstore cannot express, options without a translation,
                          access points, large objects that are written, and in a child that was forked after
                          obstore was used
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
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from ..core.bucket_names import split_access_point
from ..core.chained_urls import without_target
from ..core.options import Backend, RetryPolicy, StorageOptions
from ..core.urls import AZURE, DATASETS, GS, HTTP, HUGGING_FACE, LOCAL, S3
from ..errors import RemoteDataError, StorageError, UrlError
from .errors import unusable_options
from .local.store import LocalStore
from .options import untranslated
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


_Made = tuple[Store, str] | None  # a store, and which library reads it and why


def make_store(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> tuple[Store, str]:
    """Return a store, and which library reads it and why.

    The stores that need urllib3 are imported here: it takes as long as NumPy, and local files do not need it.

    Raises:
        UrlError: if the chosen backend cannot read the URL with these options.
    """
    backend, chosen = connection.backend, f"backend={connection.backend.value!r}"
    if backend is Backend.FSSPEC:
        return _fsspec_store(scheme, bucket, options, connection), f"fsspec ({chosen})"
    own = _OWN.get(scheme)
    made = None if own is None else own(scheme, bucket, options, connection)
    if made is not None:
        return made
    if backend is not Backend.AUTOMATIC:
        raise UrlError(
            f"{chosen} cannot read {scheme}://{bucket} with {options!r}. Pass backend='automatic', or "
            "backend='fsspec', which supports every option of its filesystems.",
            url=f"{scheme}://{bucket}",
        )
    if scheme not in _SLOWER:
        return _fsspec_store(scheme, bucket, options, connection), "fsspec (the transport for all other URLs)"
    slower = _SLOWER[scheme]
    what = ", ".join(untranslated(scheme, options))
    _log.warning("%s://%s is read by %s, more slowly: no translation for %s", scheme, bucket, slower, what)
    return _fsspec_store(scheme, bucket, options, connection), f"{slower} (no translation for {what})"


def _cloud(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> _Made:
    """Return the store of a bucket by obstore, or by fsspec in a process where obstore does not work."""
    if untranslated(scheme, options):
        return None
    if scheme in S3 and split_access_point(bucket) is not None:
        if connection.backend is Backend.OBSTORE:
            return None
        _log.warning("%s://%s is read by s3fs, more slowly: obstore knows no access points", scheme, bucket)
        return _fsspec_store(scheme, bucket, options, connection), "s3fs (obstore knows no access points)"
    name = _SLOWER[scheme]
    by_obstore, reason = _choose_obstore(scheme, bucket, connection.backend, instead=name)

    def make_slower() -> Store:
        try:
            return _fsspec_store(scheme, bucket, options, connection)
        except UrlError as error:
            raise UrlError(
                f"{error} obstore cannot be used here: it has no word for keys with empty segments, '.' or '..' "
                "between slashes, or control characters, and does not work in a child that was forked after its use. "
                f"Install {name} (pip install {name}), rename the objects, or pass "
                "multiprocessing_context='forkserver' to the DataLoader.",
                url=error.url,
            ) from error

    if not by_obstore:
        return make_slower(), reason
    from .clouds import make_bucket
    from .obstore_store import ObstoreStore

    made = make_bucket(scheme, bucket, options, connection.read_timeout_s)
    return ObstoreStore(made, make_slower, has_slower=find_spec(name) is not None), reason


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


def _http(scheme: str, host: str, options: StorageOptions, connection: Connection) -> _Made:
    from .http_store import HttpStore, http_headers

    headers = http_headers(f"{scheme}://{host}", options)
    by_obstore, reason = _choose_obstore(scheme, host, connection.backend, instead="urllib3")
    root = f"{scheme}://{host}"
    return HttpStore(root, connection.read_timeout_s, headers, read_by_obstore=by_obstore), reason


def _datasets(scheme: str, host: str, options: StorageOptions, connection: Connection) -> _Made:
    from .dataset_service.store import DatasetsStore

    by_obstore, reason = _choose_obstore(scheme, host, connection.backend, instead="urllib3")
    return DatasetsStore(host, options, connection.read_timeout_s, read_by_obstore=by_obstore), reason


def _hub(scheme: str, first: str, options: StorageOptions, connection: Connection) -> _Made:
    if connection.backend is not Backend.AUTOMATIC:
        return None
    from .hub import HubStore

    return HubStore(first, options, connection.read_timeout_s), "urllib3 (the transport for the Hub)"


def _local(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> _Made:
    if options or connection.backend is not Backend.AUTOMATIC:
        return None
    return LocalStore(), "the operating system (local files)"


_OWN: dict[str, Callable[[str, str, StorageOptions, Connection], _Made]] = {
    **dict.fromkeys(S3 | GS | AZURE, _cloud),
    **dict.fromkeys(HTTP, _http),
    **dict.fromkeys(LOCAL, _local),
    DATASETS: _datasets,
    HUGGING_FACE: _hub,
}
# What fsspec uses for options that have no translation
_SLOWER = {
    **dict.fromkeys(S3, "s3fs"),
    **dict.fromkeys(GS, "gcsfs"),
    **dict.fromkeys(AZURE, "adlfs"),
}


def _fsspec_store(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> Store:
    if mistake := without_target(scheme, options):
        raise UrlError(f"{scheme}://{bucket}: {mistake}", url=f"{scheme}://{bucket}")
    # Imported here: fsspec takes 0.1 s to import, which the other stores do not need
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
