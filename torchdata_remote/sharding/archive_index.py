"""One pass over archives: where the members of their samples lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from ..core.urls import RemoteUrl, redact
from ..errors import ShardReadError
from ..fetch.sample_table import SampleTable
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.compression.decompress import CompressionLimits, decompressed
from ..formats.error_policy import MemberErrorHandler, OnBadMember, Skipped, raise_error
from ..formats.grouping import samples_of
from ..formats.nested import NestedPrefixes, bad_inner, is_archive_name, without_ending
from ..formats.sample import KEY, URL, Sample, is_meta, naming_fault
from ..formats.tar import TarOptions, first_name, read_archives, read_member_batches, read_member_offsets
from .temporary_objects import TemporaryObjects

_Parts = Iterable[bytes | memoryview]


def index_archives(
    archives: list[RemoteUrl],
    engine: FetchSession,
    scratch: TemporaryObjects,
    *,
    on_bytes: Callable[[int], object],
    on_bad_member: OnBadMember = raise_error,
) -> SampleTable:
    """Read archives once, for the places of all members. What is compressed is unpacked into ``scratch`` meanwhile.

    Archives of archives are recognised by their first member. Names of members are paths below the source: with the
    inner archive's name as a folder, and where there are several archives with theirs before that.

    Args:
        archives: with sizes.
        engine: limits.
        scratch: takes the members of compressed archives, which cannot be read by ranges.
        on_bytes: called now and then with the number of bytes that were read.
        on_bad_member: asked about members that cannot be part of a sample, or an archive in an archive of archives.

    Raises:
        ShardReadError: for an archive that is damaged, or not made of samples.
    """
    table = SampleTable()
    for url, stream in stream_objects(archives, engine):
        assert isinstance(url, RemoteUrl)
        with closing(stream):
            prefix = without_ending(url.rpartition("/")[2]) + "/" if len(archives) > 1 else ""
            before = len(table)
            indexing = _Indexing(table, scratch, on_bytes, MemberErrorHandler(on_bad_member, Skipped()))
            indexing.read(url, parts_of(url, stream), prefix)
            if url.num_samples not in (None, len(table) - before):
                shown = redact(url)
                raise ShardReadError(
                    f"{shown} has {len(table) - before:,} samples, and its manifest says {url.num_samples:,}.",
                    url=shown,
                )
    scratch.finish()
    return table


def _names_a_member(name: str) -> bool:
    return naming_fault(name.removeprefix("./")) is None


class _Indexing:
    def __init__(
        self,
        table: SampleTable,
        scratch: TemporaryObjects,
        on_bytes: Callable[[int], object],
        on_bad_member: OnBadMember,
    ) -> None:
        self._table, self._scratch, self._on_bytes, self._on_bad_member = table, scratch, on_bytes, on_bad_member
        self._unpacked: RemoteUrl | None = None  # the object of the scratch that the table was told of last

    def read(self, url: RemoteUrl, parts: _Parts, prefix: str) -> None:
        """One archive."""
        shown = redact(url)
        compression, bare = decompressed(self._counted(parts), url=shown, limits=CompressionLimits())
        with closing(bare):
            name, whole = first_name(bare, url=shown, counts=_names_a_member)
            of = None if compression is not None else url
            if name is None or not is_archive_name(name):
                self._read_samples(whole, shown, prefix, of, 0, None)
                return
            prefixes = NestedPrefixes(shown)
            for inner, pieces in read_archives(whole, url=shown, options=TarOptions()):
                if is_meta(inner.name):
                    continue
                if not is_archive_name(inner.name):
                    self._on_bad_member(bad_inner(shown, inner.name, "it is none, beside others that are"))
                    continue
                inside = f"{shown}, in {inner.name!r:.200}"
                of_inner = prefixes.of(inner.name, self._on_bad_member)
                if of_inner is None:
                    continue
                below = prefix + of_inner
                compression, unpacked = decompressed(pieces, url=inside, limits=CompressionLimits())
                with closing(unpacked):
                    within = of if compression is None else None
                    self._read_samples(unpacked, inside, below, within, inner.start, inner.num_bytes)

    def _counted(self, parts: _Parts) -> Iterator[bytes | memoryview]:
        for part in parts:
            self._on_bytes(len(part))
            yield part

    def _read_samples(
        self, parts: _Parts, shown: str, prefix: str, of: RemoteUrl | None, offset: int, num_bytes: int | None
    ) -> None:
        """The samples of one archive, which lies in ``of`` from ``offset`` on; ``None`` if it has to be unpacked."""
        options = TarOptions(copy=False, num_bytes=num_bytes if of is not None else None)
        if of is not None:
            self._table.add_object(of)
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
        for sample in samples_of(runs, url=shown, on_bad_member=self._on_bad_member):
            self._table.begin_sample()
            self._add(sample, prefix, offset)

    def _add(self, sample: Sample, prefix: str, offset: int) -> None:
        for extension, found in sample.items():
            if extension in (KEY, URL):
                continue
            name = prefix + found[0].removeprefix("./")
            if len(found) == 3:
                self._table.add_member(name, offset + found[1], found[2])
                continue
            place = self._scratch.put(found[1])
            if place.url is not self._unpacked:
                self._unpacked = place.url
                self._table.add_object(place.url)
            self._table.add_member(name, place.start, len(found[1]))
