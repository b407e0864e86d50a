"""Index archives in one pass: find the byte range of every member."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from ..core.urls import RemoteUrl, redact
from ..errors import ShardReadError
from ..fetch.sample_table import SampleTable
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.compression import CompressionLimits, decompressed
from ..formats.error_policy import LinkCounter, MemberErrorHandler, OnBadMember, Skipped, raise_error
from ..formats.grouping import samples_of
from ..formats.nested import NestedPrefixes, bad_inner, is_archive_name, without_ending
from ..formats.sample import KEY, URL, Sample, ignored_kind, naming_fault
from ..formats.tar import TarOptions, first_name, read_archives, read_member_batches, read_member_offsets
from .archive_links import ArchiveLinks
from .temporary_objects import TemporaryObjects

_Parts = Iterable[bytes | memoryview]


def index_archives(
    archives: list[RemoteUrl],
    session: FetchSession,
    scratch: TemporaryObjects,
    *,
    on_bytes: Callable[[int], object],
    on_bad_member: OnBadMember = raise_error,
) -> SampleTable:
    """Read archives once and index all members. Members of compressed archives are copied into ``scratch``.

    Archives of archives are recognised by their first member. Names of members are paths below the source: with the
    inner archive's name as a folder and, if there are several archives, the outer archive's name before that.

    Args:
        archives: with sizes.
        session: limits and threads.
        scratch: receives the members of compressed archives, which cannot be read by ranges.
        on_bytes: called with the number of bytes read since the last call.
        on_bad_member: called for members that cannot be part of a sample, or an archive in an archive of archives.

    Raises:
        ShardReadError: for an archive that is damaged, or does not consist of samples.
    """
    table, skipped = SampleTable(), Skipped()
    for url, stream in stream_objects(archives, session):
        assert isinstance(url, RemoteUrl)
        with closing(stream):
            prefix = without_ending(url.rpartition("/")[2]) + "/" if len(archives) > 1 else ""
            indexer = _Indexer(table, scratch, on_bytes, on_bad_member, skipped)
            indexer.read(url, parts_of(url, stream), prefix)
            if url.num_samples not in (None, indexer.num_samples):
                shown = redact(url)
                raise ShardReadError(
                    f"{shown} has {indexer.num_samples:,} samples, and its manifest says {url.num_samples:,}.",
                    url=shown,
                )
    scratch.finish()
    table.finish()
    return table


def _names_a_member(name: str) -> bool:
    return naming_fault(name.removeprefix("./")) is None


class _Indexer:
    def __init__(
        self,
        table: SampleTable,
        scratch: TemporaryObjects,
        on_bytes: Callable[[int], object],
        on_bad_member: OnBadMember,
        skipped: Skipped,
    ) -> None:
        self.num_samples = 0  # without those that consist of links, which readers and manifests leave out
        self._table, self._scratch, self._on_bytes, self._skipped = table, scratch, on_bytes, skipped
        self._on_bad_member = MemberErrorHandler(on_bad_member, skipped)
        self._unpacked: RemoteUrl | None = None  # temporary object that was added to the table last

    def read(self, url: RemoteUrl, parts: _Parts, prefix: str) -> None:
        """Index one archive."""
        shown = redact(url)
        compression, bare = decompressed(self._counted(parts), url=shown, limits=CompressionLimits())
        with closing(bare):
            name, whole = first_name(bare, url=shown, counts=_names_a_member)
            container = None if compression is not None else url
            if name is None or not is_archive_name(name):
                self._read_samples(whole, shown, prefix, container, 0, None)
                return
            prefixes, links = NestedPrefixes(shown), LinkCounter(shown)
            for inner, pieces in read_archives(whole, url=shown, options=TarOptions(on_link=links)):
                if ignored_kind(inner.name) is not None:
                    continue
                if not is_archive_name(inner.name):
                    self._on_bad_member(bad_inner(shown, inner.name, "it is not an archive, and other members are"))
                    continue
                inner_shown = f"{shown}, in {inner.name!r:.200}"
                inner_prefix = prefixes.of(inner.name, self._on_bad_member)
                if inner_prefix is None:
                    continue
                compression, unpacked = decompressed(pieces, url=inner_shown, limits=CompressionLimits())
                with closing(unpacked):
                    self._read_samples(
                        unpacked,
                        inner_shown,
                        prefix + inner_prefix,
                        container if compression is None else None,
                        inner.start,
                        inner.num_bytes,
                    )
            links.warn()

    def _counted(self, parts: _Parts) -> Iterator[bytes | memoryview]:
        for part in parts:
            self._on_bytes(len(part))
            yield part

    def _read_samples(
        self, parts: _Parts, shown: str, prefix: str, container: RemoteUrl | None, offset: int, num_bytes: int | None
    ) -> None:
        """Index the samples of one archive at ``offset`` of ``container``; ``None`` if it has to be unpacked."""
        links, first = ArchiveLinks(shown), len(self._table.names)
        num_bytes = num_bytes if container is not None else None
        options = TarOptions(copy=False, num_bytes=num_bytes, on_link=links.add)
        if container is not None:
            options = replace(options, max_member_bytes=sys.maxsize)  # they are not held in memory
            self._table.add_object(container)
            runs: Iterator[Any] = (
                (found.names, zip(found.names, found.starts, found.sizes, strict=True))
                for found in read_member_offsets(parts, url=shown, options=options)
            )
        else:
            self._unpacked = None
            runs = (
                (names, zip(names, data, strict=True))
                for names, data in read_member_batches(parts, url=shown, options=options)
            )
        for sample in samples_of(
            links.among(runs),
            url=shown,
            on_bad_member=self._on_bad_member,
            on_empty=self._skipped.count_empty,
        ):
            self._table.start_sample()
            self._add(sample, prefix, offset, links)
            self.num_samples += any(len(found) > 1 for name, found in sample.items() if name not in (KEY, URL))
        links.follow(self._table, first, prefix)

    def _add(self, sample: Sample, prefix: str, offset: int, links: ArchiveLinks) -> None:
        for extension, found in sample.items():
            if extension in (KEY, URL):
                continue
            name = prefix + found[0].removeprefix("./")
            if len(found) == 1:
                links.members[len(self._table.names)] = found[0]
                self._table.add_member(name, 0, 0)
                continue
            if len(found) == 3:
                self._table.add_member(name, offset + found[1], found[2])
                continue
            stored = self._scratch.put(found[1])
            if stored.url is not self._unpacked:
                self._unpacked = stored.url
                self._table.add_object(stored.url)
            self._table.add_member(name, stored.start, len(found[1]))
