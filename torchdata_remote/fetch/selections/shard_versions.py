"""Size and etag that the store has of shards, for URLs that lack them, such as those of a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ...core.options import RetryPolicy, StorageOptions
from ...core.shard_view import is_view, split_view_url, view_url
from ...core.threads.ordered_map import ordered_map
from ...core.urls import HTTP, RemoteUrl, join_url, redact, split_url
from ...errors import ObjectChangedError, ObjectNotFoundError
from ...storage import list_folder
from ..listing.lookups import find_named

_MAX_REQUESTS = 16


def with_versions(urls: Sequence[RemoteUrl], options: StorageOptions, retry: RetryPolicy) -> list[RemoteUrl]:
    """Return URLs with the size and etag of their shards, and local paths as URLs.

    Folders are listed; an http server is asked for each shard.

    Args:
        urls: of shards, or of samples that are selected of shards.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        ObjectNotFoundError: for a shard that is not there.
        ObjectChangedError: for one that has another size.
    """
    versions = _versions({shard for one in urls for shard in shards_of(one)}, options, retry)
    return [_as_stored(one, versions) for one in urls]


def absolute_url(url: str) -> str:
    """Return the URL of a local path, which may be relative; other URLs stay as they are."""
    return join_url(*split_url(url))


def shards_of(url: RemoteUrl) -> tuple[RemoteUrl, ...]:
    """Return the shards that a URL reads: itself, or those of selected samples."""
    _, view = split_view_url(url)
    return (url,) if view is None else view.urls


def _versions(
    shards: Iterable[RemoteUrl], options: StorageOptions, retry: RetryPolicy
) -> dict[str, tuple[int | None, str | None]]:
    """Look up size and etag of the shards that lack one of them."""
    lacking = sorted({absolute_url(shard) for shard in shards if shard.etag is None or shard.size is None})
    found: dict[str, tuple[int | None, str | None]] = {}
    single = [url for url in lacking if split_url(url)[0] in HTTP]
    tasks = [partial(find_named, url, options, retry) for url in single]
    for url, (entry, _) in zip(single, ordered_map(tasks, max_threads=_MAX_REQUESTS), strict=True):
        if entry is not None:
            found[url] = entry.size, entry.etag
    for folder in sorted({url[: url.rindex("/") + 1] for url in lacking if split_url(url)[0] not in HTTP}):
        listed = list_folder(folder, recursive=False, options=options, retry=retry)
        found |= {str(one): (one.size, one.etag) for one in listed}
    for url in lacking:
        if url not in found:
            raise ObjectNotFoundError(f"{redact(url)} is not there, and a snapshot cannot hold it.", url=redact(url))
    return found


def _as_stored(url: RemoteUrl, versions: Mapping[str, tuple[int | None, str | None]]) -> RemoteUrl:
    """Return a URL with the size and etag of its shards."""
    if not is_view(url):
        return _with_version(url, versions)
    _, view = split_view_url(url)
    assert view is not None
    return view_url(view._replace(urls=tuple(_with_version(shard, versions) for shard in view.urls)))


def _with_version(url: RemoteUrl, versions: Mapping[str, tuple[int | None, str | None]]) -> RemoteUrl:
    where = absolute_url(url)
    size, etag = versions.get(where, (url.size, url.etag))
    if url.size not in (None, size):
        shown = redact(url)
        raise ObjectChangedError(
            f"{shown} has {size} bytes, where it had {url.size}. It was replaced: write its manifest again "
            "(torchdata-remote manifest --overwrite FOLDER), or list it again.",
            url=shown,
        )
    _, _, *others = url.__getnewargs__()[1:]
    return RemoteUrl(where, size, url.etag or etag, *others)
