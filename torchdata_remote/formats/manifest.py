"""The manifest: ``index.json`` beside the shards, written last, in the format of WebDataset's wids."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ..core.checksums import MAX_BLOCK_BYTES, MIN_BLOCK_BYTES, Checksums
from ..errors import ManifestError

MANIFEST_NAME = "index.json"
UNFINISHED = "_unfinished-"  # prefix of objects that only an unfinished job needs
CLAIM_NAME = f"{UNFINISHED}job.json"  # there while a writer is at work, or after it was stopped
# Optional files beside it
CLASSES_NAME, PROVENANCE_NAME = "classes.json", "provenance.json"
# Provenance of data that were added later, named by their first shard
LATER_PROVENANCE = re.compile(r"provenance-\d+\.json")
_KIND = "wids-shard-index-v1"
_BESIDE = ("index_crc32", "keys_crc32")

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What decoding JSON of other fields raises."""


@dataclass(frozen=True)
class ShardInfo:
    """A finished shard.

    Args:
        url: full address.
        num_samples: samples in it.
        num_bytes: size of the object, headers and padding included.
        md5: hexadecimal MD5 of the object. It detects damage, not forgery.
        checksums: of its blocks, verified when it is read; ``None`` in manifests of other packages.
        index_crc32: CRC-32 of the index beside it; ``None`` in manifests of other packages, and if there is no index.
        keys_crc32: CRC-32 of the file of keys beside it; ``None`` also in manifests of earlier releases.
    """

    url: str
    num_samples: int
    num_bytes: int
    md5: str
    checksums: Checksums | None = None
    index_crc32: int | None = None
    keys_crc32: int | None = None

    @property
    def sums_beside(self) -> tuple[int | None, int | None]:
        """Checksums of the index and of the keys beside it."""
        return self.index_crc32, self.keys_crc32


def dump_manifest(shards: Sequence[ShardInfo], jobs: Sequence[Any] = ()) -> bytes:
    """Encode the manifest of the shards in its folder. URLs are base names, so that the folder can be moved.

    Args:
        shards: in their order.
        jobs: descriptions of the jobs that wrote them, for :func:`jobs_of`.

    Raises:
        ManifestError: if two of them are the same object.
    """
    if shards:
        _require_distinct(shards, shards[0].url)
    document: dict[str, Any] = {"__kind__": _KIND, "wids_version": 1, "shardlist": list(map(dump_entry, shards))}
    if jobs:
        document["jobs"] = list(jobs)
    return (json.dumps(document, indent=1) + "\n").encode()


def dump_entry(shard: ShardInfo) -> dict[str, Any]:
    """Encode the entry of a shard."""
    entry: dict[str, Any] = {
        "url": shard.url.rpartition("/")[2],
        "md5sum": shard.md5,
        "nsamples": shard.num_samples,
        "filesize": shard.num_bytes,
    }
    entry |= checksum_fields(shard.checksums)
    for name, crc32 in zip(_BESIDE, shard.sums_beside, strict=True):
        if crc32 is not None:
            entry[name] = f"{crc32:08x}"
    return entry


def checksum_fields(checksums: Checksums | None) -> dict[str, Any]:
    """Encode checksums for an entry of a manifest or a snapshot, which :func:`checksums_in` decodes."""
    if checksums is None:
        return {}
    crc32s = " ".join(f"{crc32:08x}" for crc32 in checksums.crc32s)
    return {"crc32_block_bytes": checksums.block_bytes, "crc32": crc32s}


def load_manifest(data: bytes, url: str) -> list[ShardInfo]:
    """Decode the shards of the manifest at ``url``.

    Raises:
        ManifestError: if it is not such a manifest, names a shard outside its own folder, or names one twice, even in
            two spellings.
    """
    try:
        document = json.loads(data)
        kind = document.get("__kind__")
        entries = [load_entry(entry, url) for entry in document["shardlist"]] if kind == _KIND else []
    except MALFORMED as error:
        raise ManifestError(f"{url} is not a manifest of shards: {error!r}", url=url) from error
    if kind != _KIND:
        raise ManifestError(f"{url}: expected __kind__ {_KIND!r}, found {kind!r}.", url=url)
    _require_distinct(entries, url)
    return entries


