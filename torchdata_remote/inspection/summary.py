"""Summarize a dataset: sizes, labels, and the code to train from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from ..core.options import StorageOptions
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl
from ..formats.images import is_image_name
from ..formats.nested import is_archive_name
from .choose_code import code_for_files, code_for_shards
from .label_member import not_counted
from .pictures import class_name, class_names_if_readable
from .probe import (
    MAX_FILES,
    Budget,
    Folder,
    evenly_spaced,
    list_dataset,
    probe_shard,
    samples_by_manifests,
    without_root,
)

_MAX_S, _MAX_BYTES = 8.0, 256 << 20
_MAX_SHARDS, _MAX_THREADS = 32, 8
_MAX_CLASSES, _MAX_PROBLEMS = 1000, 3


@dataclass(frozen=True)
class Summary:
    """Counts of a dataset, and code to train from it.

    Args:
        num_files: files of any kind.
        num_bytes: of all files.
        complete: whether all files were listed; if not, all numbers are of the first files by path.
        kind: ``"shards"`` if archives are half of the bytes or more, ``"images"`` if images are half of the files or
            more, else ``"files"``.
        classes: label -> samples, the most frequent first; at most 1,000.
        num_classes: number of all classes.
        classes_complete: whether all samples were counted, not only those of some shards.
        num_samples: of the whole dataset; ``None`` if unknown.
        num_shards: archives.
        num_shards_seen: archives whose labels and members were counted.
        has_pictures: whether a sheet can be drawn.
        code: Python lines to train from it, with the placeholders ``datasets://HOST:PORT/NAME`` for its address and
            ``"secure": False`` for whether it is reached by https; empty if there are no files.
        problems: why shards cannot be read, for up to three of them.
        num_of_macos: files that macOS added (``._1.jpg``, ``.DS_Store``, ``__MACOSX/``), which no number contains.
    """

    num_files: int
    num_bytes: int
    complete: bool
    kind: str
    classes: dict[str, int] = field(default_factory=dict)
    num_classes: int = 0
    classes_complete: bool = True
    num_samples: int | None = None
    num_shards: int = 0
    num_shards_seen: int = 0
    has_pictures: bool = False
    code: str = ""
    problems: tuple[str, ...] = ()
    num_of_macos: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        return asdict(self) | {"problems": list(self.problems)}


def summarize(
    root_url: str,
    storage_options: Mapping[str, Any] | None,
    *,
    max_files: int = MAX_FILES,
    look_inside: bool = True,
    files: Iterable[RemoteUrl] | None = None,
) -> Summary:
    """Summarize a dataset from the listing of its folder, its manifests, and up to 32 of its shards.

    The shards are taken at even distances and read by their headers, within 8 s and about 256 MiB for all of them. If
    that is not enough, or there are more shards, labels are counted in part and ``classes_complete`` is ``False``.

    Args:
        root_url: the dataset's folder, in any store.
        storage_options: for the store, in fsspec's vocabulary.
        max_files: limit of the listing.
        look_inside: ``False`` uses the listing only and opens no shard.
        files: the listing itself, sorted, from a caller that does not follow links; ``None`` lists the folder.

    Raises:
        StorageError: if the folder cannot be listed.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({f"/farm/{path}.jpg": b"12" for path in ("cow/1", "cow/2", "hen/1")})
        >>> summary = summarize("memory://farm/", None)
        >>> summary.kind, summary.num_files, summary.num_bytes, summary.classes
        ('images', 3, 6, {'cow': 2, 'hen': 1})
        >>> summary.code.splitlines()[5]
        'url = "datasets://HOST:PORT/NAME/"'
    """
    options = StorageOptions(storage_options)
    folder = list_dataset(root_url, options, max_files=max_files, files=files)
    num_bytes = sum(file.size or 0 for file in folder.files)
    shards = [file for file in folder.files if is_archive_name(file)]
    images = [file for file in folder.files if is_image_name(file)]
    summary = partial(
        Summary,
        len(folder.files),
        num_bytes,
        folder.complete,
        num_shards=len(shards),
        num_of_macos=folder.num_of_macos,
    )
    if shards and 2 * sum(file.size or 0 for file in shards) >= num_bytes:
        if not look_inside:
            return summary("shards", classes_complete=False)
        return _of_shards(summary, folder, shards, options)
    if images and 2 * len(images) >= len(folder.files):
        return _of_files(summary, folder, images, are_images=True)
    return _of_files(summary, folder, folder.files, are_images=False, has_pictures=_any_image(folder))


def _of_files(
    summary: partial[Summary],
    folder: Folder,
    files: Sequence[RemoteUrl],
    *,
    are_images: bool,
    has_pictures: bool = True,
) -> Summary:
    """Summarize loose files: their labels are the folders that they are in."""
    paths = [folder.path(file) for file in files]
    labels = Counter(path.split("/")[-2] for path in paths if "/" in path)
    return _with_classes(
        partial(summary, has_pictures=has_pictures and bool(files), num_samples=len(files) if are_images else None),
        labels,
        kind="images" if are_images else "files",
        complete=folder.complete,
        code=code_for_files(paths, are_images=are_images, complete=folder.complete),
    )


def _of_shards(
    summary: partial[Summary], folder: Folder, shards: Sequence[RemoteUrl], options: StorageOptions
) -> Summary:
    budget = Budget(max_s=_MAX_S, max_bytes=_MAX_BYTES)
    sizes = {str(file): file.size or 0 for file in folder.files}
    listed_samples = samples_by_manifests(folder, options, budget)
    chosen = evenly_spaced(list(shards), _MAX_SHARDS)
    tasks = [lambda wait, url=url: probe_shard(url, options, budget) for url in chosen]
    probes = list(ordered_map(tasks, max_threads=_MAX_THREADS))
    tables: dict[str, dict[str, str]] = {}  # by folder
    labels: Counter[str] = Counter()
    for url, probe in zip(chosen, probes, strict=True):
        parent = url.rpartition("/")[0]
        if parent not in tables:
            tables[parent] = class_names_if_readable(url, sizes, options)
        for label, count in (probe.labels or probe.folders).items():
            labels[class_name(label, tables[parent]) if probe.labels else label] += count
    complete = folder.complete and len(chosen) == len(shards) and all(probe.complete for probe in probes)
    num_samples = sum(probe.num_samples for probe in probes) if complete else None
    if folder.complete and all(str(shard) in listed_samples for shard in shards):
        num_samples = sum(listed_samples[str(shard)] for shard in shards)
    problems = [without_root(probe.problem, folder) for probe in probes if probe.problem]
    if num_unread := sum(probe.num_unread for probe in probes):
        problems.append(not_counted(num_unread, sum(probe.num_samples for probe in probes)))
    has_pictures = _any_image(folder) or any(is_image_name(name) for probe in probes for name in probe.extensions)
    return _with_classes(
        partial(
            summary,
            num_samples=num_samples,
            num_shards_seen=sum(probe.num_samples > 0 for probe in probes),
            has_pictures=has_pictures,
            problems=tuple(problems[:_MAX_PROBLEMS]),
        ),
        labels,
        kind="shards",
        complete=complete,
        code=code_for_shards(folder, shards, probes, complete=complete),
    )


def _any_image(folder: Folder) -> bool:
    return any(map(is_image_name, folder.files))


def _with_classes(summary: partial[Summary], labels: Counter[str], *, kind: str, complete: bool, code: str) -> Summary:
    ordered = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
    return summary(kind, dict(ordered[:_MAX_CLASSES]), num_classes=len(ordered), classes_complete=complete, code=code)
