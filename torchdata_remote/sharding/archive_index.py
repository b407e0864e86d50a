"""Index archives in one pass: find the byte range of every member. A resumed job loads the index instead."""

from __future__ import annotations

import io
import logging
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from posixpath import dirname, join, normpath
from typing import Any

import numpy as np

from ..core.options import StorageOptions
from ..core.urls import RemoteUrl, redact
from ..errors import ShardReadError
from ..fetch.sample_table import SampleTable
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.compression import CompressionLimits, decompressed
from ..formats.error_policy import LinkCounter, MemberErrorHandler, OnBadMember, Skipped
from ..formats.grouping import samples_of
from ..formats.nested import NestedPrefixes, bad_inner, is_archive_name, without_ending
from ..formats.sample import KEY, URL, ignored_kind, naming_fault
from ..formats.tar import TarOptions, first_name, read_archives, read_member_offsets
from ..storage import ObjectWriter, open_store

_MAX_FOLLOWED = 40  # links, as Linux follows for one path, which ends cycles
_Parts = Iterable[bytes | memoryview]
_log = logging.getLogger("torchdata_remote")


class Scratch:
    """Objects with what compressed archives hold, which can be read by ranges: by number, under a prefix."""

    def __init__(self, prefix: str, options: StorageOptions) -> None:
        self._prefix, self._options = prefix, options
        self._writers: dict[int, ObjectWriter] = {}
        self._num_bytes: dict[int, int] = {}

    @property
    def is_used(self) -> bool:
        """Whether anything was stored."""
        return bool(self._num_bytes)

    def url(self, number: int) -> RemoteUrl:
        """Return the URL of an object."""
        return RemoteUrl(f"{self._prefix}{number:06d}")

    def keep(self, number: int, parts: _Parts) -> tuple[int, Iterator[bytes | memoryview]]:
        """Append bytes to an object while they are read; returns where they begin there."""
        if number not in self._writers:
            store, path = open_store(self.url(number), self._options)
            self._writers[number], self._num_bytes[number] = store.create(path, overwrite=True), 0
        return self._num_bytes[number], self._kept(number, parts)

    def _kept(self, number: int, parts: _Parts) -> Iterator[bytes | memoryview]:
        for part in parts:
            self._writers[number].write(bytes(part))
            self._num_bytes[number] += len(part)
            yield part

    def publish(self) -> None:
        """Let the open objects appear."""
        for number in list(self._writers):
            self._writers[number].commit()
            del self._writers[number]

    def abort(self) -> None:
        """Drop the open objects."""
        while self._writers:
            self._writers.popitem()[1].abort()


def index_archives(
    archives: list[RemoteUrl],
    session: FetchSession,
    scratch: Scratch,
    *,
    counted: Callable[[_Parts], _Parts],
    on_bad_member: OnBadMember,
) -> SampleTable:
    """Read archives once and index all members. What compressed archives hold is copied into ``scratch``.

    Archives of archives are recognised by their first member. Names of members are paths below the source: with the
    inner archive's name as a folder and, if there are several archives, the outer archive's name before that.

    Args:
        archives: with sizes.
        session: limits and threads.
        scratch: gets two objects for each archive: of itself, and of those in it.
        counted: passes the bytes of archives on, and counts them.
        on_bad_member: called for members that cannot be part of a sample, or an archive in an archive of archives.

    Raises:
        ShardReadError: for an archive that is damaged, or does not consist of samples.
    """
    indexer = _Indexer(scratch, on_bad_member)
    try:
        for number, (url, stream) in enumerate(stream_objects(archives, session)):
            assert isinstance(url, RemoteUrl)
            with closing(stream):
                prefix = without_ending(url.rpartition("/")[2]) + "/" if len(archives) > 1 else ""
                num_samples = indexer.read(number, url, counted(parts_of(url, stream)), prefix)
            scratch.publish()
            if url.num_samples not in (None, num_samples):
                shown = redact(url)
                raise ShardReadError(
                    f"{shown} has {num_samples:,} samples, and its manifest says {url.num_samples:,}.", url=shown
                )
    except BaseException:
        scratch.abort()
        raise
    indexer.table.finish()
    return indexer.table


def _names_a_member(name: str) -> bool:
    return naming_fault(name.removeprefix("./")) is None


