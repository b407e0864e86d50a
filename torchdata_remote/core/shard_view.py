"""Virtual shards: samples that are chosen from one or several tar shards, as one URL.

A view is the list of byte ranges that make up its samples. Their bytes, one after the other, are a tar without its end,
so readers need not know that it was put together. The URL holds the complete view: it can be pickled, shuffled, split
and compared like any other, and no plan has to be made again where it is read.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import UrlError
from .coded_url import coded_url, decode, encode, split_coded_url
from .urls import RemoteUrl, redact

Ints = npt.NDArray[np.int64]

BLOCK = 512  # bytes: the unit of tar archives
_MARK = "view"
_KINDS = {np.dtype(kind).str: kind for kind in ("<i1", "<i2", "<i4", "<i8")}


class ShardView(NamedTuple):
    """Samples that are put together from byte ranges of tar shards.

    Args:
        urls: of the shards, with sizes, and etags and MD5s if they are known; errors and samples name the first one.
        counts: number of ranges of each sample; shape ``(num_samples,)``.
        objects: index in ``urls`` of each range; shape ``(num_ranges,)``.
        starts: first byte of each range, a multiple of 512; shape ``(num_ranges,)``.
        stops: the byte after its last one, a multiple of 512; shape ``(num_ranges,)``.
        key_sums: :func:`key_sum` of the key of each sample; shape ``(num_samples,)``. ``None`` if they are verified.
    """

    urls: tuple[RemoteUrl, ...]
    counts: Ints
    objects: Ints
    starts: Ints
    stops: Ints
    key_sums: Ints | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all samples."""
        return int((self.stops - self.starts).sum())

    def samples(self, first: int, last: int) -> ShardView:
        """Return a view of samples ``first`` to ``last`` (exclusive), of the same shards."""
        ends = np.cumsum(self.counts)
        start, stop = (int(ends[at - 1]) if at else 0 for at in (first, last))
        within = slice(start, stop)
        return ShardView(
            self.urls,
            self.counts[first:last],
            self.objects[within],
            self.starts[within],
            self.stops[within],
            None if self.key_sums is None else self.key_sums[first:last],
        )


def key_sum(key: str) -> int:
    """Return a checksum of 15 bits: of two keys that were exchanged, one in 32,768 has that of the other.

    >>> key_sum("train/000017"), key_sum("train/000018")
    (13372, 10669)
    """
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) & 0x7FFF


def view_url(view: ShardView) -> RemoteUrl:
    """Return the URL of a view: its size is that of all samples, its etag a digest of all ranges and versions."""
    code = _encoded(view)
    url = coded_url(_MARK, code, view.urls[0])
    return RemoteUrl(url, view.num_bytes, f"{zlib.crc32(code.encode()):08x}", num_samples=len(view.counts))


def is_view(url: str) -> bool:
    """Whether a URL stands for selected samples of shards."""
    return url.startswith(f"{_MARK}+")


def named_shard(url: str) -> str:
    """Return the URL of the shard that a view names, which is its first one; other URLs unchanged.

    The view is not decoded: see :func:`split_view_url` for the check of its URL.
    """
    found = split_coded_url(_MARK, url) if is_view(url) else None
    return url if found is None else found.url


def split_view_url(url: str) -> tuple[str, ShardView | None]:
    """Split a URL into that of the shard that it names and the view, which is ``None`` for other URLs.

    Raises:
        UrlError: if the end of the URL or its code were changed.
    """
    if not is_view(url):
        return url, None
    found = split_coded_url(_MARK, url)
    if found is None:
        raise _changed(url)
    try:
        view = _decoded(found.code, found.url)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, zlib.error) as error:
        raise _changed(url) from error
    return view.urls[0], view


def _changed(url: str) -> UrlError:
    shown = redact(url)
    return UrlError(
        f"{shown} stands for selected samples, and was changed: put a map() of URLs before select() or join().",
        url=shown,
    )


