"""``RemoteFiles``: the files of a folder as they are, by number."""

from __future__ import annotations

from typing import Any

from ..core.urls import redact
from ._files_dataset import FilesDataset


class RemoteFiles(FilesDataset):
    """The files below a folder, a prefix of a bucket for example, as a map-style dataset: ``[i] -> (url, bytes)``.

    torch's ``DataLoader`` asks for whole batches, whose files are then fetched at the same time. They are sorted
    by first folder, by folder and by name.

    Args:
        url: of the folder; a glob or a brace range takes some of its files. ``escape_url(name)`` is no pattern.
        index: a list of the files, so that they are not listed: URL or path of a JSON array of paths, such as
            ``torchdata-remote index`` writes, or the list itself. Entries without a scheme are keys of the URL's
            bucket, or paths below a local folder.
        limit: take the first ones only.
        storage_options: for the store, in fsspec's vocabulary.
        max_in_flight: requests under way at once, per worker.
        on_error: gets the error of a file that cannot be read, and returns the item that takes its place. What returns
            ``None`` stops at the error, as ``raise_error`` does: a batch is never short.
        cache_dir: local folder in which whole files are kept for the next epochs; needs ``cache_bytes``.
        cache_bytes: bound on what is kept there, shared by all processes of the host.
        retry: what is done about faults that may pass.
        backend: what carries the bytes.

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
        return redact(self._urls[number]), value
