"""Virtual shards: samples that are chosen from one or several tar shards, or shards that are read side by side.

A view is the list of byte ranges that make up its samples. Their bytes, one after the other, are a tar without its end,
so readers need not know that it was put together. The URL holds the complete view: it can be pickled, shuffled, split
and compared like any other, and no plan has to be made again where it is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from .urls import RemoteUrl, VirtualUrl

Ints = npt.NDArray[np.int64]

BLOCK = 512  # bytes: the unit of tar archives
_KINDS = ("<i1", "<i2", "<i4", "<i8")
_DIGEST_BYTES = 8


class ShardView:
    """Samples that are put together from byte ranges of tar shards. It takes 7 or 8 bytes for a range.

    Args:
        urls: of the shards, with sizes, and etags and MD5s if they are known; errors and samples name the first one.
        counts: number of ranges of each sample; shape ``(num_samples,)``.
        objects: index in ``urls`` of each range; shape ``(num_ranges,)``.
        starts: first byte of each range, a multiple of 512; shape ``(num_ranges,)``.
        stops: the byte after its last one, a multiple of 512; shape ``(num_ranges,)``.
        key_sums: :func:`key_sum` of the key of each sample; shape ``(num_samples,)``. ``None`` if they are verified.
    """

    __slots__ = ("_columns", "urls")

    def __init__(
        self,
        urls: tuple[RemoteUrl, ...],
        counts: Ints,
        objects: Ints,
        starts: Ints,
        stops: Ints,
        key_sums: Ints | None = None,
    ) -> None:
        columns = [counts, objects, starts // BLOCK, (stops - starts) // BLOCK, key_sums]
        self.urls = urls
        self._columns = [small(column) for column in columns if column is not None]

    def _column(self, number: int) -> Ints:
        return self._columns[number].astype(np.int64)

    @property
    def counts(self) -> Ints:
        """Number of ranges of each sample."""
        return self._column(0)

    @property
    def objects(self) -> Ints:
        """Index in ``urls`` of each range."""
        return self._column(1)

    @property
    def starts(self) -> Ints:
        """First byte of each range."""
        return self._column(2) * BLOCK

    @property
    def stops(self) -> Ints:
        """The byte after the last one of each range."""
        return self.starts + self._column(3) * BLOCK

    @property
    def key_sums(self) -> Ints | None:
        """Checksums of the keys, if the keys are not verified."""
        return self._column(4) if len(self._columns) > 4 else None

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self._columns[0])

    @property
    def num_bytes(self) -> int:
        """Bytes of all samples."""
        return int(self._column(3).sum()) * BLOCK

    def with_urls(self, urls: tuple[RemoteUrl, ...]) -> ShardView:
        """Return the same ranges of these shards."""
        return ShardView(urls, self.counts, self.objects, self.starts, self.stops, self.key_sums)

    def digest(self) -> str:
        """Return a digest of the ranges."""
        digest = blake2b(digest_size=_DIGEST_BYTES)
        for column in self._columns:
            digest.update(f"{column.dtype.str} {len(column)} ".encode() + column.tobytes())
        return digest.hexdigest()


def small(column: Ints) -> npt.NDArray[Any]:
    """Return a column in the smallest type that holds its values."""
    widest = max(-int(column.min(initial=0)), int(column.max(initial=0)))
    return column.astype(next(kind for kind in _KINDS if widest <= np.iinfo(kind).max))


def key_sum(key: str) -> int:
    """Return a checksum of 15 bits: of two keys that were exchanged, one in 32,768 has that of the other.

    >>> key_sum("train/000017"), key_sum("train/000018")
    (13372, 10669)
    """
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) & 0x7FFF


def key_sums(keys: Iterable[str]) -> Ints:
    """Return the checksum of each key."""
    return np.array([key_sum(key) for key in keys], np.int64)


def view_url(view: ShardView) -> RemoteUrl:
    """Return the URL of a view: its size is that of all samples, its etag a digest of all ranges and versions."""
    etag = _digest([view.digest(), *((str(url), url.size, url.etag, url.md5) for url in view.urls)])
    return VirtualUrl(view.urls, view, None, view.num_bytes, etag, None, view.num_samples)


def joined_url(shards: Sequence[RemoteUrl]) -> RemoteUrl:
    """Return the URL of shards that are read side by side: its size is that of all, its etag a digest of all versions.

    Args:
        shards: one of each set; errors and samples name the first one.

    >>> url = joined_url([RemoteUrl("s3://photos/0.tar", 3_000, num_samples=2), RemoteUrl("s3://captions/0.tar")])
    >>> url.num_samples, split_joined_url(url.part(0, 1))[1].samples
    (2, (0, 1))
    """
    sizes = [shard.size for shard in shards]
    size = None if None in sizes else sum(filter(None, sizes))
    etag = _digest([shard.__getnewargs__() for shard in shards])
    return VirtualUrl(tuple(shards), None, None, size, etag, None, shards[0].num_samples)


def _digest(what: Any) -> str:
    return blake2b(repr(what).encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def split_joined_url(url: str) -> tuple[str, ...]:
    """Return the URLs of joined shards, or the URL itself if it is another one. A range of samples is kept."""
    if not isinstance(url, VirtualUrl) or url.view is not None or len(url.shards) == 1:
        return (url,)
    samples = url.samples
    return url.shards if samples is None else tuple(shard.part(*samples) for shard in url.shards)


def is_view(url: str) -> bool:
    """Whether a URL stands for selected samples of shards."""
    return isinstance(url, VirtualUrl) and url.view is not None


def named_shard(url: str) -> str:
    """Return the URL of the shard that a view, or a part of a shard, names; other URLs unchanged."""
    return url.shards[0] if isinstance(url, VirtualUrl) else url


def split_view_url(url: str) -> tuple[str, ShardView | None]:
    """Split a URL into that of the shard that it names and the view, which is ``None`` for other URLs."""
    view = url.view if isinstance(url, VirtualUrl) else None
    return (url, None) if view is None else (view.urls[0], view)
