"""Fingerprints of listings: small for any number of objects; of up to 32, each object that was replaced is named."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from ...core.options import StorageOptions
from ...core.urls import LOCAL, WITHOUT_BUCKET, RemoteUrl, VirtualUrl, bare_etag, redact
from ...errors import RemoteDataError, StateError
from ...storage import open_store

Fingerprint = dict[str, Any]

_COUNTS = {"size": "bytes", "samples": "samples"}
_VERSIONS = {"md5": "MD5", "etag": "etag", "content": "content"}
_MOST_ALONE, _MOST_NAMED = 32, 5
_REDACTED = frozenset("?#@")  # a URL without these has nothing to redact
_MD5 = re.compile(r"[0-9a-fA-F]{32}")  # some listings leave it empty


def fingerprint(urls: Sequence[Any], *, by_samples: bool = False) -> Fingerprint:
    """Compute the fingerprint of a listing: plain JSON of at most 4 kB, without URLs.

    Args:
        urls: in the order that determines the streams' shares, before they are shuffled by epoch.
        by_samples: whether these shares may divide a shard.

    Returns:
        dict: ``num_urls``; ``order``, a digest over the URLs in their order; ``fields``, from a field's name to its
        values of each object, or over 32 objects to those of all: ``None``, or a digest of which objects have one
        (``""`` for all), with a digest of their values, or one number as it is; ``by_samples`` if that is so.
    """
    names = list(map(_name, urls))
    by_name = sorted(range(len(names)), key=names.__getitem__)
    columns = _columns([urls[index] for index in by_name], [names[index] for index in by_name])
    return {
        "num_urls": len(names),
        "order": _digest(names),
        "fields": {
            field: [_entry(field, values[group.start : group.stop]) for group in _groups(len(names))]
            for field, values in columns.items()
            if any(value is not None for value in values)
        },
        **({"by_samples": True} if by_samples else {}),
    }


def _groups(num_urls: int) -> list[range]:
    return [range(at, at + 1) for at in range(num_urls)] if num_urls <= _MOST_ALONE else [range(num_urls)]


def _entry(field: str, values: Sequence[Any]) -> list[str] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    which = "" if len(known) == len(values) else _digest(value is None for value in values)
    return [which, str(known[0]) if field in _COUNTS and len(values) == 1 else _digest(known)]


def _digest(values: Iterable[Any]) -> str:
    text = "\n".join(map(str, values)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def sorted_names(urls: Sequence[Any]) -> list[str]:
    """The redacted URLs, in the order of a fingerprint's values."""
    return sorted(map(_name, urls))


def _name(url: Any) -> str:
    """Redact a URL. Local paths become URLs: the shards of a manifest are paths if the manifest is."""
    if isinstance(url, VirtualUrl):
        names = " joined with ".join(map(_name, url.shards if url.view is None else url.shards[:1]))
        names = names if url.view is None else f"selection of {names}"
        return names if url.samples is None else "{} {} to {} of {}".format(url.unit, *url.samples, names)
    shown = str(url)
    if not _REDACTED.isdisjoint(shown):
        shown = redact(shown)
    return f"file://{shown}" if shown.startswith("/") else shown


def difference(first: Mapping[str, Any], second: Mapping[str, Any], names: Sequence[str] = ()) -> str | None:
    """Describe how two listings differ in the fields that both have; ``None`` if they agree.

    Args:
        first: a fingerprint.
        second: another one.
        names: :func:`sorted_names` of the second listing; empty if unknown.

    Returns:
        Which objects differ and how, the first listing's value before the second one's.

    Raises:
        StateError: if a fingerprint is damaged.
    """
    if first == second:
        return None
    try:
        found = list(islice(_differences(first, second, names), _MOST_NAMED + 1))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise StateError(
            f"The state's listing is damaged ({error!r}). Take an earlier state, or begin anew."
        ) from error
    return "; ".join([*found[:_MOST_NAMED], *(["and more"] if len(found) > _MOST_NAMED else [])]) or None


