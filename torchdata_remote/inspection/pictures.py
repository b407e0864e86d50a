"""Find images in shards by ranged requests, and draw them in a grid, each with its label."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from ..core.files import replaced, require_replaceable
from ..core.options import RetryPolicy, StorageOptions
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl, redact
from ..errors import EmptyListingError, RemoteDataError, ShardReadError
from ..fetch.listing.shard_set import find_shards
from ..formats.decoders import MAX_PIXELS, rgb
from ..formats.decoders._pictures import open_image
from ..formats.images import IMAGE_FORMATS, is_image_name
from ..formats.sample import KEY, split_key
from ..formats.tar import MemberHeader
from .shards import ShardHeaders, Wanted, class_name, group_headers, is_label, label_of

_MAX_IMAGE_BYTES = 64 << 20
_MAX_THREADS = 16
_FIRST_BYTES = 256 << 10  # most samples as a whole
_PAGE, _FRAME, _TEXT, _PALE = (255, 255, 255), (238, 238, 240), (32, 33, 36), (160, 160, 166)
_ELLIPSIS = "..."  # three dots, which every font has
_MIN_FONT_PIXELS, _MAX_FONT_PIXELS = 10, 22
_MAX_SHEET_PIXELS = 1 << 26

Cell = tuple[Image.Image | None, str]


@dataclass(frozen=True)
class Picture:
    """An image of a sample.

    Args:
        url: of the shard.
        key: of the sample.
        image: its first image member, shrunk; ``None`` if it was not read, or cannot be decoded.
        label: content of its ``cls`` member; ``None`` if it has none.
    """

    url: str
    key: str
    image: Image.Image | None
    label: str | None

    def caption(self, names: Mapping[str, str]) -> str:
        """Return the class's name, else the label, else the key without its folders."""
        return self.key.rpartition("/")[2] if self.label is None else class_name(self.label, names)


