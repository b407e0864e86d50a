"""Whether shards are what their manifest and their indexes say."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from ..core.checksums import BLOCK_BYTES
from ..core.options import FetchOptions, RetryPolicy, StorageOptions
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
from ..formats.sample_index import dump_index, index_url
from ..formats.shard_digest import ShardDigest, sample_offsets
from ..storage.registry import read_whole

_MOST_BLOCKS_NAMED = 5


class Fault(NamedTuple):
    """Something that is wrong: with which object, without credentials, and what."""

    url: str
    what: str


@dataclass(frozen=True)
class Verification:
    """What came of looking at all shards of a folder.

    Args:
        manifest_url: of the manifest, without credentials.
        num_shards: that the manifest names.
        num_samples: that were found in those that could be read.
        num_bytes: that were read.
        faults: what is wrong; none if all is well.
        bad_members: why members cannot be part of a sample -> how many. They are no faults where the manifest does not
            count them; readers raise for them, unless ``on_bad_member`` says otherwise.
    """

    manifest_url: str
    num_shards: int
    num_samples: int
    num_bytes: int
    faults: list[Fault]
    bad_members: dict[str, int] = field(default_factory=dict)


def verify_shards(
    url: str,
    *,
    on_checked: Callable[[str, list[Fault]], object] = lambda url, faults: None,
    storage_options: Mapping[str, Any] | None = None,
) -> Verification:
    """Read all shards of a folder, and compare them with their manifest and their indexes.

    Compared are sizes, MD5, the CRC-32 of each block and of the index, the number of samples, and where samples begin.
    Every header is read as strictly as when training. Shards that the manifest does not name, and those that it names
    and that are not there, are faults too. A fault does not end it.

    Args:
        url: the folder, or its manifest. A store without a listing (http) needs the manifest; what lies beside the
            shards is not known there.
        on_checked: called with the manifest's URL and what is wrong with the folder, then with the URL of each shard
            when it was read and what is wrong with it.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        ObjectNotFoundError: if there is no manifest.
        ManifestError: if it is not one, or names a shard twice.
        StorageError: if the folder cannot be listed. What goes wrong with a shard is one of the faults.

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
    there = {str(one): one for one in shards.folder}
    said = {shard.url: shard for shard in shards.manifest}
    present = [one for one in shards.shards if not there or str(one) in there]
    num_samples = num_bytes = 0
    skipped = Skipped()
    with closing(stream_objects(present, FetchSession(FetchOptions(), options))) as streams:
        for shard_url, stream in streams:
            check = _Check(said[str(shard_url)], there, skipped, options, retry)
            with closing(stream):
                check.read(shard_url, stream)
            num_samples += check.num_samples
            num_bytes += check.num_bytes
            faults += check.faults
            on_checked(redact(shard_url), check.faults)
    return Verification(shown, len(shards.manifest), num_samples, num_bytes, faults, dict(skipped.bad_members))


def _faults_of_the_folder(shards: ShardSet) -> Iterator[Fault]:
    """What a manifest and a listing say without reading a shard."""
    named = {shard.url for shard in shards.manifest}
    there = set(map(str, shards.folder))
    for shard in shards.manifest:
        if there and shard.url not in there:
            yield Fault(redact(shard.url), "the manifest names it, and it is not there")
    for one in shards.folder:
        if is_archive_name(base_name(one)) and one not in named:
            yield Fault(redact(one), "the manifest does not name it, so that readers of the manifest leave it out")


class _Check:
    """Looks at one shard.

    Args:
        said: what the manifest says of it.
        there: what lies in the folder; nothing if that is not known.
        skipped: where bad members are counted.
        options: for the store.
        retry: what is done about faults that may pass.
    """

    def __init__(
        self,
        said: ShardInfo,
        there: Mapping[str, RemoteUrl],
        skipped: Skipped,
        options: StorageOptions,
        retry: RetryPolicy,
    ) -> None:
        self._said, self._there, self._options, self._retry = said, there, options, retry
        self._on_bad_member = MemberErrorHandler(lambda error: None, skipped)
        self.faults: list[Fault] = []
        self.num_samples = self.num_bytes = 0

    def _fault(self, what: str, url: str | None = None) -> None:
        self.faults.append(Fault(redact(url or self._said.url), what))

    def read(self, url: str, stream: ObjectStream) -> None:
        """Read the shard, and compare."""
        checksums = self._said.checksums
        summed = ShardDigest(parts_of(url, stream), BLOCK_BYTES if checksums is None else checksums.block_bytes)
        found: tuple[str | None, list[int]] | None = None
        try:
            try:
                found = sample_offsets(self._said.url, summed, self._on_bad_member)
            except ShardReadError as error:
                self._fault(str(error).removeprefix(f"{redact(self._said.url)}: "))
                for _ in summed:  # to its end, to tell what else is not right
                    pass
        except RemoteDataError as error:
            self._fault(f"cannot be read: {error}")
            return
        info = summed.info(self._said.url, 0)
        self.num_bytes = info.num_bytes
        self._compare_bytes(info)
        if found is not None:
            compression, offsets = found
            self.num_samples = len(offsets) - 1
            if self.num_samples != self._said.num_samples:
                self._fault(f"has {self.num_samples:,} samples, and the manifest says {self._said.num_samples:,}")
            self._compare_index(compression, offsets)

    def _compare_bytes(self, info: ShardInfo) -> None:
        said = self._said
        if info.num_bytes != said.num_bytes:
            self._fault(f"has {info.num_bytes:,} bytes, and the manifest says {said.num_bytes:,}")
            return
        if said.md5 and info.md5 != said.md5.lower():
            self._fault(f"has the MD5 {info.md5}, and the manifest says {said.md5}")
        if said.checksums is not None and info.checksums is not None:
            pairs = zip(info.checksums.crc32s, said.checksums.crc32s, strict=True)  # as many, being as long
            wrong = [number * said.checksums.block_bytes for number, (is_, was) in enumerate(pairs) if is_ != was]
            if wrong:
                named = ", ".join(f"{byte:,}" for byte in islice(wrong, _MOST_BLOCKS_NAMED))
                more = "" if len(wrong) <= _MOST_BLOCKS_NAMED else ", ..."
                self._fault(
                    f"{len(wrong):,} of {len(said.checksums.crc32s):,} blocks of {said.checksums.block_bytes:,} bytes "
                    f"do not fit their CRC-32: those at byte {named}{more}"
                )

    def _compare_index(self, compression: str | None, offsets: list[int]) -> None:
        url, right = index_url(self._said.url), dump_index(offsets)
        if compression is not None:
            if url in self._there:
                self._fault(f"is the index of a shard that is compressed by {compression}, which can have none", url)
            return
        if self._there and url not in self._there:
            self._fault("the shard has no index. Write it: torchdata-remote manifest --overwrite FOLDER", url)
            return
        listed = self._there[url].size if self._there else None
        try:
            index = None if listed not in (None, len(right)) else read_whole(url, self._options, self._retry)
        except RemoteDataError as error:
            self._fault(f"cannot be read: {error}", url)
            return
        if index is None:
            self._fault(f"has {listed:,} bytes, where an index of {len(offsets) - 1:,} samples has {len(right):,}", url)
        elif index != right:
            self._fault("does not tell where the samples begin: it is not the index of this shard", url)
        elif self._said.index_crc32 not in (None, zlib.crc32(right)):
            self._fault(
                f"has the CRC-32 {zlib.crc32(right):08x}, and the manifest says {self._said.index_crc32:08x}", url
            )
