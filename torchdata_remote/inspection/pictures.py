"""A few images of a data set, with what they are of; read by ranged requests."""

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

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy, StorageOptions
from ..core.threads.ordered_map import ordered_map
from ..core.urls import RemoteUrl, redact
from ..errors import EmptyListingError, ShardReadError
from ..fetch.listing.shard_set import ShardSet, find_shards, read_if_there
from ..formats.grouping import samples_of
from ..formats.images import IMAGE_FORMATS, is_image_name
from ..formats.sample import KEY, split_key
from ..formats.tar import MemberHeader
from ..labels import CLASSES_NAME, load_table
from .shard_headers import ShardHeads

_MAX_IMAGE_BYTES = 64 << 20
_MAX_LABEL_BYTES = 64
_MAX_THREADS = 16
_FIRST_BYTES = 256 << 10  # most samples as a whole


@dataclass(frozen=True)
class Picture:
    """An image of a sample.

    Args:
        url: of the shard.
        key: of the sample.
        data: of its first image member.
        label: content of its ``cls`` member; ``None`` if it has none.
    """

    url: str
    key: str
    data: bytes
    label: str | None


_Pictures = Generator[Picture, None, None]


def pictures(
    url: str, *, num_pictures: int, seed: int | None = None, storage_options: Mapping[str, Any] | None = None
) -> Iterator[Picture]:
    """Images of samples, one of each; only they, their labels, and headers on the way are read.

    Args:
        url: a folder of shards, its manifest, a glob, or one shard.
        num_pictures: how many, if there are as many.
        seed: draws samples at random from all shards, for which their indexes (``.idx``) are needed; of a shard
            without one the first samples are taken. ``None`` takes the first ones of the first shards.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        EmptyListingError: if there are no shards, or no images in them.
        ShardReadError: for a shard that is damaged before what is wanted.

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
    none = True
    with closing(source):
        for picture in islice(source, num_pictures):
            none = False
            yield picture
    if none and num_pictures > 0:
        shown = redact(url)
        raise EmptyListingError(
            f"{shown}: none of the samples has an image (a member .{', .'.join(sorted(IMAGE_FORMATS))}).", url=shown
        )


def class_names(shard_url: str, *, storage_options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Class number, as ``cls`` members hold it -> name, from the ``classes.json`` beside a shard; nothing without it.

    Raises:
        LabelError: if there is one that is no class table.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/foxes/classes.json", b'{"n02119789": {"id": 0, "name": "kit_fox"}}')
        >>> class_names("memory://foxes/0.tar")
        {'0': 'kit_fox'}
    """
    url = shard_url[: shard_url.rindex("/") + 1] + CLASSES_NAME
    data = read_if_there(url, StorageOptions(storage_options), RetryPolicy())
    table = {} if data is None else load_table(data, url)
    return {str(entry["id"]): entry["name"] for entry in table.values()}


def _wanted(name: str, num_bytes: int) -> bool:
    extension = split_key(name)[1]
    if extension == "cls":
        return num_bytes <= _MAX_LABEL_BYTES
    return is_image_name(extension) and num_bytes <= _MAX_IMAGE_BYTES


def _pictures_in(heads: Iterable[MemberHeader], shard: ShardHeads) -> Iterator[Picture]:
    """An image of each sample that has one: where possible one whose extension is no more than a format's."""
    runs = (([head.name], [head]) for head in heads)
    for sample in samples_of(runs, url=shard.shown, on_bad_member=lambda error: None):  # type: ignore[arg-type]  # any values
        members = {
            name: head for name, head in sample.items() if isinstance(head, MemberHeader) and head.data is not None
        }
        images = sorted((name for name in members if is_image_name(name)), key=lambda name: "." in name)
        if images:
            data, label = members[images[0]].data, members.get("cls")
            assert data is not None
            text = None if label is None or label.data is None else label.data.decode("utf-8", "backslashreplace")
            yield Picture(str(shard.url), sample[KEY], data, None if text is None else text.strip())


def _first(found: ShardSet, options: StorageOptions, retry: RetryPolicy) -> _Pictures:
    for url in found.shards:
        shard = ShardHeads(url, options, retry)
        with closing(shard.from_the_start(_wanted)) as heads:
            yield from _pictures_in(heads, shard)


def _drawn(found: ShardSet, num_pictures: int, seed: int, options: StorageOptions, retry: RetryPolicy) -> _Pictures:
    """Samples from all shards, in random order; each is as likely as any other where a manifest tells how many are."""
    numbers = random.Random(seed)
    in_flight = ConcurrencyLimit(_MAX_THREADS, check=lambda: None)

    def look(number: int, count: int, wait: Callable[[float], None]) -> list[Picture]:
        shard = ShardHeads(found.shards[number], options, retry)
        offsets, _ = shard.read_index()
        if offsets is not None:
            chosen = random.Random(f"{seed} {number}").sample(range(len(offsets) - 1), min(count, len(offsets) - 1))
            with suppress(ShardReadError):  # whether it is the shard or the index, reading from the start will tell
                found_here: list[Picture] = []
                for sample in chosen:
                    place = offsets[sample], offsets[sample + 1]
                    heads = shard.between(*place, _wanted, in_flight=in_flight, wait=wait, first_bytes=_FIRST_BYTES)
                    found_here += _pictures_in(heads, shard)
                return found_here
        with closing(shard.from_the_start(_wanted)) as heads:
            return list(islice(_pictures_in(heads, shard), count))

    asked = _asked(found.shards, num_pictures, numbers)
    tasks = [partial(look, number, count) for number, count in sorted(asked.items())]
    drawn = list(chain.from_iterable(ordered_map(tasks, max_threads=_MAX_THREADS)))
    numbers.shuffle(drawn)
    yield from drawn


def _asked(shards: Sequence[RemoteUrl], num_pictures: int, numbers: random.Random) -> Counter[int]:
    """How many samples are taken from which shard, by its number."""
    counts = [shard.num_samples for shard in shards if shard.num_samples is not None]
    if len(counts) == len(shards):
        ends = list(accumulate(counts))
        drawn = numbers.sample(range(ends[-1]), min(num_pictures, ends[-1]))
        return Counter(bisect_right(ends, sample) for sample in drawn)
    weights = [shard.size or 1 for shard in shards]
    return Counter(numbers.choices(range(len(shards)), weights, k=num_pictures))
