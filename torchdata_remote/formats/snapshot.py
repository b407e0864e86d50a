"""Snapshots: an immutable list of shards and selected samples, with a digest of what it stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from ..core.shard_view import split_view_url
from ..core.urls import RemoteUrl, redact
from ..errors import ManifestError
from .manifest import checksums_in

SNAPSHOT_SUFFIX = ".snapshot.json"
_KIND = "torchdata-remote-snapshot-v1"
_MD5 = re.compile("[0-9a-f]{32}")
_DIGEST_BYTES = 16


def is_snapshot_name(name: str) -> bool:
    """Whether an object of this name is read as a snapshot."""
    return name.endswith(SNAPSHOT_SUFFIX)


def digest_of(urls: Sequence[RemoteUrl]) -> str:
    """Return a digest of samples: of the contents of the shards, of what is selected of each, and of the order.

    A shard whose MD5 is known counts by it, wherever it is stored; another one by its URL, size and etag.

    Example:
        >>> listed, spelled_otherwise = RemoteUrl("s3://b/0.tar", 7168, '"1"'), RemoteUrl("s3://b/0.tar", 7168, "1")
        >>> digest_of([listed]) == digest_of([spelled_otherwise]), len(digest_of([listed]))
        (True, 32)
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for url in urls:
        _, view = split_view_url(url)
        shards = (url,) if view is None else view.urls
        selected = [] if view is None else [view.counts, view.objects, view.starts, view.stops]
        head = [[_identity(shard) for shard in shards], None if view is None else [len(part) for part in selected]]
        digest.update(json.dumps(head).encode())
        for part in selected:
            digest.update(np.asarray(part, "<i8").tobytes())
    return digest.hexdigest()


def _identity(url: RemoteUrl) -> list[Any]:
    md5 = (url.md5 or "").lower()
    if _MD5.fullmatch(md5):
        return [url.size, md5]
    return [url.size, str(url), None if url.etag is None else url.etag.removeprefix("W/").strip('"')]


def dump_snapshot(urls: Sequence[RemoteUrl]) -> bytes:
    """Encode a snapshot. The same shards and selections give the same bytes."""
    entries = ",\n  ".join(json.dumps(_entry(url)) for url in urls)
    head = {"__kind__": _KIND, "digest": digest_of(urls), "num_samples": num_samples_of(urls)}
    return f'{json.dumps(head)[:-1]}, "shards": [\n  {entries}\n]}}\n'.encode()


def load_snapshot(data: bytes, url: str) -> list[RemoteUrl]:
    """Decode the snapshot at ``url``, and verify its digest.

    Raises:
        ManifestError: if it is no snapshot, or was changed.
    """
    shown = redact(url)
    try:
        document = json.loads(data)
        kind, expected = document.get("__kind__"), document.get("digest")
        urls = [_url(entry) for entry in document["shards"]] if kind == _KIND else []
        found = digest_of(urls)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ManifestError(
            f"{shown} is not a snapshot of shards, which write_snapshot() writes: {type(error).__name__}: "
            f"{redact(str(error))}",
            url=shown,
        ) from error
    if kind != _KIND:
        raise ManifestError(f"{shown}: expected __kind__ {_KIND!r}, found {kind!r:.200}.", url=shown)
    if found != expected or not urls or document.get("num_samples") != num_samples_of(urls):
        raise ManifestError(
            f"{shown} was changed: its shards have the digest {found}, and it has {expected!r:.200}. Write a new "
            "snapshot: write_snapshot().",
            url=shown,
        )
    return urls


def num_samples_of(urls: Sequence[RemoteUrl]) -> int | None:
    """Return the number of samples of all shards; ``None`` if it is unknown for one of them."""
    counts = [url.num_samples for url in urls if url.num_samples is not None]
    return sum(counts) if len(counts) == len(urls) else None


def _entry(url: RemoteUrl) -> dict[str, Any]:
    entry = {"url": str(url), "filesize": url.size, "etag": url.etag, "md5sum": url.md5, "nsamples": url.num_samples}
    entry |= {"index_crc32": url.index_crc32, "keys_crc32": url.keys_crc32}
    if url.checksums is not None:
        entry["crc32_block_bytes"] = url.checksums.block_bytes
        entry["crc32"] = " ".join(f"{crc32:08x}" for crc32 in url.checksums.crc32s)
    return {name: value for name, value in entry.items() if value is not None}


def _url(entry: dict[str, Any]) -> RemoteUrl:
    numbers = [entry.get(name) for name in ("filesize", "nsamples", "index_crc32", "keys_crc32")]
    texts = [entry["url"], entry.get("etag", ""), entry.get("md5sum", "")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("url, etag and md5sum must be texts")
    if not all(number is None or (type(number) is int and number >= 0) for number in numbers):
        raise ValueError("a number is no integer of at least 0")
    size, num_samples, index_crc32, keys_crc32 = numbers
    return RemoteUrl(
        entry["url"],
        size,
        entry.get("etag"),
        checksums_in(entry, size),
        num_samples,
        entry.get("md5sum"),
        index_crc32,
        keys_crc32,
    )
