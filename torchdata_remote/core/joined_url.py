"""URLs of joined shards: shards of several sets that have the same samples in the same order, as one URL.

Like that of a view, the URL holds all that readers need: the URL of each shard, its size, version and checksums.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from ..errors import UrlError
from .checksums import Checksums
from .coded_url import coded_url, decode, encode, split_coded_url
from .urls import RemoteUrl, redact, split_sample_range

_MARK = "joined"


def joined_url(shards: Sequence[RemoteUrl]) -> RemoteUrl:
    """Return the URL of shards that are read side by side: its size is that of all, its etag a digest of all versions.

    Args:
        shards: one of each set; errors and samples name the first one.

    >>> url = joined_url([RemoteUrl("s3://photos/0.tar", 3_000, num_samples=2), RemoteUrl("s3://captions/0.tar")])
    >>> url.endswith("s3://photos/0.tar+joined"), url.num_samples
    (True, 2)
    >>> split_joined_url(url.part(0, 1))[1]
    'samples+0-1+s3://captions/0.tar+samples+0-1'
    """
    fields = [["" if number == 0 else str(shard), *shard.__getnewargs__()[1:]] for number, shard in enumerate(shards)]
    text = json.dumps(fields, separators=(",", ":")).encode()
    sizes = [shard.size for shard in shards]
    size = None if None in sizes else sum(filter(None, sizes))
    return RemoteUrl(
        coded_url(_MARK, encode(text), shards[0]),
        size,
        f"{zlib.crc32(text):08x}",
        num_samples=shards[0].num_samples,
    )


def split_joined_url(url: str) -> tuple[str, ...]:
    """Return the URLs of joined shards, or the URL itself if it is that of one shard. A range of samples is kept.

    Raises:
        UrlError: if the end of the URL or its code were changed.
    """
    whole, samples = split_sample_range(url)
    if not whole.startswith(f"{_MARK}+"):
        return (url,)
    found = split_coded_url(_MARK, whole)
    if found is None:
        raise _changed(whole)
    try:
        listed = enumerate(json.loads(decode(found.code)))
        shards = [_shard(found.url if number == 0 else fields[0], *fields[1:]) for number, fields in listed]
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, zlib.error) as error:
        raise _changed(whole) from error
    return tuple(shards if samples is None else (shard.part(*samples) for shard in shards))


def _shard(url: str, size: Any, etag: Any, checksums: Any, *others: Any) -> RemoteUrl:
    summed = None if checksums is None else Checksums(checksums[0], tuple(checksums[1]))
    return RemoteUrl(url, size, etag, summed, *others)


def _changed(url: str) -> UrlError:
    shown = redact(url)
    return UrlError(f"{shown} stands for joined shards, and was changed: change the URLs before join().", url=shown)
