"""What a data set is made from: archives, or files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from .errors import ShardReadError
from .inner_archives import is_archive_name
from .manifest import MANIFEST_NAME
from .options import RetryPolicy, StorageOptions
from .sample import naming_fault, split_key
from .sample_index import index_url
from .sample_table import SampleTable
from .shard_set import read_shard_set
from .storage.listing import list_source
from .urls import RemoteUrl, join_url, redact, split_url

_COMPANIONS = (MANIFEST_NAME, "classes.json", "provenance.json")  # that lie beside shards
_CHOICE = re.compile(r"[*?\[{]")


class Listing(NamedTuple):
    """A source, listed: its archives, or a table of its files. ``digest`` tells one listing from another."""

    archives: list[RemoteUrl]
    files: SampleTable
    digest: str


def list_samples(source: str, *, pattern: str | None, options: StorageOptions, retry: RetryPolicy) -> Listing:
    """List a source: a folder of files, one archive or several, or a manifest of shards.

    Files of a folder whose paths differ in their extension only are one sample.

    Args:
        source: URL or path.
        pattern: a glob that objects must match, as in ``list_remote``.
        options: for the store.
        retry: what is done about faults that may pass.

    Raises:
        EmptyListingError: if there is nothing.
        ShardReadError: for archives beside files, or a file whose path cannot be a sample's.
    """
    digest, listing = hashlib.sha256(), Listing([], SampleTable(), "")
    others: list[RemoteUrl] = []  # that are no archives; companions, if archives follow
    files = _Files(source, listing.files)
    for url in _listed(source, pattern, options, retry):
        digest.update(f"{url}\0{url.size}\0{url.etag}\n".encode("utf-8", "surrogateescape"))
        if is_archive_name(url):
            listing.archives.append(url)
        elif _may_be_companion(url):
            others.append(url)
        else:
            files.add(url)
    indexes = set(map(index_url, listing.archives))
    strange = [url for url in others if listing.archives and url.endswith(".idx") and url not in indexes]
    if not listing.archives:
        for url in others:
            files.add(url)
    manifests = [url for url in others if url.rpartition("/")[2] == MANIFEST_NAME]
    if listing.archives and len(manifests) == 1:
        listing = listing._replace(archives=_of_manifest(manifests[0], listing.archives, options, retry))
    first = next(iter(strange), listing.files.url(0) if len(listing.files) else None)
    if listing.archives and first is not None:
        shown = redact(source)
        raise ShardReadError(
            f"{shown} holds archives, such as {redact(listing.archives[0])}, and files beside them, such as "
            f"{redact(first)}. Choose: pattern='*.tar' takes the archives, another pattern the files.",
            url=shown,
        )
    return listing._replace(digest=digest.hexdigest())


def _of_manifest(
    manifest_url: str, archives: list[RemoteUrl], options: StorageOptions, retry: RetryPolicy
) -> list[RemoteUrl]:
    """The shards that a manifest names, which are all that lie there; they bring counts and checksums."""
    found = read_shard_set(manifest_url, options, retry)
    shards = []
    for url, said in zip(found.shards, found.manifest, strict=True):
        if url.size != said.num_bytes:
            raise ShardReadError(
                f"{redact(url)} has {url.size:,} bytes, and its manifest says {said.num_bytes:,}. Write it again.",
                url=redact(url),
            )
        shards.append(RemoteUrl(url, url.size, url.etag, said.checksums, said.num_samples))
    strange = [url for url in archives if url not in set(shards)]
    if strange:
        raise ShardReadError(
            f"{redact(strange[0])} is not named by {redact(manifest_url)}. Remove the one that is wrong, or choose by "
            "pattern='*.tar', which leaves the manifest out.",
            url=redact(manifest_url),
        )
    return shards


def _listed(source: str, pattern: str | None, options: StorageOptions, retry: RetryPolicy) -> Iterator[RemoteUrl]:
    return list_source(source, pattern=pattern, recursive=True, options=options, retry=retry)


def _may_be_companion(url: str) -> bool:
    return url.rpartition("/")[2] in _COMPANIONS or url.endswith(index_url(""))


class _Files:
    """Files that become samples, in the order of their paths."""

    def __init__(self, source: str, table: SampleTable) -> None:
        self._source = join_url(*split_url(source))
        choice = _CHOICE.search(self._source)
        fixed = self._source[: choice.start()] if choice else self._source
        self._folder = fixed[: fixed.rindex("/") + 1]
        self._table = table
        self._key: str | None = None
        self._extensions: set[str] = set()

    def add(self, url: RemoteUrl) -> None:
        below = self._source + "/"
        path = url[len(below if url.startswith(below) else self._folder) :]
        fault = naming_fault(path)
        key, extension = split_key(path)
        if fault is None and key == self._key and extension in self._extensions:
            fault = f"the sample {key!r} has {extension!r} twice, as extensions are compared in lower case"
        if fault is not None:
            raise ShardReadError(
                f"{redact(url)} cannot be part of a sample: {fault}. Leave it out by pattern=, such as '*.jpg'.",
                url=redact(url),
            )
        if key != self._key:
            self._key, self._extensions = key, set()
            self._table.begin_sample()
        self._extensions.add(extension)
        self._table.add_object(url)
        if url.size is None:
            raise ShardReadError(
                f"{redact(url)}: the listing does not tell its size, which is needed.", url=redact(url)
            )
        self._table.add_member(path, 0, url.size)
