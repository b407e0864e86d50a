"""Find images in shards by ranged requests, with labels and class names."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import ConcurrencyLimit
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl, redact
from ..errors import EmptyListingError, RemoteDataError, ShardReadError
from ..fetch.listing.shard_set import ShardSet, find_shards, read_if_there
from ..formats.images import IMAGE_FORMATS, is_image_name
from ..formats.sample import KEY, split_key
from ..formats.tar import MemberHeader
from ..labels import CLASSES_NAME, load_table
from .label_member import LABEL_EXTENSION, decode_label, is_label
from .shard_headers import ShardHeaders, Wanted, group_headers

MAX_TABLE_BYTES = 16 << 20  # of an index or a class table
_MAX_IMAGE_BYTES = 64 << 20
_MAX_THREADS = 16
_FIRST_BYTES = 256 << 10  # most samples as a whole


@dataclass(frozen=True)
class Picture:
    """An image of a sample.

    Args:
        url: of the shard.
        key: of the sample.
        data: of its first image member; ``None`` if they were not read.
        label: content of its ``cls`` member; ``None`` if it has none.
    """

    url: str
    key: str
    data: bytes | None
    label: str | None

    def caption(self, names: Mapping[str, str]) -> str:
        """Return the class's name, else the label, else the key without its folders."""
        return self.key.rpartition("/")[2] if self.label is None else class_name(self.label, names)


_Pictures = Generator[Picture, None, None]


def pictures(
    url: str, *, num_pictures: int, seed: int | None = None, storage_options: Mapping[str, Any] | None = None
) -> Iterator[Picture]:
    """Read one image from each of several samples.

    Only the images, their labels, and the headers before them are read.

    Args:
        url: a folder of shards, its manifest, a glob, or one shard.
        num_pictures: how many, if there are as many.
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
    found = find_shards(url, options, retry)
    source = _first(found, options, retry) if seed is None else _drawn(found, num_pictures, seed, options, retry)
    empty = True
    with closing(source):
        for picture in islice(source, num_pictures):
            empty = False
            yield picture
    if empty and num_pictures > 0:
        shown = redact(url)
        raise EmptyListingError(
            f"{shown}: none of the samples has an image (a member .{', .'.join(sorted(IMAGE_FORMATS))}).", url=shown
        )


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


def pictures_in(headers: Iterable[MemberHeader], shard: ShardHeaders) -> Iterator[Picture]:
    """Yield an image of each sample that has one: an image that was read before others, ``png`` before ``seg.png``."""
    for sample in group_headers(headers, url=shard.shown, on_bad_member=lambda error: None):
        names = sorted(filter(is_image_name, sample), key=lambda name: (sample[name].data is None, "." in name))
        if names:
            label = decode_label(sample.get(LABEL_EXTENSION))
            yield Picture(str(shard.url), sample[KEY], sample[names[0]].data, label)


def class_name(label: str, names: Mapping[str, str]) -> str:
    """Return the name of a class number, or the label itself if it has none.

    Example:
        >>> class_name("01", {"1": "kit fox"}), class_name("dog", {})
        ('kit fox', 'dog')
    """
    return names.get(label.lstrip("0") or "0", label)


def class_names(shard_url: str, *, storage_options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Read the class table (``classes.json``) beside a shard: class number, as in ``cls`` members -> name.

    Empty if there is none.

    Raises:
        LabelError: if the file is not a class table.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/foxes/classes.json", b'{"n02119789": {"id": 0, "name": "kit_fox"}}')
        >>> class_names("memory://foxes/0.tar")
        {'0': 'kit_fox'}
    """
    url = _table_url(shard_url)
    data = read_if_there(url, StorageOptions(storage_options), RetryPolicy())
    table = {} if data is None else load_table(data, url)
    return {str(entry["id"]): entry["name"] for entry in table.values()}


def class_names_if_readable(shard_url: str, sizes: Mapping[str, int], options: StorageOptions) -> dict[str, str]:
    """As ``class_names``, but empty if the table is not listed in ``sizes``, is over 16 MiB or cannot be used."""
    if sizes.get(_table_url(shard_url), MAX_TABLE_BYTES + 1) > MAX_TABLE_BYTES:
        return {}
    try:
        return class_names(shard_url, storage_options=options)
    except RemoteDataError:
        return {}


def _table_url(shard_url: str) -> str:
    return shard_url[: shard_url.rindex("/") + 1] + CLASSES_NAME


def _read_pictures(headers: Iterable[MemberHeader], shard: ShardHeaders) -> Iterator[Picture]:
    return (picture for picture in pictures_in(headers, shard) if picture.data is not None)


def _first(found: ShardSet, options: StorageOptions, retry: RetryPolicy) -> _Pictures:
    wanted = images_and_labels(_MAX_IMAGE_BYTES)
    for url in found.shards:
        shard = ShardHeaders(url, options, retry)
        with closing(shard.from_start(wanted)) as headers:
            yield from _read_pictures(headers, shard)


def _drawn(found: ShardSet, num_pictures: int, seed: int, options: StorageOptions, retry: RetryPolicy) -> _Pictures:
    """Yield random samples of all shards in random order: uniform if a manifest gives each shard's sample count."""
    numbers = random.Random(seed)
    in_flight = ConcurrencyLimit(_MAX_THREADS, check=lambda: None)
    wanted = images_and_labels(_MAX_IMAGE_BYTES)

    def read(number: int, count: int, wait: Callable[[float], None]) -> list[Picture]:
        shard = ShardHeaders(found.shards[number], options, retry)
        offsets, _ = shard.read_index()
        if offsets is not None:
            chosen = random.Random(f"{seed} {number}").sample(range(len(offsets) - 1), min(count, len(offsets) - 1))
            with suppress(ShardReadError):  # of a wrong index or a damaged shard: reading from the start decides which
                drawn: list[Picture] = []
                for sample in chosen:
                    bounds = offsets[sample], offsets[sample + 1]
                    headers = shard.between(*bounds, wanted, in_flight=in_flight, wait=wait, first_bytes=_FIRST_BYTES)
                    drawn += _read_pictures(headers, shard)
                return drawn
        with closing(shard.from_start(wanted)) as headers:
            return list(islice(_read_pictures(headers, shard), count))

    counts = _samples_per_shard(found.shards, num_pictures, numbers)
    tasks = [partial(read, number, count) for number, count in sorted(counts.items())]
    drawn = list(chain.from_iterable(ordered_map(tasks, max_threads=_MAX_THREADS)))
    numbers.shuffle(drawn)
    yield from drawn


def _samples_per_shard(shards: Sequence[RemoteUrl], num_pictures: int, numbers: random.Random) -> Counter[int]:
    """Shard number -> samples to take from it."""
    counts = [shard.num_samples for shard in shards if shard.num_samples is not None]
    if len(counts) == len(shards):
        ends = list(accumulate(counts))
        drawn = numbers.sample(range(ends[-1]), min(num_pictures, ends[-1]))
        return Counter(bisect_right(ends, sample) for sample in drawn)
    weights = [shard.size or 1 for shard in shards]
    return Counter(numbers.choices(range(len(shards)), weights, k=num_pictures))
