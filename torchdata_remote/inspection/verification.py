"""Verify shards against their manifest and the objects beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..core.checksums import BLOCK_BYTES
from ..core.options import FetchOptions, RetryPolicy, StorageOptions
from ..core.progress import Progress
from ..core.urls import RemoteUrl, redact
from ..errors import RemoteDataError, ShardReadError
from ..fetch.listing.patterns import literal_url
from ..fetch.listing.shard_set import ShardSet, base_name, read_shard_set
from ..fetch.object_stream import ObjectStream
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.error_policy import MemberErrorHandler, Skipped
from ..formats.manifest import MANIFEST_NAME, ShardInfo
from ..formats.nested import is_archive_name
from ..formats.sample import is_of_macos
from ..formats.shard_digest import ShardDigest
from ..formats.shard_members import ShardMembers, read_shard_members
from .companion_check import faults_beside
from .faults import Fault

_MAX_BLOCKS_NAMED = 5


@dataclass(frozen=True)
class Verification:
    """Result of ``verify_shards``.

    Args:
        manifest_url: of the manifest, without credentials.
        num_shards: shards that the manifest names.
        num_samples: found in the shards that could be read.
        num_bytes: read from them.
        faults: empty if all shards agree with the manifest.
        bad_members: reason why members cannot be part of a sample -> how many. They are not faults as long as the
            manifest does not count them; readers raise for them, unless ``on_bad_member`` leaves them out.
        num_links: hard and symbolic links, which readers leave out. They are no faults either.
    """

    manifest_url: str
    num_shards: int
    num_samples: int
    num_bytes: int
    faults: list[Fault]
    bad_members: dict[str, int] = field(default_factory=dict)
    num_links: int = 0


def verify_shards(
    url: str,
    *,
    on_checked: Callable[[str, list[Fault]], object] = lambda url, faults: None,
    progress: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Verification:
    """Read all shards of a folder and compare them with their manifest, their indexes and their keys.

    Compared are sizes, MD5, the CRC-32 of each block, of the index and of the file of keys, the number of samples,
    their offsets, keys and members. Every header is read as strictly as when training. Shards that only the folder or
    only the manifest has are faults too. All shards are read, whatever faults are found. Missing keys are a fault if
    the manifest has their CRC-32; earlier releases wrote none.

    Args:
        url: the folder, or its manifest. A store without a listing (http) needs the manifest; unnamed shards and
            missing indexes cannot be found there.
        on_checked: called with the manifest's URL and the folder's faults, then with each shard's URL and its faults as
            soon as it was read.
        progress: show a progress bar if standard error is a terminal.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        ObjectNotFoundError: if there is no manifest.
        ManifestError: if it is not one, or names a shard twice.
        StorageError: if the folder cannot be listed. A shard that cannot be read is a fault.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://sound/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "cls": i}) for i in range(3)]
        >>> verify_shards("memory://sound/").faults
        []
    """
    options, retry = StorageOptions(storage_options), RetryPolicy()
    url = literal_url(url)
    named = base_name(url) == MANIFEST_NAME
    manifest_url = url if named else (url if url.endswith("/") else url + "/") + MANIFEST_NAME
    shards = read_shard_set(manifest_url, options, retry)
    assert shards.manifest_url is not None
    shown = redact(shards.manifest_url)
    faults = list(_faults_of_the_folder(shards))
    on_checked(shown, list(faults))
    listed = {str(file): file for file in shards.folder}
    expected = {shard.url: shard for shard in shards.manifest}
    existing = [shard for shard in shards.shards if not listed or str(shard) in listed]
    num_samples = num_bytes = num_links = 0
    skipped = Skipped()
    session, total = FetchSession(FetchOptions(), options), sum(shard.num_bytes for shard in shards.manifest)
    bar = Progress("verify", total, "B", shown=progress)
    with bar, closing(stream_objects(existing, session)) as streams:
        for shard_url, stream in streams:
            check = _ShardCheck(expected[str(shard_url)], listed, skipped, options, retry)
            with closing(stream):
                check.read(shard_url, stream, bar)
            num_samples += check.num_samples
            num_bytes += check.num_bytes
            num_links += check.num_links
            faults += check.faults
            on_checked(redact(shard_url), check.faults)
    bad_members = dict(skipped.bad_members)
    return Verification(shown, len(shards.manifest), num_samples, num_bytes, faults, bad_members, num_links)


def _faults_of_the_folder(shards: ShardSet) -> Iterator[Fault]:
    """Compare the manifest's shards with the listing."""
    named = {shard.url for shard in shards.manifest}
    listed = set(map(str, shards.folder))
    for shard in shards.manifest:
        if listed and shard.url not in listed:
            yield Fault(redact(shard.url), "the manifest names it, but it does not exist")
    for file in shards.folder:
        if is_archive_name(base_name(file)) and not is_of_macos(base_name(file)) and file not in named:
            yield Fault(redact(file), "the manifest does not name it, so readers of the manifest leave it out")


