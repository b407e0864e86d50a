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
from .patterns import folder_before_choice, literal_url

Index = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_UP = re.compile(r"(^|/)\.\.(/|$)")
_ANYWHERE = S3 | HTTP | {"gs", "gcs", "az", "abfs", "abfss"}  # schemes that an index of any folder may name
_WRITE_BYTES = 1 << 20


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
    source = _IndexedFolder(url)
    if isinstance(index, (str, os.PathLike)):
        where = _location(index)
        shown = redact(where)
        entries: Sequence[str] = _parse(read_whole(where, source.options_for(where, options), retry), shown)
    else:
        shown, entries = f"the {type(index).__name__} given as index", index
    _check(entries, source, shown)
    return map(source.resolve, entries)


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
    source, where = _IndexedFolder(url), _location(index)
    shown, own_location = redact(where), split_url(where)
    connection = Connection(read_timeout_s=retry.progress_timeout_s)
    store, path = open_store(where, source.options_for(where, options), connection)
    writer, compressor, num_objects, text = store.create(path, overwrite=overwrite), open_compressor(path), 0, "[\n"
    try:
        if not overwrite and call_with_retries(lambda: store.find(path), retry, url=where) is not None:
            raise ObjectExistsError(
                f"{shown} exists already. Pass overwrite=True (--overwrite) to replace it.", url=shown
            )
        for one in objects:
            location = split_url(one)
            if location != own_location:
                text += (",\n" if num_objects else "") + json.dumps(source.entry_of(*location))
                num_objects += 1
            if len(text) >= _WRITE_BYTES:
                writer.write(compressor.compress(text.encode()) if compressor else text.encode())
                text = ""
        if not num_objects:
            raise EmptyListingError(f"{redact(url)}: there are no objects for an index.", url=redact(url))
        text += "\n]\n"
        writer.write(compressor.compress(text.encode()) + compressor.flush() if compressor else text.encode())
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    return num_objects


class _IndexedFolder:
    """The folder of an index: resolves its entries."""

    def __init__(self, url: str) -> None:
        self._scheme, self._bucket, path = split_url(literal_url(url))
        self._shown = redact(url)
        path = path.partition("?")[0] if self._scheme in HTTP else path
        self._folders = [path if path.endswith("/") or not path else path + "/"]
        folder = folder_before_choice(url)
        if folder is not None:  # a pattern, or a folder whose name looks like one
            self._folders.append(folder)
        self._root = ""  # prefix of entries without a scheme
        if self._scheme in LOCAL:
            self._root = self._folders[0 if os.path.isdir(path) else -1]

    def options_for(self, where: str, options: StorageOptions) -> StorageOptions:
        """Return the options of the folder's store for an object in it, and empty options for any other store."""
        scheme, host, _ = split_url(where)
        kind, own = ("s3" if name in S3 else name for name in (scheme, self._scheme))
        return options if kind == own and (scheme not in HTTP or host == self._bucket) else StorageOptions()

    def is_in_bucket(self, location: tuple[str, str, str]) -> bool:
        """Whether an object is in the folder's bucket."""
        return location[:2] == (self._scheme, self._bucket)

    def resolve(self, entry: str) -> tuple[RemoteUrl, str]:
        """Return URL and path below the folder of a valid entry."""
        scheme, bucket, name = self.locate(entry)
        url = RemoteUrl(join_url(scheme, bucket, self._root + name if scheme in LOCAL else name))
        path = name.partition("?")[0] if scheme in HTTP else name
        if self.is_in_bucket((scheme, bucket, name)) and scheme not in LOCAL:
            for folder in self._folders:
                if path.startswith(folder):
                    return url, path[len(folder) :]
        return url, path

    def locate(self, entry: str) -> tuple[str, str, str]:
        """Return scheme, bucket and key of an entry; for a local folder, its path below it instead of a key.

        Raises:
            ValueError: if the entry may not be read.
        """
        if "\0" in entry or not entry:
            raise ValueError("expected the path of an object")
        if "://" in entry and _SCHEME.match(entry):
            scheme, bucket, name = split_url(entry)
            if scheme != self._scheme and scheme not in _ANYWHERE:
                raise ValueError(f"expected one of the schemes {', '.join(sorted({self._scheme} | _ANYWHERE))}")
            if scheme in LOCAL and not name.startswith(self._root):
                raise ValueError(f"it is outside of {self._shown}")
            name = name[len(self._root) :] if scheme in LOCAL else name
        else:
            scheme, bucket, name = self._scheme, self._bucket, entry
        if scheme in LOCAL:
            if name.startswith("/") or _UP.search(name):
                raise ValueError(f"expected a path below {self._shown}, without ..")
            name = name.removeprefix("./")
        return scheme, bucket, name

    def entry_of(self, scheme: str, bucket: str, key: str) -> str:
        """Return the entry that :meth:`resolve` maps to this object."""
        url = join_url(scheme, bucket, key)
        if scheme in LOCAL and not (key.startswith(self._root) and self._root != key and not _UP.search(key)):
            raise ManifestError(
                f"{url} is not below {self._shown}, so an index of it cannot name it. Pass the folder that holds it.",
                url=url,
            )
        entry = key[len(self._root) :]
        return entry if self.is_in_bucket((scheme, bucket, key)) and entry and not _SCHEME.match(entry) else url


def _location(index: str | os.PathLike[str]) -> str:
    path = os.fspath(index)
    if not isinstance(path, str):
        raise TypeError(f"A path must be a str, got {type(path).__name__}: {path!r:.200}")
    return join_url(*split_url(path))


def _parse(data: bytes, shown: str) -> list[str]:
    try:
        _, parts = decompressed([data], url=shown, limits=CompressionLimits())
        found = json.loads(b"".join(parts))
    except ShardReadError as error:
        raise ManifestError(
            f"{shown}: the index cannot be decompressed: it is damaged, truncated, or expands by more than a factor "
            "of 100. Write it again: torchdata-remote index URL -o FILE.",
            url=shown,
        ) from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(
            f'{shown}: expected an index, a JSON array of paths such as ["train/cat/1.jpg"], got no JSON: {error}. '
            "Write it: torchdata-remote index URL -o FILE.",
            url=shown,
        ) from error
    if not isinstance(found, list):
        raise ManifestError(
            f'{shown}: expected an index, a JSON array of paths such as ["train/cat/1.jpg"], got a '
            f"{type(found).__name__}. Write it: torchdata-remote index URL -o FILE.",
            url=shown,
        )
    return found


def _check(entries: Sequence[str], source: _IndexedFolder, shown: str) -> None:
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
            location = source.locate(entry)
        except ValueError as error:  # or its subclass UrlError
            raise ManifestError(f"{shown}: entry {number:,} is {redact(entry)!r:.200}: {error}.", url=shown) from error
        known.add(location[2] if source.is_in_bucket(location) else location)  # usually the entry itself: no copy
        if len(known) == number:
            raise ManifestError(
                f"{shown}: entry {number:,}, {redact(entry)!r:.200}, names an object for the second time.", url=shown
            )
