"""Write and read snapshots of shards, with the versions that the store has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ...core import arguments as check
from ...core.arguments import explained
from ...core.options import RetryPolicy, StorageOptions, policy_of
from ...core.retry import call_with_retries
from ...core.shard_view import split_view_url, view_url
from ...core.threads import ordered_map
from ...core.urls import RemoteUrl, VirtualUrl, join_url, redact, split_url
from ...errors import EmptyListingError, UrlError
from ...formats.snapshot import (
    SNAPSHOT_SUFFIX,
    digest_of,
    dump_snapshot,
    is_snapshot_name,
    load_snapshot,
    num_samples_of,
)
from ...storage import Connection, open_store, publish, read_whole
from ..listing.patterns import literal_url
from ..listing.shard_set import options_beside, require_size
from ..listing.source_argument import pipe_of, url_of

_MAX_REQUESTS = 16


@dataclass(frozen=True)
class Snapshot:
    """A named, immutable list of shards and of the samples that are selected of them.

    Args:
        url: of the file.
        digest: 32 hexadecimal digits, of the order and contents of the samples: equal digests are equal samples in the
            same order. It does not depend on the time, the host or the place of the snapshot, nor on that of shards
            whose MD5 a manifest has.
        num_samples: in one epoch; ``None`` if it is unknown.
        num_bytes: of the shards, as far as they are selected; ``None`` if it is unknown.
        urls: of the shards, with size, etag, checksums and number of samples; as ``list_remote`` yields them.
    """

    url: str
    digest: str
    num_samples: int | None
    num_bytes: int | None
    urls: tuple[RemoteUrl, ...] = field(repr=False)

    @classmethod
    def read(
        cls,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> Snapshot:
        """Read a snapshot, and verify its digest.

        Args:
            url: or path of the file.
            storage_options: for the store, in fsspec's vocabulary.
            retry: policy for transient errors.

        Raises:
            ObjectNotFoundError: if there is none.
            ManifestError: if it is damaged or was changed.
        """
        where = _location(url, of="Snapshot.read")
        data = read_whole(where, StorageOptions(storage_options), policy_of(retry), by_obstore=False)
        return _snapshot(where, load_snapshot(data, where))


@explained
def write_snapshot(
    url: str,
    urls: Iterable[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
) -> Snapshot:
    """Write which samples a training reads, as a file that is read like a manifest, by ``list_remote`` for example.

    It has the URL, size, etag, checksums and number of samples of each shard, and what ``select`` has selected of it,
    but no bytes of samples. If a shard is replaced later, reading it is an :class:`ObjectChangedError`; in a store
    without etags only if its size or its checksums differ. For an etag that a manifest does not have, the store is
    asked, 16 shards at a time.

    Args:
        url: or path of the file, which ends in ``.snapshot.json``. An existing one is never replaced.
        urls: of shards: a pipe of ``list_remote`` or ``select``, or a list.
        storage_options: for the shards' store, in fsspec's vocabulary; also for the snapshot in the same kind of store.
        retry: policy for transient errors, for each request.

    Returns:
        Snapshot: with its digest and numbers.

    Raises:
        ObjectExistsError: if there is an object of this name.
        UrlError: for a URL with credentials, such as a signed one, or a range of samples; and for a name that does not
            end in ``.snapshot.json``.
        ValueError: for a pipe whose order differs in each epoch.
        EmptyListingError: if there are no URLs.
        ObjectNotFoundError, ObjectChangedError: if a shard is missing, or has another size than its manifest says.

    Example:
        >>> from torchdata_remote.testing import write_small_shards
        >>> _ = write_small_shards("memory://whole", num_shards=2, samples_per_shard=3)
        >>> urls = IterableWrapper(["memory://whole/index.json"]).list_remote()
        >>> snapshot = write_snapshot("memory://whole/all.snapshot.json", urls)
        >>> snapshot.num_samples, snapshot.digest == Snapshot.read(snapshot.url).digest
        (6, True)
        >>> [read.num_samples for read in IterableWrapper([snapshot.url]).list_remote()]
        [3, 3]
    """
    where, options, policy = _location(url, of="write_snapshot"), StorageOptions(storage_options), policy_of(retry)
    if not is_snapshot_name(where):
        raise _refused(where, f": the name of a snapshot ends in {SNAPSHOT_SUFFIX}, by which it is recognised.")
    _require_one_order(pipe_of(urls, of="write_snapshot", holds="shards"))
    listed = [_without_secrets(url_of(one, of="write_snapshot")) for one in urls]
    if not listed:
        raise EmptyListingError("write_snapshot: there are no shards for a snapshot.")
    tasks = [partial(_as_stored, one, options, policy) for one in listed]
    shards = list(ordered_map(tasks, max_threads=_MAX_REQUESTS))
    own = options_beside(where, _shards_of(shards[0])[0], options)
    publish(where, dump_snapshot(shards), own, overwrite=False)
    return _snapshot(where, shards)


def _require_one_order(urls: Any) -> None:
    """Refuse pipes that yield other URLs in other epochs or processes, wherever in the chain they are."""
    pipe = urls
    while pipe is not None:
        if getattr(type(pipe), "uses_epoch", hasattr(type(pipe), "set_epoch")):
            raise check.marked(
                ValueError(
                    f"{type(pipe).__name__} yields another order in each epoch: pass the pipe before it, and shuffle "
                    "what list_remote() reads of the snapshot."
                )
            )
        fields = getattr(pipe, "__dict__", {})
        pipe = fields.get("source_datapipe", fields.get("datapipe"))  # of this package, or of torch


def _snapshot(where: str, urls: Sequence[RemoteUrl]) -> Snapshot:
    sizes = [url.size for url in urls]
    num_bytes = None if None in sizes else sum(filter(None, sizes))
    return Snapshot(where, digest_of(urls), num_samples_of(urls), num_bytes, tuple(urls))


def _location(url: Any, *, of: str) -> str:
    return join_url(*split_url(literal_url(url_of(url, of=of))))


def _shards_of(url: RemoteUrl) -> tuple[RemoteUrl, ...]:
    """Return the shards that a URL reads: itself, or those of selected samples."""
    return url.shards if isinstance(url, VirtualUrl) else (url,)


def _without_secrets(url: str) -> RemoteUrl:
    """Return a URL that a snapshot may hold.

    Raises:
        UrlError: for one with credentials, or what stands for no whole shard and no selection.
    """
    if isinstance(url, VirtualUrl) and (url.view is None or url.samples is not None):
        raise _refused(
            url,
            " is a range of samples, or shards that are read side by side, which a snapshot cannot hold: pass the pipe "
            "before sharding_filter_rank(), and join by align='keys'.",
        )
    found = url if isinstance(url, RemoteUrl) else RemoteUrl(join_url(*split_url(url)))
    for shard in _shards_of(found):
        if redact(shard) != str(shard):
            raise _refused(
                shard,
                ": the URL has a query or user-info, which may be a signature or a password, and a snapshot is kept: "
                "pass credentials by storage_options, and URLs without them.",
            )
    return found


def _refused(url: str, why: str) -> UrlError:
    return UrlError(f"{redact(url)}{why}", url=redact(url))


def _as_stored(
    url: RemoteUrl, options: StorageOptions, retry: RetryPolicy, sleep: Callable[[float], None]
) -> RemoteUrl:
    """Return a URL with the size and etag that the store has of its shards, and local paths as URLs."""
    shards = []
    for shard in _shards_of(url):
        where, size, etag, *others = join_url(*split_url(shard)), *shard.__getnewargs__()[1:]
        if None in (size, etag):
            store, path = open_store(where, options, Connection(read_timeout_s=retry.progress_timeout_s))
            entry = call_with_retries(partial(store.stat, path), retry, url=where, sleep=sleep)
            require_size(where, entry.size, size)
            size, etag = size if entry.size is None else entry.size, etag or entry.etag
        shards.append(RemoteUrl(where, size, etag, *others))
    view = split_view_url(url)[1]
    return shards[0] if view is None else view_url(view.with_urls(tuple(shards)))
