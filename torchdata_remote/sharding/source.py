"""Sources of shards with one interface: files, archives, or a map-style dataset."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any, Protocol

from ..core.options import FetchOptions, RetryPolicy, StorageOptions
from ..core.progress import Progress
from ..fetch.listing.source_argument import url_of
from ..fetch.sample_table import Int64s, SampleTable
from ..fetch.session import FetchSession
from ..formats.error_policy import OnBadMember, raise_error
from ..formats.split_name import SplitName, splitter
from ..labels import ClassEntry, Labeller, assign_labels, merged_tables
from ..writing import UNFINISHED, ShardFolder
from .archive_index import index_archives
from .argument_checks import require_apart, require_dataset
from .plan import Labels, folders_to_drop, packed_bytes, require_sizes, require_writable
from .planned_samples import DatasetSamples, FileSamples, Naming, PlannedSamples
from .source_index import dump_index, read_index
from .source_listing import list_samples
from .stored_files import class_names
from .temporary_objects import TemporaryObjects

Table = Mapping[str, ClassEntry]
_TEXT = (str, bytes, bytearray, os.PathLike)


class ShardSource(Protocol):
    """Samples with numbers from 0."""

    digest: str  # of what is known before the source is read
    is_known: bool  # whether the digest identifies the source
    classes: dict[str, ClassEntry] | None  # the class table, once prepared

    def prepare(self, destination: ShardFolder, *, known: Table | None, resume: bool, progress: bool) -> None:
        """Index the samples and assign their labels.

        Args:
            destination: may hold temporary objects.
            known: existing class table.
            resume: whether to use temporary objects of an earlier run of the same source.
            progress: whether to show a progress bar.
        """

    def __len__(self) -> int: ...

    def plan_digest(self) -> str:
        """Return a digest of everything that decides what is written."""

    def require_writable(self, max_member_bytes: int, *, are_names_checked: bool) -> None:
        """Require that all samples can be written unchanged, if that is known before they are read.

        Args:
            max_member_bytes: limit of a member.
            are_names_checked: whether an earlier run has checked the names of the same plan.

        Raises:
            ShardWriteError: for the first one that cannot.
        """

    def sample_bytes(self) -> Int64s | None:
        """Return the bytes that each sample takes in a shard, shape ``(num_samples,)``; ``None`` if unknown."""

    def select(self, indices: Int64s, *, here: bool = False) -> PlannedSamples:
        """Return these samples in this order; ``here`` if they are read in this process."""


class FilesSource:
    """Files, or archives.

    Args:
        url: as :func:`list_samples` takes it.
        pattern: likewise.
        split_name: likewise.
        labels: maps a path to a label; ``None`` for no labels.
        options: for its store.
        on_bad_member: called for members and files that cannot be part of a sample.
    """

    is_known = True

    def __init__(
        self,
        url: str,
        *,
        pattern: str | None,
        split_name: SplitName,
        labels: Labeller | None,
        options: StorageOptions,
        on_bad_member: OnBadMember = raise_error,
    ) -> None:
        self._url, self._labeller, self._options, self._on_bad_member = url, labels, options, on_bad_member
        self._listing = list_samples(
            url,
            pattern=pattern,
            split_name=split_name,
            options=options,
            retry=RetryPolicy(),
            on_bad_member=on_bad_member,
        )
        self.digest = self._listing.digest
        # The index depends on the policy, as bad members are left out of it
        policy = "" if on_bad_member is raise_error else f"-{_digest_of(on_bad_member)}"
        self._index_name = f"{UNFINISHED}index-{self.digest[:16]}{policy}"
        self.classes: dict[str, ClassEntry] | None = None
        self._table = self._listing.files
        self._labels: Labels | None = None
        self._naming = Naming(split=splitter(split_name))
        self._how_split = "" if split_name in (None, "first") else split_name
        self._scratch_url, self._scratch_options = "", options

    def prepare(self, destination: ShardFolder, *, known: Table | None, resume: bool, progress: bool) -> None:
        self._scratch_url, self._scratch_options = destination.template.folder + UNFINISHED, destination.options
        archives = self._listing.archives
        require_apart(self._url, archives, destination)
        if archives:
            saved = read_index(destination, self._index_name, archives) if resume else None
            self._table = self._index(destination, progress) if saved is None else saved
        self._naming = folders_to_drop(self._table, self._naming, len(archives))
        if self._labeller is not None:
            self._labels, self.classes = assign_labels(self._labeller, self._table.first_names(), known=known)

    def _index(self, destination: ShardFolder, progress: bool) -> SampleTable:
        scratch = TemporaryObjects(f"{self._scratch_url}unpacked-{self.digest[:16]}-", destination.options)
        total = sum(url.size or 0 for url in self._listing.archives)
        try:
            with Progress("index", total, "B", shown=progress) as shown:
                session = FetchSession(FetchOptions(), self._options)
                table = index_archives(
                    self._listing.archives, session, scratch, on_bytes=shown.advance, on_bad_member=self._on_bad_member
                )
        except BaseException:
            scratch.abort()
            raise
        # Without etags a changed archive of the same size would not be noticed
        if scratch.used or all(url.etag or url.md5 for url in self._listing.archives):
            destination.publish(self._index_name, dump_index(table, self._listing.archives, self._scratch_url))
        return table

    def __len__(self) -> int:
        return len(self._table)

    def plan_digest(self) -> str:
        how = self._how_split if isinstance(self._how_split, str) else _digest_of(self._how_split)
        digest = hashlib.sha256(f"{self.digest} {self._naming.num_folders}{how}".encode())
        for column in (*self._table.names.columns().values(), self._table.sizes(), self._table.firsts()):
            digest.update(column.tobytes())
        if self._labels is not None:
            digest.update(self._labels.tobytes())
        return digest.hexdigest()

    def require_writable(self, max_member_bytes: int, *, are_names_checked: bool) -> None:
        if are_names_checked:
            require_sizes(self._table, max_member_bytes)
        else:
            require_writable(self._table, self._naming, self._labels is not None, max_member_bytes)

    def sample_bytes(self) -> Int64s:
        return packed_bytes(self._table, self._labels, self._naming)

    def select(self, indices: Int64s, *, here: bool = False) -> FileSamples:
        labels = None if self._labels is None else self._labels[indices]
        scratch = self._scratch_url, self._scratch_options
        return FileSamples(self._table.select(indices), labels, self._naming, self._options, scratch)


def _digest_of(function: Any) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return hashlib.sha256(f"{kind.__module__}.{kind.__qualname__}".encode()).hexdigest()[:8]


class DatasetSource:
    """A map-style dataset.

    Args:
        dataset: with ``len`` and ``[i]``.
        travels: whether it is pickled with each shard.
    """

    is_known = False

    def __init__(self, dataset: Any, *, travels: bool) -> None:
        self._dataset, self._travels = dataset, travels
        kind = type(dataset)
        self.digest = hashlib.sha256(f"{kind.__module__}.{kind.__qualname__} {len(dataset)}".encode()).hexdigest()
        self.classes: dict[str, ClassEntry] | None = None

    def prepare(self, destination: ShardFolder, *, known: Table | None, resume: bool, progress: bool) -> None:
        names = getattr(self._dataset, "classes", None) or class_names(self._dataset)
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            own: Table = {name: {"id": number, "name": name} for number, name in enumerate(names)}
            self.classes = merged_tables(known, own)

    def __len__(self) -> int:
        return len(self._dataset)

    def plan_digest(self) -> str:
        return self.digest

    def require_writable(self, max_member_bytes: int, *, are_names_checked: bool) -> None:
        pass

    def sample_bytes(self) -> None:
        return None

    def select(self, indices: Int64s, *, here: bool = False) -> DatasetSamples:
        return DatasetSamples(self._dataset if here or self._travels else None, indices)


def _are_urls(source: Any) -> bool:
    """Whether it is a list of URLs, which looks like a map-style dataset."""
    return isinstance(source, list | tuple) and len(source) > 0 and isinstance(source[0], str | os.PathLike)


def open_source(
    source: Any,
    *,
    pattern: str | None,
    split_name: SplitName = None,
    labels: Labeller | None,
    options: StorageOptions,
    travels: bool,
    on_bad_member: OnBadMember = raise_error,
) -> ShardSource:
    """Open the ``source`` argument of ``shard_dataset``.

    Raises:
        UrlError: for several URLs, or ``bytes``.
        TypeError: if it is neither a URL nor a dataset, or options do not apply to it.
    """
    if isinstance(source, _TEXT) or _are_urls(source):
        url = url_of(source, of="shard_dataset")
        return FilesSource(
            url, pattern=pattern, split_name=split_name, labels=labels, options=options, on_bad_member=on_bad_member
        )
    has_options = any(one is not None for one in (labels, pattern, split_name)) or on_bad_member is not raise_error
    require_dataset(source, has_options=has_options)
    return DatasetSource(source, travels=travels)
