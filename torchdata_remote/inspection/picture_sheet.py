"""Draw a contact sheet of a dataset for the service's page, within bounds of time and bytes."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise, zip_longest
from typing import Any

from PIL import Image

from ..core.options import StorageOptions
from ..core.retry import ConcurrencyLimit
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl
from ..errors import RemoteDataError, ShardReadError
from ..formats.images import is_image_name
from ..formats.nested import is_archive_name
from ..formats.sample_index import index_url
from ..formats.tar import MemberHeader
from ..storage import read_whole
from .contact_sheet import Cell, contact_sheet, thumbnail
from .picture_memory import MAX_DECODING_BYTES, READ, decoded_in_turn, decoding_bytes
from .pictures import MAX_TABLE_BYTES, Picture, class_names_if_readable, images_and_labels, pictures_in
from .probe import BRIEF_RETRY, MAX_FILES, Budget, Folder, evenly_spaced, list_dataset
from .shard_headers import ShardHeaders

_MAX_S, _MAX_BYTES = 15.0, 256 << 20
_MAX_IMAGE_BYTES = 16 << 20
_MAX_THREADS = 8
_CELL_PIXELS, _COLUMNS = 160, 5  # labels stay legible when a page scales the sheet down
_SHARD_BYTES = 2 * _MAX_IMAGE_BYTES  # of images of one shard, in memory
_DAMAGED = "damaged shard"
_FIRST_BYTES = 32 << 10  # a small picture as a whole; for a larger one the next windows are longer
_MEMBER_BYTES = 4 << 10  # charged for each header that is read on the way to an image
_Drawn = tuple[Image.Image | None, Picture]  # without the data


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

    All sheets of a process share 256 MiB for what they have read, and decode one image at a time, in 320 MiB. So one of
    more than 28 million pixels (WebP: 20, 16-bit gray: 13) is too large. JPEG is decoded at a smaller scale.

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
    options = StorageOptions(storage_options)
    folder = list_dataset(root_url, options, max_files=max_files, files=files)
    budget = Budget(max_s=_MAX_S, max_bytes=_MAX_BYTES)
    shards = [file for file in folder.files if is_archive_name(file)]
    images = [file for file in folder.files if is_image_name(file)]
    shard_bytes = sum(file.size or 0 for file in shards)
    from_shards = bool(shards) and (not images or shard_bytes >= sum(file.size or 0 for file in images))
    cells = _cells_of_shards(shards, folder, num_pictures, options, budget) if from_shards else []
    if not cells:
        cells = _cells_of_files(images, folder, num_pictures, options, budget)
    if not cells:
        return None
    sheet, file = contact_sheet(cells, num_columns=_COLUMNS, cell_pixels=_CELL_PIXELS), io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _cells_of_files(
    images: list[RemoteUrl], folder: Folder, num_pictures: int, options: StorageOptions, budget: Budget
) -> list[Cell]:
    by_folder: defaultdict[str, list[RemoteUrl]] = defaultdict(list)
    for image in images:
        by_folder[folder.path(image).rpartition("/")[0]].append(image)
    chosen = evenly_spaced(list(by_folder.values()), num_pictures)
    share = -(-num_pictures // max(1, len(chosen)))
    urls = _in_turn([evenly_spaced(files, share) for files in chosen], num_pictures)

    def read(url: RemoteUrl, wait: Callable[[float], None]) -> Image.Image | None:
        num_bytes = _MAX_IMAGE_BYTES if url.size is None else url.size
        if num_bytes > _MAX_IMAGE_BYTES or not budget.take(num_bytes):
            return None
        with READ.reserved(num_bytes, timeout_s=budget.remaining_s) as may_read, suppress(RemoteDataError):
            if may_read:
                return _thumbnail(read_whole(url, options, BRIEF_RETRY, etag=url.etag), budget)
        return None

    tasks = [partial(read, url) for url in urls]
    labels = (_folder_name(folder.path(url)) for url in urls)
    with closing(ordered_map(tasks, max_threads=_MAX_THREADS)) as images_of_urls:
        return list(zip(images_of_urls, labels, strict=True))


def _folder_name(path: str) -> str:
    """The last folder of a path, or the file's name if it is in none."""
    above, _, name = path.rpartition("/")
    return above.rpartition("/")[2] or name


