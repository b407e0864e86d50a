"""``RemoteFiles``: the files of a folder as a map-style dataset."""

from __future__ import annotations

from typing import Any

from ..core.arguments.calls import explained
from ..core.urls import redact
from ._files_dataset import FilesDataset


@explained
class RemoteFiles(FilesDataset):
    """The files below a folder, for example a prefix of a bucket, as a map-style dataset: ``[i] -> (url, bytes)``.

    torch's ``DataLoader`` requests complete batches, whose files are fetched concurrently. Files are sorted by first
    folder, by folder and by name.

    Args:
        url: of the folder; a glob or a brace range selects some of its files. ``escape_url(name)`` escapes one.
        index: a list of the files, used instead of listing the folder: URL or path of a JSON array of paths, as written
            by ``torchdata-remote index``, or the list itself. Entries without a scheme are keys in the bucket of the
            URL, or paths below a local folder.
        limit: number of files to use, from the first one; ``None`` uses all.
        storage_options: for the store, in fsspec's vocabulary.
        max_in_flight: maximum number of concurrent requests per worker.
        on_error: called with the error of a file that cannot be read; returns the item to use instead. If it returns
            ``None``, the error is raised, as by ``raise_error``: a batch is never shorter.
        cache_dir: local folder in which complete files are cached for later epochs; requires ``cache_bytes``.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        retry: policy for transient errors.
        backend: library that transfers the bytes.

    Raises:
        EmptyListingError: if there are no files.
        StorageError: for a file that cannot be read, with its URL.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/notes/a/2.txt": b"two", "/notes/a/1.txt": b"one"})
        >>> RemoteFiles("memory://notes/")[0]
        ('memory://notes/a/1.txt', b'one')
    """

    def _decoder(self) -> None:
        return None

    def _item(self, number: int, value: Any) -> tuple[str, bytes]:
        return redact(self._files.urls[number]), value
