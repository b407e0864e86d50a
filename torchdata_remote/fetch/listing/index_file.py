"""Index files: a JSON array of object paths, so that millions of objects are listed only once."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.urls import HTTP, LOCAL, S3, RemoteUrl, join_url, redact, split_url
from ...errors import EmptyListingError, ManifestError, ObjectExistsError, ShardReadError
from ...formats.compression.compress import open_compressor
from ...formats.compression.decompress import CompressionLimits, decompressed
from ...storage import Connection, open_store, read_whole
from .patterns import choice_start, folders_of, literal_url
from .shard_set import options_beside

Index = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_UP = re.compile(r"(^|/)\.\.(/|$)")
_ANYWHERE = S3 | HTTP | {"gs", "gcs", "az", "abfs", "abfss"}  # schemes that an index of any folder may name
_WRITE = "Write it: torchdata-remote index URL -o FILE."


def read_index(
    index: str | os.PathLike[str] | Sequence[str], url: str, *, options: StorageOptions, retry: RetryPolicy
) -> Iterator[tuple[RemoteUrl, str]]:
    """Yield the objects of an index in its order, each with its path below a folder. Nothing is listed.

    An entry without a scheme is a key of the URL's bucket or host, or a path below a local folder; one with a scheme is
    a URL. All entries are checked before the first one is returned.

    Args:
        index: URL or path of a JSON array of strings, which may be compressed, or the array itself.
        url: of the folder. If a key does not begin with its path, the key itself is the path below it.
        options: for the store of ``url``. An index in another kind of store, or on another http host, is read without
            them, so that secrets are sent to their own store only.
        retry: policy for transient faults.

    Raises:
        ManifestError: if it is not such an array, is empty, or names an object twice, an object outside of a local
            folder, or one in a store that an index may not name.
        StorageError: if it cannot be read.

    Example:
        >>> names = ["scratch/train/cat/1.jpg", "s3://photos/scratch/train/dog/2.jpg"]
        >>> found = read_index(names, "s3://photos/scratch/train/", options=StorageOptions(), retry=RetryPolicy())
        >>> [(str(one), path) for one, path in found]
        [('s3://photos/scratch/train/cat/1.jpg', 'cat/1.jpg'), ('s3://photos/scratch/train/dog/2.jpg', 'dog/2.jpg')]
    """
    folder = _IndexedFolder(url)
    if isinstance(index, str | os.PathLike):
        where = join_url(*split_url(os.fspath(index)))
        shown = redact(where)
        entries: Sequence[str] = _parse(read_whole(where, options_beside(where, url, options), retry), shown)
    else:
        shown, entries = f"the {type(index).__name__} given as index", index
    _check(entries, folder, shown)
    return map(folder.resolve, entries)


def write_index(
    index: str | os.PathLike[str],
    objects: Iterable[str],
    url: str,
    *,
    options: StorageOptions,
    retry: RetryPolicy,
    overwrite: bool = False,
) -> int:
    """Write the index of a folder, for :func:`read_index`, atomically.

    Args:
        index: URL or path; compressed with gzip if it ends in ``.gz``.
        objects: URLs, such as the folder's listing. The index itself is left out.
        url: of the folder.
        options: for the store of ``url``; also for the store of the index if it is of the same kind.
        retry: policy for transient faults.
        overwrite: replace an existing index.

    Returns:
        int: number of objects.

    Raises:
        ObjectExistsError: if the index exists, before anything is listed.
        EmptyListingError: if there are no objects.
        ManifestError: for an object outside of a local folder.

    Example:
        >>> none = {"options": StorageOptions(), "retry": RetryPolicy()}
        >>> cats = ["s3://photos/cat/1.jpg"]
        >>> write_index("memory://lists/cats.json.gz", cats, "s3://photos/", overwrite=True, **none)
        1
        >>> [str(one) for one, _ in read_index("memory://lists/cats.json.gz", "s3://photos/", **none)]
        ['s3://photos/cat/1.jpg']
    """
    folder, where = _IndexedFolder(url), join_url(*split_url(os.fspath(index)))
    options = options_beside(where, url, options)
    store, path = open_store(where, options, Connection(read_timeout_s=retry.progress_timeout_s))
    # Made first: a store that cannot be written says so before anything is listed
    writer, compressor, data, num_objects = (
        store.create(path, overwrite=overwrite),
        open_compressor(path),
        bytearray(),
        0,
    )
    try:
        if not overwrite and call_with_retries(lambda: store.find(path), retry, url=where) is not None:
            raise ObjectExistsError(
                f"{redact(where)} exists already. Pass overwrite=True (--overwrite) to replace it.", url=redact(where)
            )
        for one in objects:
            if (location := split_url(one)) != split_url(where):
                line = (",\n" if num_objects else "[\n") + json.dumps(folder.entry_of(*location))
                data += compressor.compress(line.encode()) if compressor else line.encode()
                num_objects += 1
        if not num_objects:
            raise EmptyListingError(f"{redact(url)}: there are no objects for an index.", url=redact(url))
        data += compressor.compress(b"\n]\n") + compressor.flush() if compressor else b"\n]\n"
        writer.write(bytes(data))
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    return num_objects


class _IndexedFolder:
    """The folder of an index: resolves its entries."""

    def __init__(self, url: str) -> None:
        self._shown = redact(url)
        self._scheme, self._bucket, path = split_url(literal_url(url))
        path = path.partition("?")[0] if self._scheme in HTTP else path
        self._folders = [path if path.endswith("/") or not path else path + "/"]
        if choice_start(url) is not None:  # a pattern, or a folder whose name looks like one
            self._folders.append(split_url(folders_of(url)[1])[2])
        self._root = ""  # prefix of entries without a scheme
        if self._scheme in LOCAL:
            self._root = self._folders[0 if os.path.isdir(path) else -1]

    def is_in_bucket(self, location: tuple[str, str, str]) -> bool:
        """Whether an object is in the folder's bucket."""
        return location[:2] == (self._scheme, self._bucket)

    def resolve(self, entry: str) -> tuple[RemoteUrl, str]:
        """Return URL and path below the folder of a valid entry."""
        scheme, bucket, name = self.locate(entry)
        if scheme in LOCAL:
            return RemoteUrl(join_url(scheme, bucket, self._root + name)), name
        url, path = RemoteUrl(join_url(scheme, bucket, name)), name.partition("?")[0] if scheme in HTTP else name
        folders = self._folders if self.is_in_bucket((scheme, bucket, name)) else []
        return url, path[len(next(filter(path.startswith, folders), "")) :]

    def locate(self, entry: str) -> tuple[str, str, str]:
        """Return scheme, bucket and key of an entry; for a local folder, its path below it instead of a key.

        Raises:
            ValueError: if the entry may not be read.
        """
        if "\0" in entry or not entry:
            raise ValueError("expected the path of an object")
        scheme, bucket, name = self._scheme, self._bucket, entry
        if _SCHEME.match(entry):
            scheme, bucket, name = split_url(entry)
            if scheme != self._scheme and scheme not in _ANYWHERE:
                raise ValueError(f"expected one of the schemes {', '.join(sorted({self._scheme} | _ANYWHERE))}")
            if scheme in LOCAL and not name.startswith(self._root):
                raise ValueError(f"it is outside of {self._shown}")
            name = name[len(self._root) :] if scheme in LOCAL else name
        if scheme in LOCAL:
            if name.startswith("/") or _UP.search(name):
                raise ValueError(f"expected a path below {self._shown}, without ..")
            name = name.removeprefix("./")
        return scheme, bucket, name

    def entry_of(self, scheme: str, bucket: str, key: str) -> str:
        """Return the entry that :meth:`resolve` maps to this object."""
        url = join_url(scheme, bucket, key)
        entry = key.removeprefix(self._root)
        if scheme in LOCAL and (key == self._root or not key.startswith(self._root) or _UP.search(key)):
            raise ManifestError(
                f"{url} is not below {self._shown}, so an index of it cannot name it. Pass the folder that holds it.",
                url=url,
            )
        return entry if self.is_in_bucket((scheme, bucket, key)) and entry and not _SCHEME.match(entry) else url


