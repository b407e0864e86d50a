"""Sources of shards with one interface: files and archives, or a map-style dataset."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core import arguments as check
from ..core.options import FetchOptions, RetryPolicy, StorageOptions
from ..core.progress import Progress
from ..core.urls import join_url, redact, split_url
from ..errors import ShardReadError, ShardWriteError
from ..fetch.listing.patterns import literal_url
from ..fetch.listing.source_argument import url_of
from ..fetch.sample_table import Int64s, SampleTable
from ..fetch.session import FetchSession
from ..formats.error_policy import OnBadMember, raise_error
from ..formats.labels import ClassEntry, Labeller, assign_labels, merged_tables
from ..formats.manifest import UNFINISHED
from ..formats.sample import writing_fault
from ..formats.split_name import SplitName, splitter
from ..formats.tar import BLOCK, is_plain, pack_header, padding
from ..storage import read_whole
from ..writing import ShardFolder
from .archive_index import Scratch, dump_index, index_archives, load_index
from .source_listing import list_samples
from .task import LABEL, DatasetSamples, FileSamples, Naming

Table = Mapping[str, ClassEntry]


class FilesSource:
    """Files, or archives, whose samples have numbers from 0.

    Args:
        url: as :func:`list_samples` takes it.
        pattern: likewise.
        split_name: likewise.
        labels: maps a path to a label; ``None`` for no labels.
        options: for its store.
        on_bad_member: called for members and files that cannot be part of a sample.
    """

    is_known = True  # whether the digest of what is known before it is read identifies it

    def __init__(
        self,
        url: str,
        *,
        pattern: str | None,
        split_name: SplitName,
        labels: Labeller | None,
        options: StorageOptions,
        on_bad_member: OnBadMember,
    ) -> None:
        self._url, self._labeller, self._options, self._on_bad_member = url, labels, options, on_bad_member
        self._archives, self._table, self.digest = list_samples(
            url,
            pattern=pattern,
            split_name=split_name,
            options=options,
            retry=RetryPolicy(),
            on_bad_member=on_bad_member,
        )
        self._naming = Naming(split=splitter(split_name))
        how = "" if split_name in (None, "first") else split_name
        self._how_split = how if isinstance(how, str) else _digest_of(how)
        self._labels: np.ndarray[Any, np.dtype[np.int32]] | None = None
        self.classes: dict[str, ClassEntry] | None = None  # once prepared
        self._scratch = "", options

    def prepare(self, folder: ShardFolder, *, known: Table | None, resume: bool, progress: bool) -> None:
        """Index the samples and assign their labels.

        Args:
            folder: of the shards, for temporary objects.
            known: existing class table.
            resume: whether to use the index that an earlier run of the same source has saved.
            progress: whether to show a progress bar.
        """
        self._scratch = folder.template.folder + UNFINISHED, folder.options
        _require_apart(self._url, self._archives, folder)
        if self._archives:
            self._table = self._indexed(folder, resume=resume, progress=progress)
        self._naming = self._without_folders()
        if self._labeller is not None:
            self._labels, self.classes = assign_labels(self._labeller, self._table.first_names(), known=known)

    def _indexed(self, folder: ShardFolder, *, resume: bool, progress: bool) -> SampleTable:
        archives, digest = self._archives, self.digest[:16]
        scratch = Scratch(f"{self._scratch[0]}unpacked-{digest}-", folder.options)
        # It depends on the policy, as bad members are left out of it
        policy = "" if self._on_bad_member is raise_error else f"-{_digest_of(self._on_bad_member)}"
        name = f"{UNFINISHED}index-5-{digest}{policy}"
        data = folder.read(name) if resume else None
        table = None if data is None else load_index(data, archives, scratch)
        if table is not None:
            return table
        with Progress("index", sum(url.size or 0 for url in archives), "B", shown=progress) as shown:
            session = FetchSession(FetchOptions(), self._options)
            table = index_archives(archives, session, scratch, counted=shown.passed, on_bad_member=self._on_bad_member)
        # Without etags a changed archive of the same size would not be noticed
        if scratch.is_used or all(url.etag or url.md5 for url in archives):
            folder.publish(name, dump_index(table, archives, scratch))
        return table

    def _without_folders(self) -> Naming:
        """Return how members are named, with the number of leading folders to drop.

        With several archives, their names are the first folder; they are kept if keys are repeated in another archive,
        as in shards that each count from 0.

        Raises:
            ShardReadError: if two samples have the same key.
        """
        duplicate = None
        for naming in [replace(self._naming, num_folders=1), self._naming][len(self._archives) < 2 :]:
            duplicate = self._duplicate_key(naming)
            if duplicate is None:
                return naming
        raise ShardReadError(f"Two samples of the source have the key {duplicate!r:.200}. Rename one of them.")

    def _duplicate_key(self, naming: Naming) -> str | None:
        def keys() -> Iterator[str]:
            return (naming(name)[0] for name in self._table.first_names())

        hashes, counts = np.unique(np.fromiter(map(hash, keys()), np.int64, len(self)), return_counts=True)
        suspects, seen = set(hashes[counts > 1].tolist()), set[str]()
        for key in keys() if suspects else ():
            if key in seen:
                return key
            if hash(key) in suspects:
                seen.add(key)
        return None

    def __len__(self) -> int:
        return len(self._table)

    def plan_digest(self) -> str:
        """Return a digest of everything that decides what is written."""
        digest = hashlib.sha256(f"{self.digest} {self._naming.num_folders}{self._how_split}".encode())
        for column in (*self._table.names.columns().values(), self._table.sizes(), self._table.firsts()):
            digest.update(column.tobytes())
        if self._labels is not None:
            digest.update(self._labels.tobytes())
        return digest.hexdigest()

    def sample_bytes(self, max_member_bytes: int) -> Int64s:
        """Return the bytes of a shard that each sample takes, headers and padding included; ``(num_samples,)``.

        Raises:
            ShardWriteError: with the first member that readers could not read back from a shard, and the reason.
        """
        members = zip(self._table.names, self._table.sizes().tolist(), strict=True)
        found = (self._member_bytes(name, size, max_member_bytes) for name, size in members)
        ends = np.append(0, np.cumsum(np.fromiter(found, np.int64)))
        totals = np.diff(ends[self._table.firsts()])
        if self._labels is not None:
            names = self._table.first_names()
            totals += np.fromiter((_header_bytes(f"{self._naming(name)[0]}.{LABEL}", 1) for name in names), np.int64)
            totals += BLOCK  # it has at most ten digits
        return totals

    def _member_bytes(self, name: str, size: int, max_member_bytes: int) -> int:
        key, extension = self._naming(name)
        fault, has_label = writing_fault(key, extension), self._labels is not None
        if fault is None and has_label:
            fault = writing_fault(key, LABEL)
        if fault is None and size > max_member_bytes:
            fault = f"{size:,} bytes are more than readers accept (max_member_bytes={max_member_bytes:,})"
        if fault is not None:
            raise ShardWriteError(
                f"{name!r:.200} of the source cannot be part of a shard, as {key!r:.200} with {extension!r:.200}: "
                f"{fault}. Leave it out by pattern=, rename it, or raise the limit here and in readers."
            )
        if has_label and extension == LABEL:  # the label replaces it
            return 0
        return _header_bytes(f"{key}.{extension}", size) + size + padding(size)

    def select(self, indices: Int64s, *, here: bool = False) -> FileSamples:
        """Return these samples in this order; ``here`` if they are read in this process."""
        labels = None if self._labels is None else self._labels[indices]
        return FileSamples(self._table.select(indices), labels, self._naming, self._options, self._scratch)


def _header_bytes(name: str, size: int) -> int:
    return BLOCK if is_plain(name, size) else len(pack_header(name, size))


def _digest_of(function: Any) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return hashlib.sha256(f"{kind.__module__}.{kind.__qualname__}".encode()).hexdigest()[:8]


def _require_apart(url: str, archives: list[Any], destination: ShardFolder) -> None:
    """Require that shards are neither listed as source, now or when the job is resumed, nor replace an archive."""
    source, folder = join_url(*split_url(literal_url(url))), destination.template.folder
    if folder.startswith(source if source.endswith("/") else source + "/"):
        shown = redact(folder)
        raise ShardWriteError(
            f"{shown} is inside the source, {redact(source)}. Write into a folder outside of it.", url=shown
        )
    for archive in archives:
        if destination.template.index(join_url(*split_url(archive))) is not None:
            shown = redact(archive)
            raise ShardWriteError(
                f"{shown} is part of the source, and a shard would get the same name. Write into another folder.",
                url=shown,
            )


class DatasetSource:
    """A map-style dataset, with the methods of :class:`FilesSource`.

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

    def prepare(self, folder: ShardFolder, *, known: Table | None, resume: bool, progress: bool) -> None:
        names = getattr(self._dataset, "classes", None) or _class_names(self._dataset)
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            own: Table = {name: {"id": number, "name": name} for number, name in enumerate(names)}
            self.classes = merged_tables(known, own)

    def __len__(self) -> int:
        return len(self._dataset)

    def plan_digest(self) -> str:
        return self.digest

    def sample_bytes(self, max_member_bytes: int) -> None:
        return None

    def select(self, indices: Int64s, *, here: bool = False) -> DatasetSamples:
        return DatasetSamples(self._dataset if here or self._travels else None, indices)