def _encoded(view: ShardView) -> str:
    order, lengths = np.argsort(view.objects, kind="stable"), (view.stops - view.starts) // BLOCK
    gaps = _gaps(view.objects[order], view.starts[order] // BLOCK, lengths[order])
    columns = [_small(column) for column in (view.counts, np.diff(view.objects, prepend=0), gaps, lengths[order])]
    if view.key_sums is not None:
        columns.append(view.key_sums.astype("<i2"))
    head = {
        "urls": [[str(url) if at else "", url.size, url.etag, url.md5] for at, url in enumerate(view.urls)],
        "columns": [[column.dtype.str, len(column)] for column in columns],
    }
    body = b"".join(
        [json.dumps(head, separators=(",", ":")).encode(), b"\n", *(column.tobytes() for column in columns)]
    )
    return encode(body)


@lru_cache(8)
def _decoded(code: str, first_url: str) -> ShardView:
    head, _, rest = decode(code).partition(b"\n")
    described = json.loads(head)
    columns, at = [], 0
    for kind, length in described["columns"]:
        if kind not in _KINDS:
            raise ValueError("a column of another type")
        column = np.frombuffer(rest, np.dtype(kind), length, at)
        at += column.nbytes
        columns.append(column.astype(np.int64))
    counts, steps, gaps, lengths, *key_sums = columns
    objects = np.cumsum(steps)
    has_key_of_each = all(len(column) == len(counts) for column in key_sums)
    if not has_key_of_each or not int(counts.sum()) == len(objects) == len(gaps) == len(lengths):
        raise ValueError("columns of different lengths")
    order = np.argsort(objects, kind="stable")
    starts, stops = np.empty_like(gaps), np.empty_like(gaps)
    stops[order] = _stops(objects[order], gaps, lengths) * BLOCK
    starts[order] = stops[order] - lengths * BLOCK
    urls = tuple(
        RemoteUrl(url if number else first_url, size, etag, md5=md5)
        for number, (url, size, etag, md5) in enumerate(described["urls"])
    )
    view = ShardView(urls, counts, objects, starts, stops, *key_sums)
    _require_possible(view)
    return view


def _require_possible(view: ShardView) -> None:
    """Require samples of at least one range, in objects and bytes that there may be."""
    for url in view.urls:
        if not (url.size is None or type(url.size) is int) or not isinstance(url.etag, str | None):
            raise ValueError("a size or an etag of another type")
    objects, lengths = view.objects, view.stops - view.starts
    if (view.counts < 1).any() or (objects < 0).any() or (objects >= len(view.urls)).any():
        raise ValueError("a sample without ranges, or a range of no object")
    if (view.starts < 0).any() or (lengths < BLOCK).any():
        raise ValueError("a range without bytes, or before the first one")


def _gaps(objects: Ints, starts: Ints, lengths: Ints) -> Ints:
    """Return the distance of each range from the end of the one before it in its object; sorted by object."""
    previous = np.append(0, (starts + lengths)[:-1])
    previous[_firsts(objects)] = 0
    gaps: Ints = starts - previous
    return gaps


def _stops(objects: Ints, gaps: Ints, lengths: Ints) -> Ints:
    """Return the end of each range, from :func:`_gaps`."""
    ends, firsts = np.cumsum(gaps + lengths), _firsts(objects)
    before = np.append(0, ends)[firsts]
    stops: Ints = ends - np.repeat(before, np.diff(np.append(firsts, len(objects))))
    return stops


def _firsts(objects: Ints) -> Any:
    """Return the index of the first range of each object; sorted by object."""
    return np.flatnonzero(np.diff(objects, prepend=-1))


def _small(column: Ints) -> npt.NDArray[Any]:
    """Return a column in the smallest type that holds its values."""
    widest = max(-int(column.min(initial=0)), int(column.max(initial=0)))
    kind = next(kind for kind in _KINDS.values() if widest <= np.iinfo(kind).max)
    return column.astype(kind)
