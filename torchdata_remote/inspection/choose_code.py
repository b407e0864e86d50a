"""Choose the training code that fits the files or the shards of a dataset."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

from ..core.urls import RemoteUrl
from ..formats.images import IMAGE_FOLDER_SUFFIXES, is_image_name
from ..formats.sample import split_key
from .probe import Folder, ShardProbe
from .training_code import TrainingData, files_code, image_folder_code, stream_code

_MAX_NAMED_CLASSES = 200
_PLAIN_EXTENSION = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_GLOB = re.compile(r"[*?\[\]{}]")


def code_for_files(paths: Sequence[str], *, are_images: bool, complete: bool) -> str:
    """Generate code for loose files, or for those below ``train`` if there is such a folder.

    Args:
        paths: below the dataset.
        are_images: whether all files are images.
        complete: whether these are all files.
    """
    below = _training_folder(paths, least_below=1)
    chosen = [path[len(below) :] for path in paths if path.startswith(below)]
    if not chosen:
        return ""
    in_image_folder = [path for path in chosen if path.lower().endswith(IMAGE_FOLDER_SUFFIXES)]
    num_labelled = sum("/" in path for path in in_image_folder)
    if are_images and 2 * len(in_image_folder) > len(chosen) and num_labelled in (0, len(in_image_folder)):
        return image_folder_code(below)
    return _code_for_streamed_files(below, chosen, are_images=are_images, complete=complete)


def _code_for_streamed_files(below: str, paths: Sequence[str], *, are_images: bool, complete: bool) -> str:
    suffixes = Counter(path.rpartition("/")[2].rpartition(".")[2] for path in paths if split_key(path)[1])
    plain = [suffix for suffix, _ in suffixes.most_common() if _PLAIN_EXTENSION.fullmatch(suffix)]
    if not plain:
        return files_code(below)
    chosen = [path for path in paths if path.endswith("." + plain[0])]
    members = sorted({split_key(path)[1] for path in chosen})
    if "" in members or not all(_PLAIN_EXTENSION.fullmatch(member) for member in members) or len(members) > 8:
        return files_code(below)
    classes = sorted({path.split("/")[-2] for path in chosen}) if complete and all("/" in p for p in chosen) else []
    return stream_code(
        TrainingData(
            below,
            f"*.{plain[0]}",
            members,
            are_images=are_images,
            classes=classes if 2 <= len(classes) <= _MAX_NAMED_CLASSES else (),
            num_urls=len(chosen),
        )
    )


def code_for_shards(
    folder: Folder, shards: Sequence[RemoteUrl], probes: Sequence[ShardProbe], *, complete: bool
) -> str:
    """Generate code for shards, or for those below ``train``, from what their probes found."""
    paths = [folder.path(shard) for shard in shards]
    below = _training_folder(paths, least_below=0)
    used = [path for path in paths if path.startswith(below)]
    num_samples = sum(probe.num_samples for probe in probes)
    members: Counter[str] = sum((probe.extensions for probe in probes), Counter())
    labels: Counter[str] = sum((probe.labels for probe in probes), Counter())
    in_all = [name for name, count in members.items() if count == num_samples and name != "cls"]
    images = [name for name in members if is_image_name(name) and "." not in name]
    are_images = bool(images) and sum(members[name] for name in images) == num_samples
    wanted = sorted(images) if are_images else in_all[:1] or sorted(members.keys() - {"cls"})
    labelled = sum(labels.values()) == num_samples and all(re.fullmatch(r"\d{1,9}", label) for label in labels)
    classes: list[str] = []
    folders: Counter[str] = sum((probe.folders for probe in probes), Counter())
    if complete and not labels and sum(folders.values()) == num_samples and 2 <= len(folders) <= _MAX_NAMED_CLASSES:
        classes = sorted(folders)
    return stream_code(
        TrainingData(
            below,
            members=wanted or ["__url__"],
            are_images=are_images,
            labelled=labelled and num_samples > 0,
            classes=classes,
            are_shards=True,
            num_urls=len(used),
        )
    )


def _training_folder(paths: Sequence[str], *, least_below: int) -> str:
    """Return the folder ``train`` if there is one with at least so many folders below it, else an empty string."""
    for path in paths:
        folders = path.split("/")[:-1]
        above = list(takewhile(lambda name: name.lower() not in ("train", "training"), folders))
        prefix = "/".join(folders[: len(above) + 1]) + "/"
        if len(folders) > len(above) + least_below and not _GLOB.search(prefix):
            return prefix
    return ""
