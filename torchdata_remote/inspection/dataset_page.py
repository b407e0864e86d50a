"""What the service's page shows of a dataset, within bounds of time and bytes: a summary and a sheet of pictures."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice, pairwise, zip_longest
from typing import Any, TypeVar

from PIL import Image

from ..core.options import RetryPolicy, StorageOptions
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl, join_url, redact, split_url
from ..errors import RemoteDataError
from ..fetch.read_ahead import FAR_BYTES, LEAST_BYTES
from ..formats.images import is_image_name
from ..formats.manifest import CLASSES_NAME, MANIFEST_NAME, load_manifest
from ..formats.nested import is_archive_name
from ..formats.sample import paths_of_macos
from ..formats.tar import MemberHeader
from ..storage import list_folder, read_whole
from .pictures import Cell, chosen_pictures, contact_sheet, images_and_labels, thumbnail
from .shards import SampleCounts, ShardHeaders, class_name, class_names, group_headers, is_label, notes_of
from .training_code import code_for_files, code_for_shards

T = TypeVar("T")
MAX_FILES = 200_000
_RETRY = RetryPolicy(deadline_s=5.0, progress_timeout_s=5.0)  # a page is waiting for the result
_MAX_BYTES, _SUMMARY_S, _SHEET_S = 256 << 20, 8.0, 15.0
_HEADER_BYTES, _TABLE_BYTES, _IMAGE_BYTES = 512, 16 << 20, 16 << 20
_MAX_SHARDS, _MAX_MANIFESTS, _MAX_CLASSES, _MAX_PROBLEMS, _MAX_THREADS = 32, 16, 1000, 3, 8
_CELL_PIXELS, _COLUMNS = 160, 5  # labels stay legible when a page scales the sheet down
_FIRST_BYTES = 32 << 10  # a small picture as a whole; for a larger one the next windows are longer
_MAX_PIXELS = 24 << 20  # of a picture that is decoded as a whole, by 12 to 24 bytes each
# Of all sheets of this process: what they read at the same time is bounded by the number of threads
_THREADS = ThreadPoolExecutor(4, "read pictures")
_DECODING = threading.RLock()  # one picture at a time


@dataclass(frozen=True)
class Summary:
    """Counts of a dataset, and code to train from it.

    Args:
        num_files: files of any kind.
        num_bytes: of all files.
        complete: whether all files were listed; if not, all numbers are of the first files by path.
        kind: ``"shards"`` if archives are half of the bytes or more, ``"images"`` if images are half of the files or
            more, else ``"files"``.
        num_shards: archives.
        num_of_macos: files that macOS added (``._1.jpg``, ``.DS_Store``, ``__MACOSX/``), which no number contains.
        has_pictures: whether a sheet can be drawn.
        code: Python lines to train from it, with the placeholders ``datasets://HOST:PORT/NAME`` for its address and
            ``"secure": False`` for whether it is reached by https; empty if there are no files.
        classes: label -> samples, the most frequent first; at most 1,000.
        num_classes: number of all classes.
        classes_complete: whether all samples were counted, not only those of some shards.
        num_samples: of the whole dataset; ``None`` if unknown.
        num_shards_seen: archives whose labels and members were counted.
        problems: why shards cannot be read, for up to three of them.
    """

    num_files: int
    num_bytes: int
    complete: bool
    kind: str
    num_shards: int
    num_of_macos: int
    has_pictures: bool
    code: str = ""
    classes: dict[str, int] = field(default_factory=dict)
    num_classes: int = 0
    classes_complete: bool = False
    num_samples: int | None = None
    num_shards_seen: int = 0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return a dict that ``json.dumps`` accepts."""
        return asdict(self)


class _Budget:
    """Limit of time and of bytes, shared by threads. After one refusal all are refused.

    Args:
        max_s: seconds from now.
    """

    def __init__(self, max_s: float) -> None:
        self._deadline_s, self._remaining_bytes = time.monotonic() + max_s, _MAX_BYTES
        self._lock = threading.RLock()
        self.cut = False  # whether a request was refused

    def take(self, num_bytes: int) -> bool:
        """Use a number of bytes; returns whether they and the time are left."""
        with self._lock:
            self._remaining_bytes -= num_bytes
            self.cut = self.cut or self._remaining_bytes < 0 or time.monotonic() > self._deadline_s
            return not self.cut