class _Indexer:
    def __init__(self, scratch: Scratch, on_bad_member: OnBadMember) -> None:
        self.table, self._scratch, self._skipped = SampleTable(), scratch, Skipped()
        self._on_bad_member = MemberErrorHandler(on_bad_member, self._skipped)

    def read(self, number: int, url: RemoteUrl, parts: _Parts, prefix: str) -> int:
        """Index one archive; returns its samples, but those that consist of links, which readers leave out."""
        shown = redact(url)
        compression, bare = decompressed(parts, url=shown, limits=CompressionLimits())
        with closing(bare):
            container: RemoteUrl = url
            copied: _Parts = bare
            if compression is not None:
                container = self._scratch.url(2 * number)
                _, copied = self._scratch.keep(2 * number, bare)
            name, whole = first_name(copied, url=shown, counts=_names_a_member)
            if name is None or not is_archive_name(name):
                return self._read_samples(whole, shown, prefix, container, 0, None)
            num_samples, prefixes, links = 0, NestedPrefixes(shown), LinkCounter(shown)
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
                place: tuple[RemoteUrl, int, int | None] = container, inner.start, inner.num_bytes
                compression, unpacked = decompressed(pieces, url=inner_shown, limits=CompressionLimits())
                with closing(unpacked):
                    copied = unpacked
                    if compression is not None:
                        start, copied = self._scratch.keep(2 * number + 1, unpacked)
                        place = self._scratch.url(2 * number + 1), start, None
                    num_samples += self._read_samples(copied, inner_shown, prefix + inner_prefix, *place)
            links.warn()
            return num_samples

    def _read_samples(
        self, parts: _Parts, shown: str, prefix: str, container: RemoteUrl, offset: int, num_bytes: int | None
    ) -> int:
        """Index the samples of one archive at ``offset`` of ``container``; returns how many there are."""
        table, num_samples = self.table, 0
        links, first = _ArchiveLinks(shown), len(table.names)
        # Members are not held in memory
        options = TarOptions(copy=False, num_bytes=num_bytes, on_link=links.add, max_member_bytes=sys.maxsize)
        table.add_object(container)
        runs = (
            (found.names, zip(found.names, found.starts, found.sizes, strict=True))
            for found in read_member_offsets(parts, url=shown, options=options)
        )
        for sample in samples_of(
            links.among(runs),
            url=shown,
            on_bad_member=self._on_bad_member,
            on_empty=self._skipped.count_empty,
        ):
            table.start_sample()
            members = [found for extension, found in sample.items() if extension not in (KEY, URL)]
            for name, *place in members:
                if not place:
                    links.members[len(table.names)] = name
                start, size = place or (0, 0)
                table.add_member(prefix + name.removeprefix("./"), offset + start, size)
            num_samples += any(len(found) > 1 for found in members)
        links.follow(table, first, prefix)
        return num_samples


class _ArchiveLinks:
    """The links of one archive, which are followed once all of its members are known.

    Args:
        url: of the archive, as messages may show it.
    """

    def __init__(self, url: str) -> None:
        self.members: dict[int, str] = {}  # number of a member in the table -> name of the link
        self._lost = LinkCounter(url)
        self._paths: dict[str, str] = {}  # of links -> to which they lead
        self._new: list[str] = []  # names of those that were read since the last batch of members

    def add(self, name: str, path: str, is_symbolic: bool) -> None:
        """Add a link; as ``TarOptions`` calls ``on_link``."""
        if _names_a_member(name):
            self._new.append(name)
        else:  # such as a link to a folder
            self._lost(name)
        # After a folder, which may be a link, ".." is not known to lead back; without its path a link leads nowhere
        if ".." not in path.lstrip("./").split("/"):
            self._paths[normpath(name)] = normpath(join(dirname(name) if is_symbolic else "", path))

    def among(self, batches: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield batches of members, and links in their places, as a name alone."""
        for batch in chain(batches, [((), ())]):
            names, self._new = self._new, []
            yield names, zip(names)
            yield batch

    def follow(self, table: SampleTable, first: int, prefix: str) -> None:
        """Let the members of links be stored where those are to which they lead; warn of the others.

        Args:
            table: its members from ``first`` on are those of the archive.
            first: number of a member.
            prefix: of the names in the table.
        """
        ends = {number: prefix + self._end(normpath(name)) for number, name in self.members.items()}
        if ends:
            wanted = set(ends.values())
            names = enumerate(map(table.names.__getitem__, range(first, len(table.names))), first)
            found = {name: number for number, name in names if name in wanted and number not in ends}
            table.moved |= {number: found.get(end) for number, end in ends.items()}
            for number in ends:
                if ends[number] not in found:
                    self._lost(self.members[number])
        self._lost.warn()

    def _end(self, name: str) -> str:
        """Return the path to which a link leads through others; empty for a cycle."""
        for _ in range(_MAX_FOLLOWED):
            if name not in self._paths:
                return name
            name = self._paths[name]
        return ""


def dump_index(table: SampleTable, archives: Sequence[RemoteUrl], scratch: Scratch) -> bytes:
    """Encode a table: about 10 bytes for each sample.

    It holds no URL, as one may contain a signature: an archive is its place in the listing.

    Args:
        table: of the samples of ``archives``.
        archives: as listed.
        scratch: of the compressed ones.
    """
    places = {str(url): number for number, url in enumerate(archives)}
    places |= {str(scratch.url(number)): -1 - number for number in range(2 * len(archives))}
    columns = {**table.columns(), "urls": np.array([places[url] for url in table.urls], np.int64)}
    buffer = io.BytesIO()
    # Differences of integers are small, so that most of their bytes are zeros
    np.savez(buffer, **{key: np.diff(one, prepend=0) if one.dtype == np.int64 else one for key, one in columns.items()})
    return zlib.compress(buffer.getvalue(), 1)


def load_index(data: bytes, archives: Sequence[RemoteUrl], scratch: Scratch) -> SampleTable | None:
    """Decode the table of these archives, as :func:`dump_index` wrote it; ``None`` with a message if it is damaged."""
    try:
        with np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False) as found:
            columns = {key: np.cumsum(one) if one.dtype == np.int64 else one for key, one in found.items()}
        urls = [archives[place] if place >= 0 else scratch.url(-1 - place) for place in columns["urls"].tolist()]
        return SampleTable.from_columns(columns, urls)
    except Exception as error:  # noqa: BLE001  # of NumPy, zipfile and zlib, which document none
        _log.warning("a saved index is damaged, so the source is indexed again: %s: %s", type(error).__name__, error)
        return None
