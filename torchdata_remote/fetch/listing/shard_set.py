"""Which shards a URL stands for: a folder, its manifest, or one shard."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.options import RetryPolicy, StorageOptions
from ...core.urls import HTTP, RemoteUrl, join_url, object_path, redact, split_url
from ...errors import AccessDeniedError, EmptyListingError, ManifestError, ObjectNotFoundError
from ...formats.manifest import MANIFEST_NAME, ShardInfo, load_manifest
from ...formats.nested import is_archive_name
from ...storage.listing.folder import list_folder
from ...storage.registry import read_whole
from .patterns import literal_url
from .source_argument import url_of
from .sources import list_source


def base_name(url: str) -> str:
    """The last part of a URL's path."""
    return object_path(url).rpartition("/")[2]


@dataclass(frozen=True)
class ShardSet:
    """Some shards.

    Args:
        shards: in the manifest's order, or sorted; size and etag as listed, samples as the manifest tells them.
        manifest_url: where the manifest lies; ``None`` if there is none.
        manifest: what it says.
        folder: everything beside the shards, itself included; empty where the store has no listing.
    """

    shards: list[RemoteUrl]
    manifest_url: str | None = None
    manifest: tuple[ShardInfo, ...] = ()
    folder: tuple[RemoteUrl, ...] = ()


def find_shards(url: str, options: StorageOptions, retry: RetryPolicy) -> ShardSet:
    """The shards of a folder, of a manifest, or that a glob, a brace range or a single URL names.

    Args:
        url: where they are. If a folder has a manifest, that says which they are.
        options: for the store.
        retry: what is done about faults that may pass.

    Raises:
        EmptyListingError: if there are none.
        ManifestError: if there is a manifest that is not one.
    """
    if base_name(url) == MANIFEST_NAME:
        return read_shard_set(literal_url(url), options, retry)
    found = list(list_source(url, pattern=None, recursive=False, options=options, retry=retry))
    manifests = [one for one in found if base_name(one) == MANIFEST_NAME]
    if manifests:
        return read_shard_set(manifests[0], options, retry)
    shards = [one for one in found if is_archive_name(one)]
    if len(found) == 1 and not shards:
        shards = found  # one object, which may be called anything
    if not shards:
        shown = redact(url)
        raise EmptyListingError(
            f"{shown}: none of the {len(found):,} objects in it is called *.tar, *.tar.gz, *.tar.zst or the like. Name "
            "the folder that the shards lie in, a glob, or one shard.",
            url=shown,
        )
    return ShardSet(shards)


def read_shard_set(manifest_url: str, options: StorageOptions, retry: RetryPolicy) -> ShardSet:
    """The shards that a manifest names, with what the listing of its folder tells of them.

    Raises:
        ObjectNotFoundError: if there is no manifest.
        ManifestError: if it is not one, or names no shards.
    """
    url = join_url(*split_url(manifest_url))
    try:
        manifest = tuple(load_manifest(read_whole(url, options, retry), url))
    except ObjectNotFoundError as error:
        shown = redact(url)
        raise ObjectNotFoundError(
            f"{shown}: there is no manifest. It is the last object that a writer of shards leaves: a job may not have "
            "come to its end. For shards of others, write it: torchdata-remote manifest FOLDER.",
            url=shown,
        ) from error
    if not manifest:
        shown = redact(url)
        raise EmptyListingError(f"{shown} names no shards: write them again, or remove it.", url=shown)
    folder: tuple[RemoteUrl, ...] = ()
    if split_url(url)[0] not in HTTP:
        folder = tuple(list_folder(url[: url.rindex("/") + 1], recursive=False, options=options, retry=retry))
    listed = {str(one): one for one in folder}
    shards = []
    for shard in manifest:
        there = listed.get(shard.url)
        size, etag = (shard.num_bytes, None) if there is None else (there.size, there.etag)
        shards.append(RemoteUrl(shard.url, size, etag, None, shard.num_samples, shard.md5, shard.index_crc32))
    return ShardSet(shards, url, manifest, folder)


def read_if_there(url: str, options: StorageOptions, retry: RetryPolicy) -> bytes | None:
    """The bytes of a small object; ``None`` if there is none that may be read."""
    try:
        return read_whole(url, options, retry)
    except (ObjectNotFoundError, AccessDeniedError):  # where nobody may list, s3 says 403 for what is not there
        return None


def list_objects(
    url: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    recursive: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[RemoteUrl]:
    """The objects that a URL stands for, as ``list_remote`` gives them, and their samples where a manifest tells.

    Args:
        url: a prefix, a glob, a brace range, a manifest, or one object.
        pattern: glob that they must match: by base name, or by the path below the source if it has a slash.
        recursive: whether folders below a prefix are entered.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        EmptyListingError: if there are none.

    Example:
        >>> from torchdata_remote.testing import write_small_shards
        >>> _ = write_small_shards("memory://listed", num_shards=2, samples_per_shard=3)
        >>> [(one.rpartition("/")[2], one.size, one.num_samples) for one in list_objects("memory://listed")][:2]
        [('000000.tar', 7168, 3), ('000000.tar.idx', 32, None)]
    """
    url, options, retry = url_of(url, of="list_objects"), StorageOptions(storage_options), RetryPolicy()
    counts: dict[str, dict[str, int]] = {}  # of folders that hold shards: URL -> samples
    for one in list_source(url, pattern=pattern, recursive=recursive, options=options, retry=retry):
        if one.num_samples is None and is_archive_name(base_name(one)):
            folder = one[: one.rindex("/") + 1]
            if folder not in counts:
                counts[folder] = _counts_in(folder, options, retry)
            one.num_samples = counts[folder].get(one)
        yield one


def _counts_in(folder: str, options: StorageOptions, retry: RetryPolicy) -> dict[str, int]:
    """Samples of the shards that a folder's manifest names; nothing where there is none that can be read."""
    url = folder + MANIFEST_NAME
    data = read_if_there(url, options, retry)
    try:
        return {} if data is None else {shard.url: shard.num_samples for shard in load_manifest(data, url)}
    except ManifestError:  # other things may be called index.json
        return {}