def _cells_of_shards(
    shards: list[RemoteUrl], folder: Folder, num_pictures: int, options: StorageOptions, budget: Budget
) -> list[Cell]:
    chosen = evenly_spaced(shards, num_pictures)
    share = -(-num_pictures // max(1, len(chosen)))
    sizes = {str(file): file.size or 0 for file in folder.files}
    tasks = [partial(_pictures_of_shard, url, sizes, share, options, budget) for url in chosen]
    with closing(ordered_map(tasks, max_threads=_MAX_THREADS)) as found:
        drawn = _in_turn(list(found), num_pictures)
    if all(picture.key == _DAMAGED for _, picture in drawn):
        return []
    tables: dict[str, dict[str, str]] = {}  # by folder
    cells = []
    for image, picture in drawn:
        parent = picture.url.rpartition("/")[0]
        if parent not in tables:
            tables[parent] = class_names_if_readable(picture.url, sizes, options)
        cells.append((image, picture.caption(tables[parent])))
    return cells


def _in_turn(lists: list[list[Any]], num: int) -> list[Any]:
    """The first items of all lists, then the second ones, up to a number; shorter lists end earlier."""
    return list(islice((item for item in chain.from_iterable(zip_longest(*lists)) if item is not None), num))


def _pictures_of_shard(
    url: RemoteUrl,
    sizes: Mapping[str, int],
    count: int,
    options: StorageOptions,
    budget: Budget,
    wait: Callable[[float], None],
) -> list[_Drawn]:
    """Draw images from all over a shard that has an index, else the first ones."""
    found: list[_Drawn] = []
    with READ.reserved(_SHARD_BYTES, timeout_s=budget.remaining_s) as may_read, suppress(RemoteDataError):
        if not may_read:
            return [(None, Picture(str(url), url.rpartition("/")[2], None, None))]
        shard = ShardHeaders(url, options, BRIEF_RETRY)
        indexed = 0 < sizes.get(index_url(url), 0) <= MAX_TABLE_BYTES
        offsets = shard.read_index()[0] if indexed else None
        ranges = evenly_spaced(list(pairwise(offsets)), count) if offsets else []
        reading, limit = _Reading(budget), ConcurrencyLimit(1, check=lambda: None)
        wanted = images_and_labels(_MAX_IMAGE_BYTES, take=reading.take)
        with suppress(ShardReadError):  # of a wrong index or a damaged shard: reading from the start decides which
            for start, stop in ranges:
                headers = shard.between(start, stop, wanted, in_flight=limit, wait=wait, first_bytes=_FIRST_BYTES)
                with closing(headers):
                    found += reading.drawn(islice(pictures_in(headers, shard), 1))
        if not found:
            with closing(shard.from_start(wanted)) as headers:
                found += reading.drawn(islice(pictures_in(_affordable(headers, budget), shard), count))
        return found
    return [*found, (None, Picture(str(url), _DAMAGED, None, None))]


class _Reading:
    """The images of one shard, of which one sample at a time is in memory, and a member of the next one.

    Args:
        budget: of the sheet.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held_bytes = self._last_bytes = 0

    def take(self, num_bytes: int) -> bool:
        """Whether an image may be read."""
        if self._held_bytes + num_bytes > _SHARD_BYTES or not self._budget.take(num_bytes):
            return False
        self._held_bytes, self._last_bytes = self._held_bytes + num_bytes, num_bytes
        return True

    def drawn(self, pictures: Iterator[Picture]) -> Iterator[_Drawn]:
        """Shrink each image before the next one is read."""
        for picture in pictures:
            yield _thumbnail(picture.data, self._budget), replace(picture, data=None)
            self._held_bytes = self._last_bytes  # the last one may be of the next sample


def _affordable(headers: Iterator[MemberHeader], budget: Budget) -> Iterator[MemberHeader]:
    for header in headers:
        yield header
        if not budget.take(_MEMBER_BYTES):
            return


def _thumbnail(data: bytes | None, budget: Budget) -> Image.Image | None:
    """As ``thumbnail``; ``None`` also if decoding takes too much memory, or there is no time left for it."""
    num_bytes = decoding_bytes(data, _CELL_PIXELS) if data else None
    if num_bytes is None or num_bytes > MAX_DECODING_BYTES:
        return None
    return decoded_in_turn(lambda: thumbnail(data, _CELL_PIXELS), timeout_s=budget.remaining_s)