def _parse(data: bytes, shown: str) -> list[str]:
    what = 'expected an index, a JSON array of paths such as ["train/cat/1.jpg"], got'
    try:
        _, parts = decompressed([data], url=shown, limits=CompressionLimits())
        found = json.loads(b"".join(parts))
    except ShardReadError as error:
        why = "it is damaged, truncated, or expands by more than a factor of 100"
        raise ManifestError(f"{shown}: the index cannot be decompressed: {why}. {_WRITE}", url=shown) from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{shown}: {what} no JSON: {error}. {_WRITE}", url=shown) from error
    if not isinstance(found, list):
        raise ManifestError(f"{shown}: {what} a {type(found).__name__}. {_WRITE}", url=shown)
    return found


def _check(entries: Sequence[str], folder: _IndexedFolder, shown: str) -> None:
    """Require that every entry is valid, and that no object is named twice."""
    if not len(entries):
        raise ManifestError(f"{shown}: the index is empty, expected at least one path. Write it again.", url=shown)
    known = set[object]()
    for number, entry in enumerate(entries):
        if not isinstance(entry, str):
            raise ManifestError(
                f"{shown}: entry {number:,} is {entry!r:.100} ({type(entry).__name__}), expected a path as str.",
                url=shown,
            )
        try:
            location = folder.locate(entry)
        except ValueError as error:  # or its subclass UrlError
            raise ManifestError(f"{shown}: entry {number:,} is {redact(entry)!r:.200}: {error}.", url=shown) from error
        known.add(location[2] if folder.is_in_bucket(location) else location)  # usually the entry itself: no copy
        if len(known) == number:
            raise ManifestError(
                f"{shown}: entry {number:,}, {redact(entry)!r:.200}, names an object for the second time.", url=shown
            )