def _differences(first: Mapping[str, Any], second: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    num_urls = first["num_urls"]
    if num_urls != second["num_urls"]:
        yield f"{num_urls:,} objects and {second['num_urls']:,}"
        if names and num_urls <= _MOST_ALONE:
            known = {value for _, value in first["fields"].get("url", ())}
            yield from (f"{name} was added" for name in names if _digest([name]) not in known)
        return
    other_urls = [_described("url", *pair, names) for pair in _pairs("url", first, second) if pair[1] != pair[2]]
    yield from other_urls
    if other_urls:  # the other fields would compare different objects
        return
    if first["order"] != second["order"]:
        yield "the same objects in another order, which changes the shares"
    if first.get("by_samples") != second.get("by_samples"):
        yield "shards that are split by samples, where a manifest with indexes is listed, and whole shards elsewhere"
    # Copies may have other etags, but not other contents: another content shows an outdated manifest
    decided = {group for group, one, _ in _pairs("md5", first, second) if not one[0]}
    for field in (*_COUNTS, *_VERSIONS):
        for group, one, other in _pairs(field, first, second):
            if one != other and not (field == "etag" and group in decided):
                yield _described(field, group, one, other, names)


def _pairs(
    field: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[tuple[range, Sequence[str], Sequence[str]]]:
    """Yield the entries of both listings, of each group of which the same objects have a value."""
    groups = _groups(first["num_urls"])
    columns = (one["fields"].get(field, [None] * len(groups)) for one in (first, second))
    for group, one, other in zip(groups, *columns, strict=True):
        if one is not None and other is not None and one[0] == other[0]:
            yield group, one, other


def _described(field: str, group: range, one: Sequence[str], other: Sequence[str], names: Sequence[str]) -> str:
    """Describe how a group of objects differs in a field."""
    what = _COUNTS.get(field) or _VERSIONS.get(field, "URL")
    if len(group) > 1:
        return f"some of the {len(group):,} objects differ in their {what}"
    shown = names[group.start] if names else f"object {group.start + 1:,} of those sorted by URL"
    if field in _COUNTS:
        return f"{shown} has {int(one[1]):,} {what} and {int(other[1]):,}"
    return f"{shown} differs in its {what}"


def _columns(urls: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """The fields of each object; ``None`` where a field is unknown."""
    known = [url if isinstance(url, RemoteUrl) else RemoteUrl("") for url in urls]
    md5, etags = list(map(_md5, known)), list(map(_etag, known))
    read: list[Any] = list(urls)
    for index, url in enumerate(urls):
        if isinstance(url, VirtualUrl):
            read[index], ranges = _read(url)
            md5[index], etags[index] = (_version(read[index], ranges, tag) for tag in (_md5, _etag))
    # Reading detects a shard that does not match the checksums of its manifest
    are_checked = None not in md5 and all(getattr(one, "checksums", None) is not None for one in read)
    return {
        "url": list(names),
        "size": [url.size for url in known],
        "samples": [url.num_samples for url in known],
        "md5": md5,
        "etag": etags,
        "content": [None] * len(urls) if are_checked else content_sums(read),
    }


def _read(url: VirtualUrl) -> tuple[tuple[Any, ...], str | None]:
    """The objects that a URL reads and, of a view or of joined shards, a digest of their ranges."""
    if url.view is None:
        return url.shards, None if len(url.shards) == 1 else ""
    return url.shards, url.view.digest()


def _version(shards: Sequence[Any], ranges: str | None, tag: Callable[[RemoteUrl], str | None]) -> str | None:
    """The version tag of an object; of what is put together, one that also tells the names and ranges."""
    tags = [tag(shard) if isinstance(shard, RemoteUrl) else None for shard in shards]
    if ranges is None:
        return tags[0]
    if tag is _md5 and None in tags:
        return None
    return repr([ranges, *((_name(shard), shard.size, of) for shard, of in zip(shards, tags, strict=True))])


def _md5(url: RemoteUrl) -> str | None:
    return url.md5.lower() if url.md5 and _MD5.fullmatch(url.md5) else None


def _etag(url: RemoteUrl) -> str | None:
    """The store's version tag, without its form.

    ``None`` for a local file: its tag is made of inode and time, and differs in a copy of the folder.
    """
    if url.etag is None:
        return None
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() in LOCAL:
        return None
    return bare_etag(url.etag) or None


_MOST_SUMMED = 1_024  # objects of a listing
_WINDOW_BYTES = 4 << 10  # at the start and in the middle
_LAST_BYTES = 16 << 10  # more than the zeros with which tar programs pad an archive


def content_sums(items: Sequence[Any]) -> list[int | None]:
    """Compute the CRC-32 of samples of the contents of local objects and of those of ``memory://``.

    A local file has no tag that a copy of it has too. Summed are its size, the first 4 KiB, 4 KiB in the middle and the
    last 16 KiB, of the objects of at most 1,024 items, which are selected by their index only.

    Args:
        items: URLs, or tuples of those that are read together, in an order that is the same in all processes.

    Returns:
        A sum for each item; 0 if it was not selected, ``None`` if no object is local, or one cannot be read.
    """
    num_summed = min(len(items), _MOST_SUMMED)
    selected = {number * len(items) // num_summed for number in range(num_summed)}
    sum_of = cache(_sum)  # several items may read the same object
    sums: list[int | None] = []
    for index, item in enumerate(items):
        local = list(filter(_is_local, item)) if isinstance(item, tuple) else [item] * _is_local(item)
        found = [sum_of(os.fspath(url)) for url in local] if index in selected else [0] * len(local)
        if len(found) > 1:
            found = [None if None in found else zlib.crc32(repr(found).encode())]
        sums += found or [None]
    return sums


def _is_local(url: Any) -> bool:
    if not isinstance(url, str):
        return isinstance(url, os.PathLike)
    scheme, separator, _ = url.partition("://")
    return not separator or scheme.lower() in WITHOUT_BUCKET


def _sum(url: str) -> int | None:
    try:
        store, path = open_store(url, StorageOptions())
        if store.find(path) is None:  # also if the text is not a URL
            return None
        first = store.read(path, 0, _WINDOW_BYTES, None)
        sum_, size = zlib.crc32(first.whole(), first.total_bytes), first.total_bytes
        for start, end in ((size // 2, size // 2 + _WINDOW_BYTES), (max(0, size - _LAST_BYTES), size)):
            if size > _WINDOW_BYTES:
                sum_ = zlib.crc32(store.read(path, start, end, None).whole(), sum_)
        return sum_
    except RemoteDataError:  # the pass raises it again when it reads the object
        return None
