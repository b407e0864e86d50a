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
from .manifest import MALFORMED, checksum_fields, checksums_in

SNAPSHOT_SUFFIX = ".snapshot.json"
_KIND = "torchdata-remote-snapshot-v1"
_MD5 = re.compile("[0-9a-f]{32}")
_DIGEST_BYTES = 16
_VIEW = re.compile(r"view\+([A-Za-z0-9.-]*)\+(.*)\+view", re.DOTALL)
_ALTERNATIVES = b"-."  # for + and / of base64
_LEVEL = 1


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
    except (*MALFORMED, zlib.error) as error:
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
    entry |= {"index_crc32": url.index_crc32, "keys_crc32": url.keys_crc32, **checksum_fields(url.checksums)}
    return {name: value for name, value in entry.items() if value is not None}


def _url(entry: dict[str, Any]) -> RemoteUrl:
    size, num_samples, *crc32s = (entry.get(name) for name in ("filesize", "nsamples", "index_crc32", "keys_crc32"))
    etag, md5, text = entry.get("etag"), entry.get("md5sum"), entry["url"]
    are_numbers = all(
        number is None or (type(number) is int and number >= 0) for number in (size, num_samples, *crc32s)
    )
    if not are_numbers or not all(isinstance(field, str) for field in (text, etag or "", md5 or "")):
        raise ValueError("a number that is no integer of at least 0, or a text that is none")
    if text.startswith("view+"):
        return _decoded(text)
    return RemoteUrl(text, size, etag, checksums_in(entry, size), num_samples, md5, *crc32s)


def _encoded(view: ShardView) -> str:
    """Encode a view: a line of JSON and columns of numbers, compressed.

    The places of ranges, in the order of objects, are distances from the end of the range before, and lengths.
    """
    order = np.argsort(view.objects, kind="stable")
    starts, stops = view.starts[order] // BLOCK, view.stops[order] // BLOCK
    before = np.append(0, stops)[:-1]
    before[_firsts(view.objects[order])] = 0
    columns = [*map(small, (view.counts, np.diff(view.objects, prepend=0), starts - before, stops - starts))]
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
        column = np.frombuffer(rest, np.dtype(kind), length, at)
        at += column.nbytes
        columns.append(column.astype(np.int64))
    counts, steps, gaps, lengths, *key_sums = columns
    urls = tuple(
        RemoteUrl(url if number else found[2], size, etag, md5=md5)
        for number, (url, size, etag, md5) in enumerate(described["urls"])
    )
    objects = np.cumsum(steps)
    order = np.argsort(objects, kind="stable")
    firsts, ends = _firsts(objects[order]), np.cumsum(gaps + lengths)
    starts, stops = np.empty_like(gaps), np.empty_like(gaps)
    stops[order] = ends - np.repeat(np.append(0, ends)[firsts], np.diff(np.append(firsts, len(objects))))
    starts[order] = stops[order] - lengths
    are_ranges = all(len(column) == int(counts.sum()) for column in (objects, gaps, lengths)) and (counts > 0).all()
    are_places = (objects >= 0).all() and (objects < len(urls)).all() and (starts >= 0).all() and (lengths > 0).all()
    if not (are_ranges and are_places and all(len(column) == len(counts) for column in key_sums)):
        raise ValueError("columns that do not belong together")
    return view_url(ShardView(urls, counts, objects, starts * BLOCK, stops * BLOCK, *key_sums))


def _firsts(objects: Ints) -> Any:
    """Return the index of the first range of each object; sorted by object."""
    return np.flatnonzero(np.diff(objects, prepend=-1))