# Datasets of the package ``datasets``


def _features(dataset: Any) -> dict[str, Any]:
    return dataset.features if hasattr(dataset, "cast_column") and hasattr(dataset, "format") else {}


def with_stored_files(dataset: Any) -> Any:
    """Let a ``datasets.Dataset`` return files (Image, Audio, Video) as it stores them; others stay as they are.

    One with a transform of its own stays, too: it gets what is decoded.
    """
    columns = []
    for name, feature in _features(dataset).items():
        if str(getattr(feature, "pa_type", "")).startswith("struct<bytes") and dataset.format["type"] != "custom":
            dataset = dataset.cast_column(name, replace(feature, decode=False))
            columns.append(name)
    return _StoredFiles(dataset, columns) if columns else dataset


@dataclass(frozen=True)
class _StoredFiles:
    """Items of a dataset whose files are not decoded, with the bytes of the files in ``columns``."""

    dataset: Any
    columns: list[str]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = self.dataset[index]
        return {**item, **{name: _bytes_of(item[name]) for name in self.columns}}


def _bytes_of(file: Any) -> Any:
    if file is None or file["bytes"] is not None:
        return file and file["bytes"]
    return read_whole(file["path"], StorageOptions(), RetryPolicy())


def _class_names(dataset: Any) -> list[str] | None:
    """Return the names of the classes in the column ``cls``, or else in the only one of type ``ClassLabel``."""
    dataset = dataset.dataset if isinstance(dataset, _StoredFiles) else dataset
    tables = {name: feature.names for name, feature in _features(dataset).items() if hasattr(feature, "int2str")}
    if len(tables) > 1 and LABEL not in tables:
        warnings.warn(
            f"The columns {', '.join(tables)} have names of classes, and classes.json can hold those of one, which is "
            "called 'cls': use dataset.rename_column().",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return tables.get(LABEL, next(iter(tables.values()), None))


def open_source(
    source: Any,
    *,
    pattern: str | None,
    split_name: SplitName,
    labels: Labeller | None,
    options: StorageOptions,
    travels: bool,
    on_bad_member: OnBadMember,
) -> FilesSource | DatasetSource:
    """Open the ``source`` argument of ``shard_dataset``; ``travels`` if a dataset is pickled with each shard.

    Raises:
        UrlError: for several URLs, or ``bytes``.
        TypeError: if it is neither a URL nor a dataset, or options do not apply to it.
    """
    are_urls = isinstance(source, list | tuple) and len(source) > 0 and isinstance(source[0], str | os.PathLike)
    if are_urls or isinstance(source, str | bytes | bytearray | os.PathLike):
        url = url_of(source, of="shard_dataset")
        return FilesSource(
            url, pattern=pattern, split_name=split_name, labels=labels, options=options, on_bad_member=on_bad_member
        )
    if isinstance(source, Mapping) or not (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        advice = "For an iterable of samples use write_shards."
        if isinstance(source, Mapping):
            advice = "Pass one of its values, or list(source.values())."
        expected = "expected a URL, a path or a map-style dataset with len() and [i]"
        raise check.marked(TypeError(f"{expected}, got {check.a_kind(source)}. {advice}"))
    if any(one is not None for one in (labels, pattern, split_name)) or on_bad_member is not raise_error:
        raise check.marked(
            TypeError(
                "labels=, pattern= and on_bad_member= are for files and archives; the items of a dataset hold its "
                "labels."
            )
        )
    return DatasetSource(source, travels=travels)
