"""Snapshots: an immutable list of shards and selected samples, with a digest of what it stands for."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from ..core.shard_view import BLOCK, Ints, ShardView, small, split_view_url, view_url
from ..core.urls import RemoteUrl, redact
from ..errors import ManifestError
from .manifest import checksums_in

SNAPSHOT_SUFFIX = ".snapshot.json"
_KIND = "torchdata-remote-snapshot-v1"
_MD5 = re.compile("[0-9a-f]{32}")
_DIGEST_BYTES = 16
_VIEW = re.compile(r"view\+([A-Za-z0-9.-]*)\+(.*)\+view", re.DOTALL)
_ALTERNATIVES = b"-."  # for + and / of base64
_LEVEL = 1
_COLUMNS = {"|i1", "<i2", "<i4", "<i8"}


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
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error) as error:
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
    text, etag, (first, view) = str(url), url.etag, split_view_url(url)
    if view is not None:
        code = _encoded(view)
        text, etag = f"view+{code}+{first}+view", f"{zlib.crc32(code.encode()):08x}"
    entry = {"url": text, "filesize": url.size, "etag": etag, "md5sum": url.md5, "nsamples": url.num_samples}
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
    if entry["url"].startswith("view+"):
        return _decoded(entry["url"])
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


def _encoded(view: ShardView) -> str:
    """Encode a view: a line of JSON and columns of numbers, of which the starts are distances, compressed."""
    order, starts, lengths = np.argsort(view.objects, kind="stable"), view.starts // BLOCK, view.stops - view.starts
    lengths = lengths[order] // BLOCK
    gaps = _gaps(view.objects[order], starts[order], lengths)
    columns = [small(column) for column in (view.counts, np.diff(view.objects, prepend=0), gaps, lengths)]
    if view.key_sums is not None:
        columns.append(view.key_sums.astype("<i2"))
    head = {
        "urls": [[str(url) if at else "", url.size, url.etag, url.md5] for at, url in enumerate(view.urls)],
        "columns": [[column.dtype.str, len(column)] for column in columns],
    }
    body = [json.dumps(head, separators=(",", ":")).encode(), b"\n", *(column.tobytes() for column in columns)]
    return base64.b64encode(zlib.compress(b"".join(body), _LEVEL), _ALTERNATIVES).decode().rstrip("=")


def _decoded(text: str) -> RemoteUrl:
    found = _VIEW.fullmatch(text)
    if found is None:
        raise ValueError("the URL of selected samples was changed")
    code = found[1] + "=" * (-len(found[1]) % 4)
    head, _, rest = zlib.decompress(base64.b64decode(code, _ALTERNATIVES, validate=True)).partition(b"\n")
    described = json.loads(head)
    columns, at = [], 0
    for kind, length in described["columns"]:
        if kind not in _COLUMNS:
            raise ValueError("a column of another type")
        column = np.frombuffer(rest, np.dtype(kind), length, at)
        at += column.nbytes
        columns.append(column.astype(np.int64))
    counts, steps, gaps, lengths, *key_sums = columns
    objects = np.cumsum(steps)
    has_key_of_each = all(len(column) == len(counts) for column in key_sums)
    if not has_key_of_each or not int(counts.sum()) == len(objects) == len(gaps) == len(lengths):
        raise ValueError("columns of different lengths")
    urls = tuple(
        RemoteUrl(url if number else found[2], size, etag, md5=md5)
        for number, (url, size, etag, md5) in enumerate(described["urls"])
    )
    if not all(isinstance(url.size, int | None) and isinstance(url.etag, str | None) for url in urls):
        raise ValueError("a size or an etag of another type")
    order = np.argsort(objects, kind="stable")
    starts, stops = np.empty_like(gaps), np.empty_like(gaps)
    stops[order] = _stops(objects[order], gaps, lengths)
    starts[order] = stops[order] - lengths
    starts, stops = starts * BLOCK, stops * BLOCK
    if (counts < 1).any() or (objects < 0).any() or (objects >= len(urls)).any():
        raise ValueError("a sample without ranges, or a range of no object")
    if (starts < 0).any() or (stops <= starts).any():
        raise ValueError("a range without bytes, or before the first one")
    return view_url(ShardView(urls, counts, objects, starts, stops, *key_sums))


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
