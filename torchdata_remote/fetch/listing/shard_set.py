"""Find the shards that a URL names: of a folder, of a manifest, of a pattern, or a single one."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.options import RetryPolicy, StorageOptions
from ...core.urls import HTTP, S3, RemoteUrl, join_url, object_path, redact, split_url
from ...errors import AccessDeniedError, EmptyListingError, ObjectChangedError, ObjectNotFoundError
from ...formats.manifest import MANIFEST_NAME, ShardInfo, load_manifest
from ...storage import list_folder, read_whole
from .patterns import literal_url
from .sources import Tars, list_source


def base_name(url: str) -> str:
    """Return the last segment of a URL's path."""
    return object_path(url).rpartition("/")[2]


@dataclass(frozen=True)
class ShardSet:
    """The shards that a URL names.

    Args:
        shards: in the manifest's order, or sorted; size and etag from the listing, sample counts from the manifest.
        manifest_url: URL of the manifest; ``None`` if there is none.
        manifest: its entries.
        folder: all objects of the manifest's folder; empty if the store has no listing.
    """

    shards: list[RemoteUrl]
    manifest_url: str | None = None
    manifest: tuple[ShardInfo, ...] = ()
    folder: tuple[RemoteUrl, ...] = ()


def find_shards(url: str, options: StorageOptions, retry: RetryPolicy) -> ShardSet:
    """Find the shards of a folder, a manifest, a glob, a brace range or a single URL.

    Args:
        url: as above. If a folder has a manifest, it decides which objects are shards.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        EmptyListingError: if there are none.
        ShardReadError: for two that differ by their ending only.
        ManifestError: if the manifest is invalid.
    """
    if base_name(url) == MANIFEST_NAME:
        return read_shard_set(literal_url(url), options, retry)
    pattern = Tars(url, MANIFEST_NAME)
    found = list(list_source(url, pattern=pattern, recursive=False, options=options, retry=retry))
    manifest = next((one for one in found if base_name(one) == MANIFEST_NAME), None)
    return ShardSet(found) if manifest is None else read_shard_set(manifest, options, retry)


def read_shard_set(manifest_url: str, options: StorageOptions, retry: RetryPolicy) -> ShardSet:
    """Read a manifest, and add size and etag of each shard from the listing of its folder.

    Raises:
        ObjectNotFoundError: if there is no manifest.
        ManifestError: if it is invalid, or names no shards.
    """
    url = join_url(*split_url(manifest_url))
    shown = redact(url)
    try:
        manifest = tuple(load_manifest(read_whole(url, options, retry), url))
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"{shown}: there is no manifest. Writers publish it last, so a job may be unfinished. "
            "For shards of other tools, write it: torchdata-remote manifest FOLDER.",
            url=shown,
        ) from error
    if not manifest:
        raise EmptyListingError(f"{shown} names no shards: write them again, or remove it.", url=shown)
    folder: tuple[RemoteUrl, ...] = ()
    if split_url(url)[0] not in HTTP:
        folder = tuple(list_folder(url[: url.rindex("/") + 1], recursive=False, options=options, retry=retry))
    listed = {str(one): (one.size, one.etag) for one in folder}
    shards = [
        RemoteUrl(
            one.url, *listed.get(one.url, (one.num_bytes, None)), None, one.num_samples, one.md5, *one.sums_beside
        )
        for one in manifest
    ]
    return ShardSet(shards, url, manifest, folder)


def read_if_there(url: str, options: StorageOptions, retry: RetryPolicy, *, by_obstore: bool = True) -> bytes | None:
    """Read a small object; ``None`` if it does not exist or access is denied."""
    try:
        return read_whole(url, options, retry, by_obstore=by_obstore)
    except (ObjectNotFoundError, AccessDeniedError):  # S3 returns 403 for missing objects if listing is denied
        return None


def require_size(url: str, found: int | None, expected: int | None) -> None:
    """Require that a shard has the size that it had, where both are known.

    Raises:
        ObjectChangedError: if it has another one.
    """
    if None not in (found, expected) and found != expected:
        shown = redact(url)
        raise ObjectChangedError(
            f"{shown} has {found:,} bytes, and its manifest says {expected:,}. It was replaced: write its manifest "
            "again (torchdata-remote manifest --overwrite FOLDER), or list it again.",
            url=shown,
        )


def options_beside(url: str, other: str, options: StorageOptions) -> StorageOptions:
    """Return the options for an object beside another: none in another kind of store, to which secrets are not sent."""
    (scheme, host, _), (other_scheme, other_host, _) = split_url(url), split_url(other)
    is_same = {scheme, other_scheme} <= S3 or (scheme == other_scheme and (scheme not in HTTP or host == other_host))
    return options if is_same else StorageOptions()
