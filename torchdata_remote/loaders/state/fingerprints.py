"""Fingerprints of listings: small for any number of objects, and enough to name an object that was replaced.

The module ``group_sums`` defines the groups of objects and the sums of each group.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from zlib import crc32

from ...core.joined_url import split_joined_url
from ...core.object_version import bare_etag
from ...core.shard_view import split_view_url
from ...core.urls import LOCAL, RemoteUrl, redact, split_sample_range
from ...errors import StateError
from .content_sums import content_sums
from .group_sums import ALIKE, COUNTS, GROUPS, PRIME, Pair, encoded, groups_of, mark, marks_of, packed, pairs, unpacked

Fingerprint = dict[str, Any]

_VERSIONS = {"md5": "MD5", "etag": "etag", "content": "content"}
_MOST_NAMED = 5
_REDACTED = frozenset("?#@+")  # a URL without these has nothing to redact
_MD5 = re.compile(r"[0-9a-fA-F]{32}")  # some listings leave it empty


def fingerprint(urls: Sequence[Any]) -> Fingerprint:
    """Compute the fingerprint of a listing: plain JSON of at most 4 kB, without URLs.

    Args:
        urls: in the order that determines the streams' shares, before they are shuffled by epoch.

    Returns:
        dict: ``num_urls``; ``order``, a digest over the URLs in their order; ``fields``, from a field's name to the
        sums of its groups; ``partly``, from a field's name to the marks of its groups, if a group needs one.
    """
    names = list(map(_name, urls))
    by_name = sorted(range(len(names)), key=names.__getitem__)
    columns = _columns([urls[index] for index in by_name], [names[index] for index in by_name])
    groups = groups_of(len(names))
    marks = {
        field: "".join(mark(values[group.start : group.stop]) for group in groups) for field, values in columns.items()
    }
    partly = {field: text for field, text in marks.items() if text != ALIKE * len(groups)}
    return {
        "num_urls": len(names),
        "order": hashlib.blake2b(encoded("\n".join(names)), digest_size=8).hexdigest(),
        "fields": {
            field: "".join(
                packed(field, values[group.start : group.stop], len(groups) == len(names)) for group in groups
            )
            for field, values in columns.items()
            if any(value is not None for value in values)
        },
        **({"partly": partly} if partly else {}),
    }


def digest_of_sizes(urls: Sequence[Any]) -> Fingerprint:
    """Compute the fingerprint of earlier releases: the number of URLs, and a digest over URLs and sizes, sorted."""
    lines = sorted(f"{redact(str(url))} {url.size if isinstance(url, RemoteUrl) else None}" for url in urls)
    sum_ = hashlib.blake2b(encoded("\n".join(lines)), digest_size=16)
    return {"num_urls": len(lines), "digest": sum_.hexdigest()}


def sorted_names(urls: Sequence[Any]) -> list[str]:
    """The redacted URLs, in the order of a fingerprint's values."""
    return sorted(map(_name, urls))


def _name(url: Any) -> str:
    """Redact a URL. Local paths become URLs: the shards of a manifest are paths if the manifest is."""
    shown = str(url)
    if not _REDACTED.isdisjoint(shown):
        shown = redact(shown)
    return f"file://{shown}" if shown.startswith("/") else shown


def difference(first: Mapping[str, Any], second: Mapping[str, Any], names: Sequence[str] = ()) -> str | None:
    """Describe how two listings differ in the fields that both have; ``None`` if they agree.

    Args:
        first: a fingerprint, also of an earlier release: ``num_urls`` and ``digest``.
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
        yield from _added(first, names)
    elif "digest" in first and "digest" in second:
        if first["digest"] != second["digest"]:
            yield f"URLs and sizes with the digests {first['digest']} and {second['digest']}"
    elif ("digest" in first) == ("digest" in second):
        groups = groups_of(num_urls)
        other_urls = [
            _describe("url", pair, group, names)
            for pair, group in zip(pairs("url", first, second), groups, strict=True)
            if pair[0] != pair[1]
        ]
        yield from other_urls
        if other_urls:  # the other fields would compare different objects
            return
        if first["order"] != second["order"]:
            yield "the same objects in another order, which changes the shares"
        whole = [mark == ALIKE for mark in marks_of("md5", first)]
        decided = [None not in pair and known for pair, known in zip(pairs("md5", first, second), whole, strict=True)]
        for field in (*COUNTS, *_VERSIONS):
            for pair, group, by_md5 in zip(pairs(field, first, second), groups, decided, strict=True):
                # Copies may have other etags, but not other contents: another content shows an outdated manifest
                if None not in pair and pair[0] != pair[1] and not (by_md5 and field == "etag"):
                    yield _describe(field, pair, group, names)


def _added(first: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """Name the objects that are not in the first listing, if its groups are of one object each."""
    if names and "fields" in first and first["num_urls"] <= GROUPS:
        known = {sums[0] for sums in unpacked("url", first) if sums is not None}
        yield from (f"{name} was added" for name in names if crc32(encoded(name)) not in known)


def _describe(field: str, pair: Pair, group: range, names: Sequence[str]) -> str:
    """Describe how a group of objects differs in a field."""
    first, second = (sums or () for sums in pair)
    index: int | None = group.start
    if len(first) > 1:
        plain, weighted = ((after - before) % PRIME for before, after in zip(first, second, strict=True))
        number = weighted * pow(plain, -1, PRIME) % PRIME if plain else 0
        index = group[number - 1] if 1 <= number <= len(group) else None
    what = COUNTS.get(field) or _VERSIONS.get(field, "URL")
    if index is None:
        ends = [names[at] if names else f"number {at + 1:,}" for at in (group[0], group[-1])]
        return (
            f"several of the {len(group):,} objects from {ends[0]} to {ends[1]}, sorted by URL, differ in their {what}"
        )
    shown = names[index] if names else f"object {index + 1:,} of those sorted by URL"
    if field in COUNTS and len(first) == 1:
        return f"{shown} has {first[0]:,} {what} and {second[0]:,}"
    return f"{shown} differs in its {what}"


def _columns(urls: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """The fields of each object; ``None`` where a field is unknown."""
    known = [url if isinstance(url, RemoteUrl) else RemoteUrl("") for url in urls]
    md5, etags = list(map(_md5, known)), list(map(_etag, known))
    read: list[Any] = list(urls)
    for index, url in enumerate(urls):
        if isinstance(url, str) and "+" in url:
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


def _read(url: str) -> tuple[tuple[Any, ...], str | None]:
    """The objects that a URL reads and, of a view or of joined shards, a digest of their ranges."""
    whole, _ = split_sample_range(url)
    _, view = split_view_url(whole)
    if view is None:
        shards = split_joined_url(whole)
        return shards, None if shards == (whole,) else ""
    columns = b"".join(column.tobytes() for column in view[1:] if column is not None)
    return view.urls, hashlib.blake2b(columns, digest_size=8).hexdigest()


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
