"""Write the manifest, the indexes and the keys of shards that another tool has written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from ..core import arguments as check
from ..core.arguments import explained
from ..core.options import FetchOptions, RetryPolicy, StorageOptions
from ..core.progress import Progress, hidden_unless
from ..core.urls import RemoteUrl, join_url, redact, split_url
from ..errors import ObjectExistsError
from ..fetch.listing.patterns import literal_url
from ..fetch.listing.source_argument import url_of
from ..fetch.listing.sources import Tars, list_source
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.error_policy import MemberErrorHandler, OnBadMember, Skipped, raise_error
from ..formats.key_index import companion_urls
from ..formats.manifest import MANIFEST_NAME, ShardInfo, dump_manifest
from ..formats.shard_members import ShardDigest, read_shard_members
from ..storage import list_folder, publish


@explained
def index_shards(
    url: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    overwrite: bool = False,
    on_shard: Callable[[ShardInfo], object] = lambda shard: None,
    on_bad_member: OnBadMember = raise_error,
    progress: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> list[ShardInfo]:
    """Read the tar shards of a folder, write an index and a file of keys beside each, then their manifest.

    The manifest holds sizes, sample counts and checksums, the indexes hold the first byte of each sample, the files of
    keys hold key and members of each. They are needed to equalize ranks, to split shards, to select samples by key, and
    to detect damage. Every byte is read once. A compressed shard gets neither index nor keys.

    Args:
        url: the folder.
        pattern: glob that the shards' base names match; ``None`` selects all tars, in any case and compression.
        overwrite: replace an existing manifest, indexes and files of keys. Otherwise one is an error.
        on_shard: called with each shard after it was read.
        on_bad_member: called with the ``BadMemberError`` of a member that cannot be part of a sample (``README``). If
            it returns, as ``skip_with_warning`` does, the member is not counted: readers need the same policy.
        progress: show a progress bar if standard error is a terminal.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        list[ShardInfo]: in the manifest's order, sorted by path.

    Raises:
        EmptyListingError: if there are no shards.
        ObjectExistsError: if there is a manifest, an index or a file of keys, before anything is read.
        ShardReadError: for a shard that is damaged, or does not consist of samples; for two that differ by their ending
            only.

    Example:
        >>> import fsspec
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://theirs/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "cls": i}) for i in range(3)]
        >>> fsspec.filesystem("memory").rm(["/theirs/index.json", "/theirs/0.tar.idx", "/theirs/0.tar.keys"])
        >>> [(shard.url, shard.num_samples) for shard in index_shards("memory://theirs/")]
        [('memory://theirs/0.tar', 3)]
    """
    check.text_or_none("pattern", pattern, example="*.tar")
    overwrite, progress = check.flag("overwrite", overwrite), check.flag("progress", progress)
    check.function("on_shard", on_shard, example="print")
    check.function("on_bad_member", on_bad_member, example="tdr.skip_with_warning")
    url = literal_url(url_of(url, of="index_shards"))
    folder = url if url.endswith("/") else url + "/"
    options, retry = StorageOptions(storage_options), RetryPolicy()
    manifest_url = join_url(*split_url(folder + MANIFEST_NAME))
    with hidden_unless(progress):
        chosen = Tars(folder) if pattern is None else pattern
        urls = list(list_source(RemoteUrl(folder), pattern=chosen, recursive=False, options=options, retry=retry))
    existing = set(list_folder(folder, recursive=False, options=options, retry=retry))
    for written in [manifest_url, *(beside for one in urls for beside in companion_urls(one))]:
        if written in existing and not overwrite:
            raise ObjectExistsError(
                f"{redact(written)} exists already. Pass overwrite=True (--overwrite) to replace it.", url=written
            )
    shards, skipped = [], Skipped()
    policy = MemberErrorHandler(on_bad_member, skipped)
    with Progress("manifest", sum(one.size or 0 for one in urls) or None, "B", shown=progress) as shown:
        for shard_url, stream in stream_objects(urls, FetchSession(FetchOptions(), options)):
            with closing(stream):
                digest = ShardDigest(shown.passed(parts_of(shard_url, stream)))
                found = read_shard_members(str(shard_url), digest, policy, skipped.count_empty)
            found.links.warn()
            beside = found.beside()
            info = digest.info(str(shard_url), found.num_samples, *beside)
            for beside_url, data in zip(companion_urls(info.url), beside, strict=True):
                if data is not None:
                    publish(beside_url, data, options, overwrite=overwrite)
            shards.append(info)
            on_shard(info)
    publish(manifest_url, dump_manifest(shards), options, overwrite=overwrite)
    return shards