def _require_distinct(shards: Sequence[ShardInfo], url: str) -> None:
    """Refuse two entries of one object, whose samples would be read twice."""
    known: dict[str, int] = {}
    for number, shard in enumerate(shards):
        first = known.setdefault(_canonical_url(shard.url), number)
        if first != number:
            names = " and ".join(repr(shards[entry].url.rpartition("/")[2]) for entry in (first, number))
            raise ManifestError(
                f"{url}: entries {first} and {number} of shardlist name the same shard: {names}. Its samples would be "
                "read twice. Remove one of the entries, or write the manifest again: torchdata-remote manifest "
                "--overwrite FOLDER.",
                url=url,
            )


def _canonical_url(url: str) -> str:
    """Return the same URL for all spellings of a base name with which a transport reads the same object.

    A web server decodes ``%30`` to ``0``, and the part after a ``#`` is never sent. Disks of macOS do not distinguish
    composed and decomposed letters. In a bucket each spelling is another object.
    """
    scheme, separator, _ = url.partition("://")
    folder, slash, name = url.rpartition("/")
    if _is_http(url):
        path, _, query = name.partition("#")[0].partition("?")
        name = unquote(path, errors="surrogateescape") + ("?" + query if query else "")
    elif not separator or scheme.lower() in ("file", "local"):
        name = unicodedata.normalize("NFC", name)
    return folder + slash + name


def _is_http(url: str) -> bool:
    return url.partition("://")[0].lower() in ("http", "https")


def jobs_of(data: bytes) -> list[Any]:
    """Return the descriptions of the jobs that wrote the shards of a manifest, if it has them."""
    jobs = json.loads(data).get("jobs")
    return jobs if isinstance(jobs, list) else []


def load_entry(entry: dict[str, Any], url: str) -> ShardInfo:
    """Decode an entry of the manifest at ``url``.

    Raises:
        KeyError, TypeError, ValueError: if it is not one of :func:`dump_entry`.
    """
    name, path = entry["url"], str(entry["url"])
    if _is_http(url):
        # A web server decodes %2e%2e%2f0.tar
        path = unquote(re.split("[?#]", path, maxsplit=1)[0])
    if not isinstance(name, str) or "/" in name + path or path in ("", ".", ".."):
        raise ValueError(f"shard {name!r} is not a base name")
    num_samples, num_bytes = int(entry["nsamples"]), int(entry["filesize"])
    if num_samples < 0 or num_bytes < 0:
        raise ValueError(f"shard {name!r} has {num_samples} samples and {num_bytes} bytes")
    checksums, folder = checksums_in(entry, num_bytes), url[: url.rindex("/") + 1]
    beside = [_crc32s(entry[field])[0] if field in entry else None for field in _BESIDE]
    return ShardInfo(folder + name, num_samples, num_bytes, str(entry["md5sum"]), checksums, *beside)


def _crc32s(text: str) -> tuple[int, ...]:
    crc32s = tuple(int(crc32, 16) for crc32 in text.split())
    if not all(0 <= crc32 < 1 << 32 for crc32 in crc32s):
        raise ValueError(f"a checksum has more than 32 bits: {text!r:.100}")
    return crc32s


def checksums_in(entry: dict[str, Any], num_bytes: int | None) -> Checksums | None:
    """Decode the checksums of an entry of a manifest or a snapshot; ``None`` if it has none.

    Raises:
        KeyError, TypeError, ValueError: if they are not those of an object of this size.
    """
    if "crc32" not in entry:
        return None
    if num_bytes is None:
        raise ValueError(f"{entry['url']!r} has checksums and no size")
    block_bytes, crc32s = int(entry["crc32_block_bytes"]), _crc32s(entry["crc32"])
    if not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES or len(crc32s) != -(-num_bytes // block_bytes):
        raise ValueError(f"{len(crc32s)} checksums of {block_bytes} bytes for {num_bytes} bytes")
    return Checksums(block_bytes, crc32s)
