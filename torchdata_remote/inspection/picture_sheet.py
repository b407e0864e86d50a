"""A sheet of pictures from all over a dataset."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import chain, islice, pairwise, zip_longest
from typing import Any

from PIL import Image

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import StorageOptions
from ..core.threads.ordered_map import ordered_map
from ..core.urls import RemoteUrl
from ..errors import RemoteDataError, ShardReadError
from ..formats.decoders import rgb
from ..formats.images import is_image_name
from ..formats.nested import is_archive_name
from ..formats.sample import KEY, split_key
from ..formats.sample_index import index_url
from ..formats.tar import MemberHeader
from ..storage.registry import read_whole
from .contact_sheet import Cell, contact_sheet
from .pictures import Picture, class_names
from .probe import BRIEFLY, Budget, Folder, is_small_label, list_dataset, samples_in, spread, text_of
from .shard_headers import ShardHeads

MAX_FILES = 200_000
_MAX_S, _MAX_BYTES = 15.0, 256 << 20
_MAX_IMAGE_BYTES = 16 << 20
_MAX_TABLE_BYTES = 16 << 20  # of an index or a class table
_MAX_THREADS = 8
_CELL_PIXELS, _COLUMNS = 160, 5  # labels can still be read where a page makes it smaller
_SMALL = rgb(min_size=_CELL_PIXELS)
_DAMAGED = "damaged shard"
_FIRST_BYTES = 32 << 10  # a small picture as a whole; of larger ones the next windows are longer


def draw_sheet(
    root_url: str, storage_options: Mapping[str, Any] | None, *, num_pictures: int = 20, max_files: int = MAX_FILES
) -> bytes | None:
    """Draw some images of a dataset, loose ones or from inside shards, as a PNG with a label under each.

    They come from all folders, or all shards, by turns. What is damaged, larger than 16 MiB, has more pixels than
    ``decoders`` allows, or comes too late, is a crossed cell. At most 256 MiB are read, by requests for what is needed,
    and nothing is begun after 15 s.

    Args:
        root_url: the dataset's folder, in any store.
        storage_options: for the store, in fsspec's vocabulary.
        num_pictures: at most.
        max_files: that are listed.

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
        (350, 201)
        >>> draw_sheet("memory://nobody/", None) is None
        True
    """
    options = StorageOptions(storage_options)
    folder = list_dataset(root_url, options, max_files=max_files)
    budget = Budget(max_s=_MAX_S, max_bytes=_MAX_BYTES)
    shards = [file for file in folder.files if is_archive_name(file)]
    images = [file for file in folder.files if is_image_name(file)]
    size_of_shards = sum(file.size or 0 for file in shards)
    by_shards = bool(shards) and (not images or size_of_shards >= sum(file.size or 0 for file in images))
    cells = _from_shards(shards, folder, num_pictures, options, budget) if by_shards else []
    if not cells:
        cells = _loose(images, folder, num_pictures, options, budget)
    if not cells:
        return None
    sheet, file = contact_sheet(cells, num_columns=_COLUMNS, cell_pixels=_CELL_PIXELS), io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _loose(
    images: list[RemoteUrl], folder: Folder, num_pictures: int, options: StorageOptions, budget: Budget
) -> list[Cell]:
    by_folder: defaultdict[str, list[RemoteUrl]] = defaultdict(list)
    for image in images:
        by_folder[folder.path(image).rpartition("/")[0]].append(image)
    chosen = spread(list(by_folder.values()), num_pictures)
    share = -(-num_pictures // max(1, len(chosen)))
    turns = zip_longest(*(spread(files, share) for files in chosen))
    drawn = list(islice((one for turn in turns for one in turn if one is not None), num_pictures))

    def look(url: RemoteUrl, wait: Callable[[float], None]) -> bytes:
        fits = url.size is None or url.size <= _MAX_IMAGE_BYTES
        if fits and budget.take(_MAX_IMAGE_BYTES if url.size is None else url.size):
            with suppress(RemoteDataError):
                return read_whole(url, options, BRIEFLY)
        return b""

    tasks = [partial(look, url) for url in drawn]
    named = (_label_of(folder.path(url)) for url in drawn)
    with closing(ordered_map(tasks, max_threads=_MAX_THREADS)) as read:
        return [(_small(data, budget), name) for data, name in zip(read, named, strict=True)]


def _label_of(path: str) -> str:
    above, _, name = path.rpartition("/")
    return above.rpartition("/")[2] or name


def _from_shards(
    shards: list[RemoteUrl], folder: Folder, num_pictures: int, options: StorageOptions, budget: Budget
) -> list[Cell]:
    chosen = spread(shards, num_pictures)
    share = -(-num_pictures // max(1, len(chosen)))
    sizes = {str(file): file.size or 0 for file in folder.files}
    tasks = [partial(_pictures_of, url, sizes, share, options, budget) for url in chosen]
    names: dict[str, dict[str, str]] = {}
    with closing(ordered_map(tasks, max_threads=_MAX_THREADS)) as found:
        turns = list(zip_longest(*found))
    drawn = list(islice((one for one in chain.from_iterable(turns) if one is not None), num_pictures))
    if all(one.key == _DAMAGED for one in drawn):
        return []
    cells = []
    for one in drawn:
        place = one.url[: one.url.rindex("/") + 1]
        if place not in names:
            names[place] = names_beside(one.url, sizes, options)
        label = one.key.rpartition("/")[2] if one.label is None else names[place].get(one.label, one.label)
        cells.append((_small(one.data, budget), label))
    return cells


def names_beside(shard_url: str, sizes: Mapping[str, int], options: StorageOptions) -> dict[str, str]:
    """Class number -> name, from the class table beside a shard; nothing where there is none that can be read."""
    table = shard_url[: shard_url.rindex("/") + 1] + "classes.json"
    if sizes.get(table, _MAX_TABLE_BYTES + 1) > _MAX_TABLE_BYTES:
        return {}
    try:
        return class_names(shard_url, storage_options=options)
    except RemoteDataError:
        return {}


def _pictures_of(
    url: RemoteUrl,
    sizes: Mapping[str, int],
    count: int,
    options: StorageOptions,
    budget: Budget,
    wait: Callable[[float], None],
) -> list[Picture]:
    """Images from all over a shard where its index tells where samples begin, else from its beginning."""
    found: list[Picture] = []
    try:
        shard = ShardHeads(url, options, BRIEFLY)
        indexed = 0 < sizes.get(index_url(url), 0) <= _MAX_TABLE_BYTES
        offsets = shard.read_index()[0] if indexed else None
        places = spread(list(pairwise(offsets)), count) if offsets else []
        wanted, one = _wanted(budget), ConcurrencyLimit(1, check=lambda: None)
        with suppress(ShardReadError):  # whether it is the shard or the index, reading from the start will tell
            for start, stop in places:
                heads = shard.between(start, stop, wanted, in_flight=one, wait=wait, first_bytes=_FIRST_BYTES)
                with closing(heads):
                    found += islice(_pictures_in(heads, shard), 1)
        if not found:
            with closing(shard.from_the_start(wanted)) as heads:
                found += islice(_pictures_in(_affordable(heads, budget), shard), count)
    except RemoteDataError:
        found.append(Picture(str(url), _DAMAGED, b"", None))
    return found


def _wanted(budget: Budget) -> Callable[[str, int], bool]:
    def wanted(name: str, num_bytes: int) -> bool:
        if is_image_name(split_key(name)[1]):
            return num_bytes <= _MAX_IMAGE_BYTES and budget.take(num_bytes)
        return is_small_label(name, num_bytes)

    return wanted


def _affordable(heads: Iterator[MemberHeader], budget: Budget) -> Iterator[MemberHeader]:
    for head in heads:
        yield head
        if not budget.take(4 << 10):
            return


def _pictures_in(heads: Iterator[MemberHeader], shard: ShardHeads) -> Iterator[Picture]:
    for sample in samples_in(heads, shard.shown):
        images = sorted((name for name in sample if is_image_name(name)), key=lambda name: "." in name)
        if images:
            yield Picture(str(shard.url), sample[KEY], sample[images[0]].data or b"", text_of(sample.get("cls")))


def _small(data: bytes, budget: Budget) -> Image.Image | None:
    """An image of a cell's size; ``None`` if it is none, or if there is no time left to decode it."""
    if not data or not budget.take(0):
        return None
    try:
        image = _SMALL(data)
    except Exception:  # noqa: BLE001  # Pillow raises nearly anything for damaged images
        return None
    image.thumbnail((_CELL_PIXELS, _CELL_PIXELS), Image.Resampling.LANCZOS)
    return image
