"""List a source: its archives, or its files grouped into samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from ..core import arguments as check
from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, object_path, redact
from ..errors import BadMemberError, EmptyListingError, ShardReadError
from ..fetch.listing.patterns import literal_url, path_below
from ..fetch.listing.shard_set import read_shard_set
from ..fetch.listing.sources import Tars, find_object, list_source
from ..fetch.sample_table import SampleTable
from ..formats.error_policy import MemberErrorHandler, OnBadMember, Skipped
from ..formats.key_index import COMPANION_ENDINGS
from ..formats.manifest import MANIFEST_NAME
from ..formats.sample import naming_fault
from ..formats.split_name import SplitName, splitter, warn_of_merged
from ..writing import describes_shards


def list_samples(
    source: str,
    *,
    pattern: str | None,
    split_name: SplitName,
    options: StorageOptions,
    retry: RetryPolicy,
    on_bad_member: OnBadMember,
) -> tuple[list[RemoteUrl], SampleTable, str]:
    """List a source: a folder of files, one archive or several, or a manifest of shards.

    Files that have the same key are one sample.

    Args:
        source: URL or path.
        pattern: a glob that objects must match, as in ``list_remote``.
        split_name: of files, as in ``shard_dataset``.
        options: for the store.
        retry: policy for transient faults.
        on_bad_member: called for files that cannot be part of a sample, if there are no archives.

    Returns:
        Its archives, a table of its files if there are none, and a digest of the listing.

    Raises:
        EmptyListingError: if the source is empty.
        ShardReadError: for archives beside files, or two archives that differ by their ending only.
        ValueError: for archives with ``split_name``.
        BadMemberError: for a file whose path cannot be a sample's.
    """
    digest, archives, manifests = hashlib.sha256(), [], []
    file: RemoteUrl | None = None  # the first one that is neither an archive nor beside one
    files, tars = _Files(source, split_name, MemberErrorHandler(on_bad_member, Skipped())), Tars(source)
    for url in _listed(source, pattern, options, retry):
        digest.update(f"{url}\0{url.size}\0{url.etag or url.md5}\n".encode("utf-8", "surrogateescape"))
        if tars(files.below(url)):
            archives.append(url)
            continue
        files.add(url)
        if url.endswith(f"/{MANIFEST_NAME}"):
            manifests.append(url)
        if not (url.endswith(COMPANION_ENDINGS) or describes_shards(url.rpartition("/")[2])):
            file = file or url
    if not archives:
        files.finish()
        if split_name is None:
            warn_of_merged(files.table.names, len(files.table))
    elif split_name is not None:
        raise check.marked(
            ValueError(
                f"split_name is for loose files, and {redact(source)} has archives, such as {redact(archives[0])}. "
                "Names of their members are split at the first dot: leave it out."
            )
        )
    elif file is not None:
        raise ShardReadError(
            f"{redact(source)} holds archives, such as {redact(archives[0])}, and files beside them, such as "
            f"{redact(file)}. Choose: pattern='*.tar' takes the archives, another pattern the files.",
            url=redact(source),
        )
    elif len(manifests) == 1:
        archives = _of_manifest(manifests[0], archives, options, retry)
    return archives, SampleTable() if archives else files.table, digest.hexdigest()


def _of_manifest(
    manifest_url: str, archives: list[RemoteUrl], options: StorageOptions, retry: RetryPolicy
) -> list[RemoteUrl]:
    """Return the shards of a manifest with counts and checksums, and require that there are no others."""
    found = read_shard_set(manifest_url, options, retry)
    shards = []
    for url, info in zip(found.shards, found.manifest, strict=True):
        if url.size != info.num_bytes:
            raise ShardReadError(
                f"{redact(url)} has {url.size:,} bytes, and its manifest says {info.num_bytes:,}. Write it again.",
                url=redact(url),
            )
        shards.append(RemoteUrl(url, url.size, url.etag, info.checksums, info.num_samples, info.md5))
    unlisted = [url for url in archives if url not in set(shards)]
    if unlisted:
        raise ShardReadError(
            f"{redact(unlisted[0])} is not named by {redact(manifest_url)}. Remove the wrong one, or pass "
            "pattern='*.tar', which ignores the manifest.",
            url=redact(manifest_url),
        )
    return shards


def _listed(source: str, pattern: str | None, options: StorageOptions, retry: RetryPolicy) -> Iterator[RemoteUrl]:
    """Yield the objects of a source with size and, if the store reports it, etag."""
    if pattern is None and object_path(source).rpartition("/")[2] == MANIFEST_NAME:
        yield from _of_manifest(literal_url(source), [], options, retry)
        return
    for url in list_source(source, pattern=pattern, recursive=True, options=options, retry=retry):
        if url.size is not None:
            yield url
            continue
        found = find_object(url, options, retry)  # brace ranges are expanded without a listing
        if found is None:
            raise EmptyListingError(f"{redact(url)}: there is no such object.", url=redact(url))
        yield found


class _Files:
    """Groups files into samples, in the order of their paths."""

    def __init__(self, source: str, split_name: SplitName, on_bad_member: OnBadMember) -> None:
        self.below, self.table = path_below(source), SampleTable()
        self._split, self._is_sorted, self._start = splitter(split_name), not callable(split_name), ""
        self._on_bad_member = on_bad_member
        self._open: dict[
            str, dict[str, tuple[str, RemoteUrl]]
        ] = {}  # incomplete samples: key -> extension -> path and URL

    def add(self, url: RemoteUrl) -> None:
        """Add the next file. Files of a folder ``a.d`` may come between those of a sample ``a``."""
        path = self.below(url)
        key, extension = self._split(path)
        reason = naming_fault(f"{key}.{extension}")
        if reason is not None:
            self._on_bad_member(_bad_file(url, reason, reason))
            return
        if not path.startswith(self._start):
            self.finish()
        if not self._open and self._is_sorted:  # by a function, files of a sample may be anywhere
            self._start = path[: len(path) - len(extension)]
        members = self._open.setdefault(key, {})
        if extension in members:
            other = members[extension][0]
            what = f"the sample {key!r} has {extension!r} twice, before as {other!r:.200} (compared in lower case)"
            self._on_bad_member(_bad_file(url, what, "the sample has its extension already"))
            return
        members[extension] = path, url

    def finish(self) -> None:
        """Add the collected samples to the table."""
        for members in self._open.values():
            self.table.start_sample()
            for path, url in members.values():
                if url.size is None:
                    raise ShardReadError(
                        f"{redact(url)}: the store does not report its size, which is required.", url=redact(url)
                    )
                self.table.add_object(url)
                self.table.add_member(path, 0, url.size)
        self._open = {}


def _bad_file(url: str, what: str, reason: str) -> BadMemberError:
    return BadMemberError(
        f"{redact(url)} cannot be part of a sample: {what}. Leave it out by pattern=, such as '*.jpg', or pass "
        "on_bad_member=skip_with_warning.",
        url=redact(url),
        member=url.rpartition("/")[2],
        reason=reason,
    )