class _Dataset:
    """The files of a dataset, at most the first ``max_files`` by path.

    Args:
        url: of its folder.
        options: for the store.
        max_files: limit of the listing.
        files: the listing itself, from a caller that does not follow links; ``None`` lists the folder.

    Raises:
        StorageError: if the folder cannot be listed.
    """

    def __init__(self, url: str, options: StorageOptions, max_files: int, files: Iterable[RemoteUrl] | None) -> None:
        self.url, self.options = join_url(*split_url(url if url.endswith("/") else url + "/")), options
        if files is None:
            files = list_folder(self.url, recursive=True, options=options, retry=_RETRY)
        listed = list(islice(files, max_files + 1))
        of_macos = paths_of_macos(listed, len(self.url))
        self.files = [file for file in listed[:max_files] if file not in of_macos]
        self.complete, self.num_of_macos = len(listed) <= max_files, len(of_macos)
        self.shards = list(filter(is_archive_name, self.files))
        self.images = list(filter(is_image_name, self.files))
        self.sizes = {str(file): file.size or 0 for file in self.files}
        self._tables: dict[str, dict[str, str]] = {}

    def path(self, file: str) -> str:
        """Return a file's path below the folder."""
        return str(file)[len(self.url) :]

    def num_bytes(self, files: Iterable[RemoteUrl]) -> int:
        """Return the bytes of some of the files."""
        return sum(file.size or 0 for file in files)

    def class_names(self, shard: str) -> dict[str, str]:
        """Return the names of the classes of a shard, if the table beside it can be used."""
        folder = shard[: shard.rindex("/") + 1]
        if folder not in self._tables:
            self._tables[folder] = {}
            if self.sizes.get(folder + CLASSES_NAME, _TABLE_BYTES + 1) <= _TABLE_BYTES:
                with suppress(RemoteDataError):
                    self._tables[folder] = class_names(shard, storage_options=self.options)
        return self._tables[folder]


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
    data = _Dataset(root_url, StorageOptions(storage_options), max_files, files)
    num_bytes = data.num_bytes(data.files)
    kind, seen = "files", data.files
    if data.shards and 2 * data.num_bytes(data.shards) >= num_bytes:
        kind = "shards"
    elif data.images and 2 * len(data.images) >= len(data.files):
        kind, seen = "images", data.images
    summary = partial(Summary, len(data.files), num_bytes, data.complete, kind, len(data.shards), data.num_of_macos)
    if kind == "shards":
        return _of_shards(summary, data) if look_inside else summary(bool(data.images))
    paths = list(map(data.path, seen))
    labels = Counter(path.split("/")[-2] for path in paths if "/" in path)
    return summary(
        bool(data.images),
        code_for_files(paths, are_images=kind == "images"),
        dict(labels.most_common(_MAX_CLASSES)),
        len(labels),
        data.complete,
        len(paths) if kind == "images" else None,
    )


def _of_shards(summary: Callable[..., Summary], data: _Dataset) -> Summary:
    budget = _Budget(_SUMMARY_S)
    listed_samples = _samples_by_manifests(data, budget)
    chosen = _evenly_spaced(data.shards, _MAX_SHARDS)
    tasks = [lambda wait, url=url: _probe(url, data.options, budget) for url in chosen]
    probes = list(ordered_map(tasks, max_threads=_MAX_THREADS))
    total, labels = SampleCounts(), Counter[str]()
    for shard, (found, _) in zip(chosen, probes, strict=True):
        total.add(found)
        for label, number in (found.labels or found.folders).items():
            labels[class_name(label, data.class_names(shard)) if found.labels else label] += number
    problems = [problem.replace(redact(data.url), "").replace(data.url, "") for _, problem in probes if problem]
    complete = data.complete and len(chosen) == len(data.shards) and not problems and not budget.cut
    num_samples = total.samples["all"] if complete else None
    if data.complete and all(str(shard) in listed_samples for shard in data.shards):
        num_samples = sum(listed_samples[str(shard)] for shard in data.shards)
    problems += notes_of(total)
    return summary(
        bool(data.images) or any(map(is_image_name, total.members)),
        code_for_shards(list(map(data.path, data.shards)), total),
        dict(labels.most_common(_MAX_CLASSES)),
        len(labels),
        complete,
        num_samples,
        sum(found.samples["all"] > 0 for found, _ in probes),
        problems[:_MAX_PROBLEMS],
    )


def _samples_by_manifests(data: _Dataset, budget: _Budget) -> dict[str, int]:
    """Read up to 16 manifests: URL of each shard that they name -> its samples."""
    found: dict[str, int] = {}
    for url in [file for file in data.files if file.endswith("/" + MANIFEST_NAME)][:_MAX_MANIFESTS]:
        if data.sizes[url] <= _TABLE_BYTES and budget.take(data.sizes[url]):
            with suppress(RemoteDataError):  # other files may be named index.json
                manifest = load_manifest(read_whole(url, data.options, _RETRY, etag=url.etag), url)
                found |= {one.url: one.num_samples for one in manifest}
    return found


def _probe(url: RemoteUrl, options: StorageOptions, budget: _Budget) -> tuple[SampleCounts, str]:
    """Count a shard's samples from its headers, until its end or until the budget is used up.

    The budget is charged beforehand: for a member what reading or skipping it needs, in a compressed shard all of it.
    So at most about twice the budget's bytes are requested.

    Returns:
        tuple: the counts, and why the shard cannot be read.
    """
    counts = SampleCounts()

    def affordable(headers: Iterable[MemberHeader], most_bytes: int) -> Iterator[MemberHeader]:
        for header in headers:
            if not budget.take(_HEADER_BYTES + min(header.num_bytes, most_bytes)):
                return
            yield header

    try:
        shard = ShardHeaders(url, options, _RETRY)
        with closing(shard.read(is_label)) as headers:
            most_bytes = FAR_BYTES + LEAST_BYTES if shard.compression is None else sys.maxsize
            samples = group_headers(affordable(headers, most_bytes), url=shard.shown)
            for sample, following in pairwise(chain(samples, [None])):
                if following is not None or not budget.cut:  # else some of its members may be missing
                    counts.count(sample or {})
    except RemoteDataError as error:
        if not budget.cut:
            return counts, str(error)
    return counts, ""