def pictures(
    url: str,
    *,
    num_pictures: int,
    cell_pixels: int = 160,
    seed: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[Picture]:
    """Read one image from each of several samples.

    Only the images, their labels, and the headers before them are read.

    Args:
        url: a folder of shards, its manifest, a glob, or one shard.
        num_pictures: how many, if there are as many.
        cell_pixels: side of the square that they fit into.
        seed: draws samples at random from all shards. This needs their indexes (``.idx``); from a shard without one
            the first samples are taken. ``None`` takes the first samples of the first shards.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        EmptyListingError: if there are no shards, or no images in them.
        ShardReadError: for a shard that is damaged before the images that are wanted.

    Example:
        >>> from PIL import Image
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://gallery/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "png": Image.new("RGB", (8, 8)), "cls": i}) for i in range(9)]
        >>> [(one.key, one.label) for one in pictures("memory://gallery/", num_pictures=2)]
        [('0', '0'), ('1', '1')]
    """
    options, retry = StorageOptions(storage_options), RetryPolicy()
    shards = find_shards(url, options, retry).shards
    wanted, draw = images_and_labels(_MAX_IMAGE_BYTES), partial(thumbnail, cell_pixels=cell_pixels)
    if seed is None:
        found: Iterator[Picture] = chain.from_iterable(
            _from_start(ShardHeaders(one, options, retry), wanted, draw) for one in shards
        )
    else:

        def read(number: int, num: int) -> list[Picture]:
            def choose(of: int) -> list[int]:
                return random.Random(f"{seed} {number}").sample(range(of), min(num, of))

            shard = ShardHeaders(shards[number], options, retry)
            return chosen_pictures(shard, wanted, choose, num, draw, first_bytes=_FIRST_BYTES)

        numbers = random.Random(seed)
        drawn = sorted(_samples_per_shard(shards, num_pictures, numbers).items())
        tasks = [lambda wait, task=task: read(*task) for task in drawn]
        in_order = list(chain.from_iterable(ordered_map(tasks, max_threads=_MAX_THREADS)))
        numbers.shuffle(in_order)
        found = iter(in_order)
    empty = True
    for picture in islice(found, num_pictures):
        empty = False
        yield picture
    if empty:
        shown = redact(url)
        raise EmptyListingError(
            f"{shown}: none of the samples has an image (a member .{', .'.join(sorted(IMAGE_FORMATS))}).", url=shown
        )


def chosen_pictures(
    shard: ShardHeaders,
    wanted: Wanted,
    choose: Callable[[int], Sequence[int]],
    num: int,
    draw: Callable[[bytes | None], Image.Image | None],
    *,
    first_bytes: int,
) -> list[Picture]:
    """Read images of some samples of a shard that has an index, or else of the first ones.

    Args:
        shard: that is read.
        wanted: decides whose data are read.
        choose: number of samples -> those that are read.
        num: how many.
        draw: shrinks an image before the next one is read.
        first_bytes: length of the first request for a sample.
    """
    offsets, _ = shard.read_index()
    if offsets is not None:
        with suppress(ShardReadError):  # of a wrong index or a damaged shard: reading from the start decides which
            found: list[Picture] = []
            for sample in choose(len(offsets) - 1):
                with closing(shard.read(wanted, *offsets[sample : sample + 2], first_bytes=first_bytes)) as headers:
                    found += islice(_pictures_in(headers, shard, draw), 1)
            return found
    return list(islice(_from_start(shard, wanted, draw), num))


def _from_start(
    shard: ShardHeaders, wanted: Wanted, draw: Callable[[bytes | None], Image.Image | None]
) -> Iterator[Picture]:
    with closing(shard.read(wanted)) as headers:
        yield from _pictures_in(headers, shard, draw)


def images_and_labels(max_image_bytes: int, *, take: Callable[[int], bool] = lambda num_bytes: True) -> Wanted:
    """Make a filter for the members to read: images up to a size, and labels.

    Args:
        max_image_bytes: larger images are not read.
        take: called with the bytes of each image; returns whether it may be read.
    """

    def wanted(name: str, num_bytes: int) -> bool:
        if is_image_name(split_key(name)[1]):
            return num_bytes <= max_image_bytes and take(num_bytes)
        return is_label(name, num_bytes)

    return wanted


def _pictures_in(
    headers: Iterable[MemberHeader], shard: ShardHeaders, draw: Callable[[bytes | None], Image.Image | None]
) -> Iterator[Picture]:
    """Yield an image of each sample that has one: an image that was read before others, ``png`` before ``seg.png``."""
    for sample in group_headers(headers, url=shard.shown, on_bad_member=lambda error: None):
        names = sorted(filter(is_image_name, sample), key=lambda name: (sample[name].data is None, "." in name))
        if names:
            yield Picture(str(shard.url), sample[KEY], draw(sample[names[0]].data), label_of(sample))


def _samples_per_shard(shards: Sequence[RemoteUrl], num_pictures: int, numbers: random.Random) -> Counter[int]:
    """Shard number -> samples to take from it: uniform if a manifest gives each shard's sample count."""
    counts = [shard.num_samples for shard in shards if shard.num_samples is not None]
    if len(counts) == len(shards):
        return Counter(numbers.sample(range(len(shards)), min(num_pictures, sum(counts)), counts=counts))
    weights = [shard.size or 1 for shard in shards]
    return Counter(numbers.choices(range(len(shards)), weights, k=num_pictures))


def contact_sheet(cells: Sequence[Cell], *, num_columns: int, cell_pixels: int = 160) -> Image.Image:
    """Draw images in a grid, scaled into square cells and centred, with a label under each.

    Args:
        cells: at least one image and its label; ``None`` where the image cannot be shown.
        num_columns: cells in a row.
        cell_pixels: side of a cell without margin and label.

    Returns:
        An RGB image, as wide as the columns that are used.

    Raises:
        RemoteDataError: if cells are smaller than 16 pixels, or the picture would have more than 67 million pixels.

    Example:
        >>> cells = [(Image.new("RGB", (300, 200), "green"), "grass"), (None, "not an image")]
        >>> contact_sheet(cells, num_columns=2, cell_pixels=100).size
        (218, 128)
    """
    columns = min(num_columns, len(cells))
    rows = -(-len(cells) // columns)
    margin = max(4, cell_pixels // 16)
    font_pixels = min(_MAX_FONT_PIXELS, max(_MIN_FONT_PIXELS, cell_pixels // 9))
    font = ImageFont.load_default(font_pixels)
    label_pixels = font_pixels * 3 // 2
    width = columns * (cell_pixels + margin) + margin
    height = rows * (cell_pixels + label_pixels + margin) + margin
    if cell_pixels < 16 or width * height > _MAX_SHEET_PIXELS:
        raise RemoteDataError(
            f"{rows} x {columns} cells of {cell_pixels} pixels make a picture of {width:,} x {height:,}. Cells have 16 "
            f"pixels at least, and a picture {_MAX_SHEET_PIXELS:,} at most."
        )
    sheet = Image.new("RGB", (width, height), _PAGE)
    draw = ImageDraw.Draw(sheet)
    for number, (image, label) in enumerate(cells):
        row, column = divmod(number, columns)
        left = margin + column * (cell_pixels + margin)
        top = margin + row * (cell_pixels + label_pixels + margin)
        right, bottom = left + cell_pixels - 1, top + cell_pixels - 1
        draw.rectangle((left, top, right, bottom), fill=_FRAME)
        if image is None:
            inset, line = cell_pixels // 3, max(2, cell_pixels // 40)
            for start, end in ((top + inset, bottom - inset), (bottom - inset, top + inset)):
                draw.line((left + inset, start, right - inset, end), fill=_PALE, width=line)
        else:
            scaled = _scaled(image, cell_pixels)
            sheet.paste(scaled, (left + (cell_pixels - scaled.width) // 2, top + (cell_pixels - scaled.height) // 2))
        middle = (left + cell_pixels / 2, top + cell_pixels + label_pixels / 2)
        draw.text(middle, _shortened(label, font, cell_pixels), fill=_TEXT, font=font, anchor="mm")
    return sheet


def _scaled(image: Image.Image, cell_pixels: int) -> Image.Image:
    """As large as the cell allows; tiny images, such as digits of 8 pixels, keep their square pixels."""
    scale = min(cell_pixels / image.width, cell_pixels / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    method = Image.Resampling.NEAREST if scale >= 4 else Image.Resampling.LANCZOS
    return image.convert("RGB").resize(size, method, reducing_gap=3.0)


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, max_pixels: int) -> str:
    """Shorten a text to one line, with an ellipsis where it was cut; unprintable characters become spaces."""
    text = "".join(character if character.isprintable() else " " for character in text[:1000]).strip()
    end = ""
    while text and font.getlength(text + end) > max_pixels:
        text, end = text[:-1].rstrip(), _ELLIPSIS
    return text + end


def thumbnail(data: bytes | None, cell_pixels: int, *, max_pixels: int = MAX_PIXELS) -> Image.Image | None:
    """Decode an image and shrink it to fit a cell; ``None`` if it is missing, too large, or no image.

    Args:
        data: a whole file.
        cell_pixels: side of the cell.
        max_pixels: of an image that is decoded as a whole; of others, a JPEG that is not progressive, ``MAX_PIXELS``.
    """
    if not data:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow, about a large picture; of ours, about one of 16 bits
            with open_image(data) as opened:
                is_scaled = opened.format == "JPEG" and not opened.info.get("progressive")
                if opened.width * opened.height > (MAX_PIXELS if is_scaled else max_pixels):
                    return None
            image = rgb(data, min_size=cell_pixels)
    except Exception:  # noqa: BLE001  # Pillow raises nearly anything for damaged images
        return None
    image.thumbnail((cell_pixels, cell_pixels), Image.Resampling.LANCZOS)
    return image


def save_picture(save: Callable[[str], object], path: str) -> None:
    """Write a picture; an existing file is replaced when the new one is complete.

    Args:
        save: writes it to a path, in the format of its extension.
        path: of the file.

    Raises:
        RemoteDataError: if it cannot be written.
    """
    require_replaceable(path)
    try:
        with replaced(path) as partial:
            save(partial)
    except (KeyError, OSError, RuntimeError, ValueError) as error:  # a full disk; no such format can be written
        reason = getattr(error, "strerror", None) or f"{error}. Use a name such as out.png"
        raise RemoteDataError(f"{path}: the picture cannot be written: {reason}") from error