class _ShardCheck:
    """Compares one shard with its entry in the manifest.

    Args:
        expected: the entry.
        listed: URL -> object of the folder; empty if the store has no listing.
        skipped: counts bad members.
        options: for the store.
        retry: policy for transient faults.
    """

    def __init__(
        self,
        expected: ShardInfo,
        listed: Mapping[str, RemoteUrl],
        skipped: Skipped,
        options: StorageOptions,
        retry: RetryPolicy,
    ) -> None:
        self._expected, self._listed, self._options, self._retry = expected, listed, options, retry
        self._on_bad_member = MemberErrorHandler(lambda error: None, skipped)
        self.faults: list[Fault] = []
        self.num_samples = self.num_bytes = self.num_links = 0

    def _fault(self, what: str) -> None:
        self.faults.append(Fault(redact(self._expected.url), what))

    def read(self, url: str, stream: ObjectStream, bar: Progress) -> None:
        """Read the shard and collect its faults."""
        checksums = self._expected.checksums
        block_bytes = BLOCK_BYTES if checksums is None else checksums.block_bytes
        digest = ShardDigest(bar.passed(parts_of(url, stream)), block_bytes)
        found: ShardMembers | None = None
        try:
            try:
                found = read_shard_members(self._expected.url, digest, self._on_bad_member)
            except ShardReadError as error:
                self._fault(str(error).removeprefix(f"{redact(self._expected.url)}: "))
                for _ in digest:  # to the end, so that size and checksums are compared too
                    pass
        except RemoteDataError as error:
            self._fault(f"cannot be read: {error}")
            return
        info = digest.info(self._expected.url, 0)
        self.num_bytes = info.num_bytes
        self._compare_bytes(info)
        if found is not None:
            self.num_samples, self.num_links = found.num_samples, found.links.number
            if self.num_samples != self._expected.num_samples:
                self._fault(f"has {self.num_samples:,} samples, the manifest has {self._expected.num_samples:,}")
            self.faults += faults_beside(self._expected, found, self._listed, self._options, self._retry)

    def _compare_bytes(self, info: ShardInfo) -> None:
        expected = self._expected
        if info.num_bytes != expected.num_bytes:
            self._fault(f"has {info.num_bytes:,} bytes, the manifest has {expected.num_bytes:,}")
            return
        if expected.md5 and info.md5 != expected.md5.lower():
            self._fault(f"has the MD5 {info.md5}, the manifest has {expected.md5}")
        if expected.checksums is not None and info.checksums is not None:
            pairs = zip(
                info.checksums.crc32s, expected.checksums.crc32s, strict=True
            )  # of equal length, as sizes agree
            wrong = [number * expected.checksums.block_bytes for number, (new, old) in enumerate(pairs) if new != old]
            if wrong:
                named = ", ".join(f"{byte:,}" for byte in islice(wrong, _MAX_BLOCKS_NAMED))
                more = "" if len(wrong) <= _MAX_BLOCKS_NAMED else ", ..."
                self._fault(
                    f"{len(wrong):,} of {len(expected.checksums.crc32s):,} blocks of "
                    f"{expected.checksums.block_bytes:,} bytes do not match their CRC-32: those at byte {named}{more}"
                )
