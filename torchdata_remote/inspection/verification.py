"""Verify shards against their manifest and the objects beside them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..core.checksums import BLOCK_BYTES
from ..core.options import FetchOptions, RetryPolicy, StorageOptions
from ..core.progress import Progress
from ..core.urls import RemoteUrl, redact
from ..errors import RemoteDataError, ShardReadError
from ..fetch.listing.patterns import literal_url
from ..fetch.listing.shard_set import ShardSet, base_name, read_shard_set
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.error_policy import MemberErrorHandler, Skipped
from ..formats.key_index import is_dump_of, keys_url, max_dump_bytes
from ..formats.manifest import MANIFEST_NAME, ShardInfo
from ..formats.nested import is_archive_name
from ..formats.sample import is_of_macos
from ..formats.sample_index import dump_index, index_url
from ..formats.shard_members import ShardDigest, ShardMembers, read_shard_members
from ..storage import read_whole

_MAX_BLOCKS_NAMED = 5
_WRITE = "Write it: torchdata-remote manifest --overwrite FOLDER"


class Fault(NamedTuple):
    """A difference between an object and its manifest: the object's URL, without credentials, and a description."""

    url: str
    what: str


@dataclass
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
    bad_members: dict[str, int]
    num_links: int = 0


def verify_shards(
    url: str,
    *,
    on_fault: Callable[[Fault], object] = lambda fault: None,
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
        on_fault: called with each fault as soon as it was found.
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
    if base_name(url) != MANIFEST_NAME:
        url = (url if url.endswith("/") else url + "/") + MANIFEST_NAME
    shards = read_shard_set(url, options, retry)
    listed = {str(file): file for file in shards.folder}
    found = Verification(redact(str(shards.manifest_url)), len(shards.manifest), 0, 0, [], {})

    def add(faults: _Found) -> None:
        for url, what in faults:
            found.faults.append(Fault(redact(url), what))
            on_fault(found.faults[-1])

    add(_faults_of_the_folder(shards))
    bar = Progress("verify", sum(shard.num_bytes for shard in shards.manifest), "B", shown=progress)
    existing = [shard for shard in shards.shards if not listed or str(shard) in listed]
    expected, skipped = {shard.url: shard for shard in shards.manifest}, Skipped()
    read = partial(read_whole, options=options, retry=retry)
    with bar, closing(stream_objects(existing, FetchSession(FetchOptions(), options))) as streams:
        for shard_url, stream in streams:
            with closing(stream):
                parts = bar.passed(parts_of(shard_url, stream))
                add(_shard_faults(expected[str(shard_url)], parts, found, skipped, listed, read))
    found.bad_members = dict(skipped.bad_members)
    return found


_Found = Iterator[tuple[str, str]]  # URL and what is wrong


def _faults_of_the_folder(shards: ShardSet) -> _Found:
    """Compare the manifest's shards with the listing."""
    named, listed = {shard.url for shard in shards.manifest}, set(map(str, shards.folder))
    for shard in shards.manifest:
        if listed and shard.url not in listed:
            yield shard.url, "the manifest names it, but it does not exist"
    for file in shards.folder:
        if is_archive_name(base_name(file)) and not is_of_macos(base_name(file)) and file not in named:
            yield file, "the manifest does not name it, so readers of the manifest leave it out"


def _shard_faults(
    expected: ShardInfo,
    parts: Any,
    total: Verification,
    skipped: Skipped,
    listed: Mapping[str, RemoteUrl],
    read: Callable[[str], bytes],
) -> _Found:
    """Compare a shard with its entry in the manifest.

    Args:
        expected: the entry.
        parts: bytes of the shard.
        total: to which its samples, bytes and links are added.
        skipped: counts bad members.
        listed: URL -> object of the folder; empty if the store has no listing.
        read: reads a small object.
    """
    url, checksums = expected.url, expected.checksums
    digest = ShardDigest(parts, BLOCK_BYTES if checksums is None else checksums.block_bytes)
    found: ShardMembers | None = None
    try:
        try:
            found = read_shard_members(url, digest, MemberErrorHandler(lambda error: None, skipped))
        except ShardReadError as error:
            yield url, str(error).removeprefix(f"{redact(url)}: ")
            for _ in digest:  # to the end, so that size and checksums are compared too
                pass
    except RemoteDataError as error:
        yield url, f"cannot be read: {error}"
        return
    info = digest.info(url, 0)
    total.num_bytes += info.num_bytes
    if info.num_bytes != expected.num_bytes:
        yield url, f"has {info.num_bytes:,} bytes, the manifest has {expected.num_bytes:,}"
    else:
        if expected.md5 and info.md5 != expected.md5.lower():
            yield url, f"has the MD5 {info.md5}, the manifest has {expected.md5}"
        if checksums is not None and info.checksums is not None:
            # Of equal length, as sizes agree
            pairs = zip(info.checksums.crc32s, checksums.crc32s, strict=True)
            wrong = [number * checksums.block_bytes for number, (new, old) in enumerate(pairs) if new != old]
            if wrong:
                named = [f"{byte:,}" for byte in wrong[:_MAX_BLOCKS_NAMED]] + ["..."] * (len(wrong) > _MAX_BLOCKS_NAMED)
                blocks = f"{len(wrong):,} of {len(checksums.crc32s):,} blocks of {checksums.block_bytes:,} bytes"
                yield url, f"{blocks} do not match their CRC-32: those at byte {', '.join(named)}"
    if found is None:
        return
    total.num_samples += found.num_samples
    total.num_links += found.links.number
    if found.num_samples != expected.num_samples:
        yield url, f"has {found.num_samples:,} samples, the manifest has {expected.num_samples:,}"
    yield from _faults_beside(expected, found, listed, read)


def _faults_beside(
    expected: ShardInfo, found: ShardMembers, listed: Mapping[str, RemoteUrl], read: Callable[[str], bytes]
) -> _Found:
    """Compare the index and the keys beside a shard with what it holds."""
    url, index = expected.url, dump_index(found.offsets)
    is_index: Callable[[bytes], bool] = index.__eq__
    has_keys: Callable[[bytes], bool] = lambda data: is_dump_of(data, found.keys)  # noqa: E731
    beside = [
        (index_url(url), "index", "offsets", len(index), expected.index_crc32, is_index),
        (keys_url(url), "file of keys", "keys", max_dump_bytes(found.keys), expected.keys_crc32, has_keys),
    ]
    for name, what, content, most, crc32, is_right in beside:
        is_needed = what == "index" or crc32 is not None  # earlier releases wrote no keys
        size = getattr(listed.get(name), "size", None)
        if found.compression is not None:
            if name in listed:
                yield name, f"is the {what} of a shard compressed by {found.compression}, which cannot have one"
        elif name not in listed if listed else not is_needed:
            if is_needed:
                yield name, f"the shard has no {what}. {_WRITE}"
        elif size is not None and (size > most or (what == "index" and size < most)):
            yield name, f"has {size:,} bytes, where the {what} of {found.num_samples:,} samples has {most:,}"
        else:
            try:
                data = read(name)
                if not is_right(data):
                    yield name, f"does not hold the {content} of the samples: it is of another shard, or damaged"
                elif crc32 not in (None, zlib.crc32(data)):
                    yield name, f"has the CRC-32 {zlib.crc32(data):08x}, the manifest has {crc32:08x}"
            except (RemoteDataError, ValueError) as error:  # such as of what is no file of keys
                yield name, f"cannot be read: {error}"