def draw_sheet(
    root_url: str,
    storage_options: Mapping[str, Any] | None,
    *,
    num_pictures: int = 20,
    max_files: int = MAX_FILES,
    files: Iterable[RemoteUrl] | None = None,
) -> bytes | None:
    """Draw some images of a dataset, loose ones or from inside shards, as a PNG with a label under each.

    They are taken from all folders, or all shards, in turn. An image that is damaged, larger than 16 MiB, too large to
    decode, or arrives too late, is a crossed cell. At most 256 MiB are read, by requests for what is needed, and no
    request is sent after 15 s.

    All sheets of a process read in four threads and decode one image at a time. One of more than 25 million pixels is
    too large, unless it is a JPEG, which is decoded at a smaller scale.

    Args:
        root_url: the dataset's folder, in any store.
        storage_options: for the store, in fsspec's vocabulary.
        num_pictures: at most.
        max_files: limit of the listing.
        files: the listing itself, sorted, from a caller that does not follow links; ``None`` lists the folder.

    Returns:
        A PNG of up to 5 columns of 160 pixels, or ``None`` if there are no images.

    Raises:
        StorageError: if the folder cannot be listed.

    Example:
        >>> import fsspec
        >>> file = io.BytesIO()
        >>> Image.new("L", (4, 3)).save(file, "PNG")
        >>> fsspec.filesystem("memory").pipe({"/zebras/1.png": file.getvalue(), "/zebras/2.png": b"damaged"})
        >>> Image.open(io.BytesIO(draw_sheet("memory://zebras/", None))).size
        (350, 205)
        >>> draw_sheet("memory://no-such-folder/", None) is None
        True
    """
    data, budget = _Dataset(root_url, StorageOptions(storage_options), max_files, files), _Budget(_SHEET_S)
    cells: list[Cell] = []
    if data.num_bytes(data.shards) >= data.num_bytes(data.images):
        cells = _cells(data.shards, _cells_of_shard, num_pictures, data, budget)
    if not cells:
        folders: defaultdict[str, list[RemoteUrl]] = defaultdict(list)
        for image in data.images:
            folders[image.rpartition("/")[0]].append(image)
        cells = _cells(list(folders.values()), _cells_of_files, num_pictures, data, budget)
    if not cells:
        return None
    sheet, file = contact_sheet(cells, num_columns=_COLUMNS, cell_pixels=_CELL_PIXELS), io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _cells(
    groups: Sequence[Any], read: Callable[..., list[Cell]], num: int, data: _Dataset, budget: _Budget
) -> list[Cell]:
    """Read pictures of groups at even distances: the first ones of all groups, then the second ones."""
    chosen = _evenly_spaced(groups, num)
    found = list(_THREADS.map(partial(read, num=-(-num // max(1, len(chosen))), data=data, budget=budget), chosen))
    return list(islice((cell for cell in chain.from_iterable(zip_longest(*found)) if cell is not None), num))


def _cells_of_files(files: Sequence[RemoteUrl], num: int, data: _Dataset, budget: _Budget) -> list[Cell]:
    cells: list[Cell] = []
    for url in _evenly_spaced(files, num):
        size, image = _IMAGE_BYTES if url.size is None else url.size, None
        if size <= _IMAGE_BYTES and budget.take(size):
            with suppress(RemoteDataError):
                image = _thumbnail(read_whole(url, data.options, _RETRY, etag=url.etag))
        above, _, name = data.path(url).rpartition("/")
        cells.append((image, above.rpartition("/")[2] or name))
    return cells


def _cells_of_shard(url: RemoteUrl, num: int, data: _Dataset, budget: _Budget) -> list[Cell]:
    """Draw images from all over a shard that has an index, else the first ones."""
    wanted = images_and_labels(_IMAGE_BYTES, take=budget.take)
    try:
        shard = ShardHeaders(url, data.options, _RETRY)
        found = chosen_pictures(
            shard, wanted, lambda of: _evenly_spaced(range(of), num), num, _thumbnail, first_bytes=_FIRST_BYTES
        )
    except RemoteDataError:
        return [(None, "damaged shard")]
    return [(picture.image, picture.caption(data.class_names(url))) for picture in found]


def _thumbnail(data: bytes | None) -> Image.Image | None:
    with _DECODING:
        return thumbnail(data, _CELL_PIXELS, max_pixels=_MAX_PIXELS)


def _evenly_spaced(items: Sequence[T], num: int) -> list[T]:
    """Choose up to ``num`` items at even distances, in order."""
    num = min(num, len(items))
    return [items[number * len(items) // num] for number in range(num)]
