"""Index files: a JSON array of object paths, so that millions of objects are listed only once."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...core.options import RetryPolicy, StorageOptions
from ...core.urls import LOCAL, RemoteUrl, join_url, object_path, redact, split_url
from ...errors import EmptyListingError, ManifestError, ShardReadError
from ...formats.compression import CompressionLimits, decompressed
from ...storage import publish, read_whole
from .patterns import folders_of, glob_start, path_below
from .shard_set import options_beside

Index = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def read_index(
    index: str | os.PathLike[str] | Sequence[str], url: str, *, options: StorageOptions, retry: RetryPolicy
) -> Iterator[tuple[RemoteUrl, str]]:
    """Yield the objects of an index in its order, each with its path below a folder. Nothing is listed.

    An entry without a scheme is a key of the URL's bucket or host, or a path below a local folder; one with a scheme,
    which is that of the folder, is a URL.

    Args:
        index: URL or path of a JSON array of strings, which may be compressed, or the array itself.
        url: of the folder. If a key does not begin with its path, the key itself is the path below it.
        options: for the store of ``url``. An index in another kind of store, or on another http host, is read without
            them, so that secrets are sent to their own store only.
        retry: policy for transient faults.

    Raises:
        ManifestError: if it is not such an array, is empty, or names an object twice, outside of a local folder, or in
            another kind of store.
        StorageError: if it cannot be read.

    Example:
        >>> names = ["scratch/train/cat/1.jpg", "s3://photos/scratch/train/dog/2.jpg"]
        >>> found = read_index(names, "s3://photos/scratch/train/", options=StorageOptions(), retry=RetryPolicy())
        >>> [(str(one), path) for one, path in found]
        [('s3://photos/scratch/train/cat/1.jpg', 'cat/1.jpg'), ('s3://photos/scratch/train/dog/2.jpg', 'dog/2.jpg')]
    """
    if isinstance(index, str | os.PathLike):
        where = join_url(*split_url(os.fspath(index)))
        shown = redact(where)
        entries = _parsed(read_whole(where, options_beside(where, url, options), retry), shown)
    else:
        shown, entries = f"the {type(index).__name__} given as index", list(index)
    root, known = _root(url), set[str]()
    below = path_below(url if url.endswith("/") else url + "/")
    for number, entry in enumerate(entries):
        try:
            found = _located(entry, root)
            if found in known:
                raise ValueError("it names an object for the second time")
        except (TypeError, ValueError) as error:
            named = redact(entry) if isinstance(entry, str) else entry
            raise ManifestError(f"{shown}: entry {number:,}, {named!r:.200}: {error}.", url=shown) from error
        known.add(found)
        yield RemoteUrl(found), below(found)
    if not entries:
        raise ManifestError(f"{shown}: the index is empty, expected at least one path.", url=shown)


def write_index(
    index: str | os.PathLike[str],
    objects: Iterable[str],
    url: str,
    *,
    options: StorageOptions,
    overwrite: bool = False,
) -> int:
    """Write the index of a folder, for :func:`read_index`, atomically.

    Args:
        index: URL or path; compressed with gzip if it ends in ``.gz``.
        objects: URLs, such as the folder's listing. The index itself is left out.
        url: of the folder.
        options: for the store of ``url``; also for the store of the index if it is of the same kind.
        overwrite: replace an existing index.

    Returns:
        int: number of objects.

    Raises:
        ObjectExistsError: if the index exists.
        EmptyListingError: if there are no objects.

    Example:
        >>> cats, options = ["s3://photos/cat/1.jpg"], StorageOptions()
        >>> write_index("memory://lists/cats.json.gz", cats, "s3://photos/", options=options, overwrite=True)
        1
        >>> index = read_index("memory://lists/cats.json.gz", "s3://photos/", options=options, retry=RetryPolicy())
        >>> [str(one) for one, _ in index]
        ['s3://photos/cat/1.jpg']
    """
    root, where = _root(url), join_url(*split_url(os.fspath(index)))
    paths = ((one, one.removeprefix(root)) for one in objects if one != where)
    entries = [json.dumps(one if _SCHEME.match(below) else below) for one, below in paths]
    if not entries:
        raise EmptyListingError(f"{redact(url)}: there are no objects for an index.", url=redact(url))
    data = "[\n{}\n]\n".format(",\n".join(entries)).encode()
    data = gzip.compress(data) if object_path(where).endswith(".gz") else data
    publish(where, data, options_beside(where, url, options), overwrite=overwrite)
    return len(entries)


def _root(url: str) -> str:
    """Return the beginning of the URLs of entries without a scheme: the bucket's, or the local folder's."""
    scheme, bucket, _ = split_url(url)
    folder, above = folders_of(url)
    return join_url(scheme, bucket, "") if scheme not in LOCAL else folder if glob_start(url) is None else above


def _located(entry: str, root: str) -> str:
    """Return the URL that an entry names.

    Raises:
        TypeError: if it is no text.
        ValueError: if it may not be read.
    """
    scheme, bucket, path = split_url(entry if _SCHEME.match(entry) else root + entry)
    is_local = scheme in LOCAL
    found = join_url(scheme, bucket, os.path.normpath(path) if is_local else path)
    is_outside = is_local and (entry.startswith("/") or not found.startswith(root))
    if is_outside or not path or scheme != split_url(root)[0]:
        raise ValueError(f"expected the path of an object in {root}")
    return found


def _parsed(data: bytes, shown: str) -> list[Any]:
    try:
        found = json.loads(b"".join(decompressed([data], url=shown, limits=CompressionLimits())[1]))
    except (ShardReadError, ValueError, RecursionError) as error:
        raise ManifestError(f"{shown}: expected an index, got no JSON: {error}", url=shown) from error
    if not isinstance(found, list):
        what = f'expected an index, a JSON array of paths such as ["train/cat/1.jpg"], got a {type(found).__name__}'
        raise ManifestError(f"{shown}: {what}. Write it: torchdata-remote index URL -o FILE.", url=shown)
    return found
