"""What is in a dataset: sizes, labels, and the code to train from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

from ..core.options import StorageOptions
from ..core.threads.ordered_map import ordered_map
from ..core.urls import RemoteUrl
from ..formats.images import IMAGE_FOLDER_SUFFIXES, is_image_name
from ..formats.nested import is_archive_name
from ..formats.sample import split_key
from .picture_sheet import MAX_FILES, names_beside
from .probe import Budget, Folder, ShardLook, list_dataset, look_into, samples_by_manifests, spread, without_place
from .training_code import Source, files_code, image_folder_code, stream_code

_MAX_S, _MAX_BYTES = 8.0, 256 << 20
_MAX_SHARDS, _MAX_THREADS = 32, 8
_MAX_CLASSES, _MAX_NAMED, _MAX_PROBLEMS = 1000, 200, 3
_PLAIN_EXTENSION = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_GLOB = re.compile(r"[*?\[\]{}]")


@dataclass(frozen=True)
class Summary:
    """What is in a dataset.

    Args:
        num_files: files of any kind.
        num_bytes: of all of them.
        complete: whether all files were listed; if not, all numbers are of the first ones by path.
        kind: ``"shards"`` if archives are half of the bytes or more, ``"images"`` if these are half of the files or
            more, else ``"files"``.
        classes: label -> samples, the most frequent first; at most 1,000.
        num_classes: how many there are.
        classes_complete: whether all samples were counted, not only those of some shards.
        num_samples: of all of it; ``None`` if that is not known.
        num_shards: archives.
        num_shards_seen: those that labels and members were looked up in.
        has_pictures: whether a sheet can be drawn.
        code: Python lines to train from it, in which ``datasets://HOST:PORT/NAME`` stands for its address and
            ``"secure": False`` for whether it is reached by https; empty if there are no files.
        problems: why shards cannot be read, a few of them.
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

    def as_json(self) -> dict[str, Any]:
        """The same as what ``json.dumps`` takes."""
        return asdict(self) | {"problems": list(self.problems)}


def summarize(
    root_url: str,
    storage_options: Mapping[str, Any] | None,
    *,
    max_files: int = MAX_FILES,
    look_inside: bool = True,
) -> Summary:
    """Look at a dataset: the listing of its folder, its manifests, and up to 32 of its shards.

    Shards are gone through by their headers, from all over the dataset, for 8 s and about 256 MiB at the most, which
    all of them share. Where that is not enough, or there are more, labels are of the samples that were seen, and the
    summary says so.

    Args:
        root_url: the dataset's folder, in any store.
        storage_options: for the store, in fsspec's vocabulary.
        max_files: that are listed and counted.
        look_inside: ``False`` leaves out what needs more than a listing: what is in shards.

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
    folder = list_dataset(root_url, options, max_files=max_files)
    num_bytes = sum(file.size or 0 for file in folder.files)
    shards = [file for file in folder.files if is_archive_name(file)]
    images = [file for file in folder.files if is_image_name(file)]
    known = partial(Summary, len(folder.files), num_bytes, folder.complete, num_shards=len(shards))
    if shards and 2 * sum(file.size or 0 for file in shards) >= num_bytes:
        if not look_inside:
            return known("shards", classes_complete=False)
        return _of_shards(known, folder, shards, options)
    if images and 2 * len(images) >= len(folder.files):
        return _of_files(known, folder, images, are_images=True)
    return _of_files(known, folder, folder.files, are_images=False, has_pictures=bool(images))


def _of_files(
    known: partial[Summary], folder: Folder, files: Sequence[RemoteUrl], *, are_images: bool, has_pictures: bool = True
) -> Summary:
    """Of loose files: labels are the folders that they lie in."""
    paths = [folder.path(file) for file in files]
    labels = Counter(path.split("/")[-2] for path in paths if "/" in path)
    below = _training_folder(paths, least_below=1)
    chosen = [path[len(below) :] for path in paths if path.startswith(below)]
    for_folder = [path for path in chosen if path.lower().endswith(IMAGE_FOLDER_SUFFIXES)]
    in_folders = sum("/" in path for path in for_folder)
    if not chosen:
        code = ""
    elif are_images and 2 * len(for_folder) > len(chosen) and in_folders in (0, len(for_folder)):
        code = image_folder_code(below)
    else:
        code = _code_for_files(below, chosen, are_images=are_images, complete=folder.complete)
    return _with_classes(
        partial(known, has_pictures=has_pictures and bool(files), num_samples=len(files) if are_images else None),
        labels,
        kind="images" if are_images else "files",
        complete=folder.complete,
        code=code,
    )


def _code_for_files(below: str, paths: Sequence[str], *, are_images: bool, complete: bool) -> str:
    endings = Counter(path.rpartition("/")[2].rpartition(".")[2] for path in paths if split_key(path)[1])
    plain = [ending for ending, _ in endings.most_common() if _PLAIN_EXTENSION.fullmatch(ending)]
    if not plain:
        return files_code(below)
    chosen = [path for path in paths if path.endswith("." + plain[0])]
    members = sorted({split_key(path)[1] for path in chosen})
    if "" in members or not all(_PLAIN_EXTENSION.fullmatch(member) for member in members) or len(members) > 8:
        return files_code(below)
    classes = sorted({path.split("/")[-2] for path in chosen}) if complete and all("/" in p for p in chosen) else []
    return stream_code(
        Source(
            below,
            f"*.{plain[0]}",
            members,
            are_images=are_images,
            classes=classes if 2 <= len(classes) <= _MAX_NAMED else (),
            num_urls=len(chosen),
        )
    )


def _of_shards(
    known: partial[Summary], folder: Folder, shards: Sequence[RemoteUrl], options: StorageOptions
) -> Summary:
    budget = Budget(max_s=_MAX_S, max_bytes=_MAX_BYTES)
    sizes = {str(file): file.size or 0 for file in folder.files}
    said = samples_by_manifests(folder, options, budget)
    chosen = spread(list(shards), _MAX_SHARDS)
    tasks = [lambda wait, url=url: look_into(url, options, budget) for url in chosen]
    looks = list(ordered_map(tasks, max_threads=_MAX_THREADS))
    tables: dict[str, dict[str, str]] = {}
    labels: Counter[str] = Counter()
    for url, look in zip(chosen, looks, strict=True):
        place = url[: url.rindex("/") + 1]
        if place not in tables:
            tables[place] = names_beside(url, sizes, options)
        for label, count in (look.labels or look.folders).items():
            labels[tables[place].get(label, label) if look.labels else label] += count
    seen_all = folder.complete and len(chosen) == len(shards) and all(look.to_the_end for look in looks)
    num_samples = sum(look.num_samples for look in looks) if seen_all else None
    if folder.complete and all(str(shard) in said for shard in shards):
        num_samples = sum(said[str(shard)] for shard in shards)
    problems = [without_place(look.problem, folder) for look in looks if look.problem]
    pictures = any(is_image_name(name) for look in looks for name in look.extensions)
    return _with_classes(
        partial(
            known,
            num_samples=num_samples,
            num_shards_seen=sum(look.num_samples > 0 for look in looks),
            has_pictures=pictures or any(is_image_name(file) for file in folder.files),
            problems=tuple(problems[:_MAX_PROBLEMS]),
        ),
        labels,
        kind="shards",
        complete=seen_all,
        code=_code_for_shards(folder, shards, looks, seen_all=seen_all),
    )


def _code_for_shards(folder: Folder, shards: Sequence[RemoteUrl], looks: Sequence[ShardLook], *, seen_all: bool) -> str:
    paths = [folder.path(shard) for shard in shards]
    below = _training_folder(paths, least_below=0)
    used = [path for path in paths if path.startswith(below)]
    endings = Counter(path[path.lower().rindex(".t") :] for path in used)
    ending = endings.most_common(1)[0][0]
    num_samples = sum(look.num_samples for look in looks)
    members: Counter[str] = sum((look.extensions for look in looks), Counter())
    labels: Counter[str] = sum((look.labels for look in looks), Counter())
    in_all = [name for name, count in members.items() if count == num_samples and name != "cls"]
    images = [name for name in members if is_image_name(name) and "." not in name]
    are_images = bool(images) and sum(members[name] for name in images) == num_samples
    wanted = sorted(images) if are_images else in_all[:1] or sorted(members.keys() - {"cls"})
    labelled = sum(labels.values()) == num_samples and all(re.fullmatch(r"\d{1,9}", label) for label in labels)
    classes: list[str] = []
    folders: Counter[str] = sum((look.folders for look in looks), Counter())
    if seen_all and not labels and sum(folders.values()) == num_samples and 2 <= len(folders) <= _MAX_NAMED:
        classes = sorted(folders)
    return stream_code(
        Source(
            below,
            f"*{ending}",
            wanted or ["__url__"],
            are_images=are_images,
            labelled=labelled and num_samples > 0,
            classes=classes,
            are_shards=True,
            num_urls=endings[ending],
        )
    )


def _training_folder(paths: Sequence[str], *, least_below: int) -> str:
    """The folder ``train``, where there is one with so many folders below it at least; else nothing."""
    for path in paths:
        folders = path.split("/")[:-1]
        above = list(takewhile(lambda name: name.lower() not in ("train", "training"), folders))
        prefix = "/".join(folders[: len(above) + 1]) + "/"
        if len(folders) > len(above) + least_below and not _GLOB.search(prefix):
            return prefix
    return ""


def _with_classes(known: partial[Summary], labels: Counter[str], *, kind: str, complete: bool, code: str) -> Summary:
    ordered = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
    return known(kind, dict(ordered[:_MAX_CLASSES]), num_classes=len(ordered), classes_complete=complete, code=code)
