"""``list_remote``: list the objects of source URLs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.arguments import check
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import RetryPolicy, StorageOptions, policy_of
from ..core.processes.parent_watch import end_worker_with_trainer
from ..core.urls import RemoteUrl
from ..fetch.listing.source_argument import pipe_of, url_of
from ..fetch.listing.sources import Tars, list_source
from ..formats.error_policy import Skipped
from ..formats.split_name import Split, shared_keys
from .base.split_guard import SplitReader, require_split


@functional_datapipe("list_remote")
class ListRemote(SplitReader[RemoteUrl]):
    """List the objects of source URLs (functional name: ``list_remote``).

    A source is

    - a folder: ``s3://b``, ``s3://b/dir/``, or without the slash if its name has no extension: ``s3://b/dir``,
      ``s3://b/v1.0``. ``dir`` never matches ``dir2``;
    - a glob: ``s3://b/t-*.tar``, where ``*`` and ``?`` stay within a folder and ``**`` does not;
    - a brace range: ``s3://b/t-{000000..000099}.tar`` or ``s3://b/{train,val}/``. A result without
      a glob and without a slash at its end is one object, for which the store is not listed;
    - a manifest: ``s3://b/t/index.json``, as written by ``write_shards``: its shards in its order, with the checksums
      that their bytes are verified against while they are read;
    - one object, whose name has an extension: ``s3://b/0.tar``. Without one (``s3://b/README``) it is found where there
      is no folder of that name. A URL of a web server is an object.

    ``*``, ``?``, ``[``, ``{`` and ``}`` that are part of a name have to be put into brackets, as by :func:`escape_url`:
    ``s3://b/what[?]/``. A :class:`RemoteUrl` is never a pattern.

    The objects of a source are sorted by path (by code points), and the sources keep their order, so the listing is
    the same in all processes. Objects are yielded while later pages of the listing are requested. A source that names
    one object costs no request: its size and etag are those of the first response to a reader, which also notices if it
    is missing. Directory markers are dropped, and so are files that macOS adds to folders
    (``._1.jpg``, ``.DS_Store``, ``__MACOSX/``), unless a source names one: ``skipped.members["macos"]`` counts them.
    Sources that overlap or are repeated yield their objects repeatedly. (A manifest that has a shard twice is refused.)

    Args:
        source_datapipe: source URLs (str, or ``os.PathLike``). A bare local path becomes a ``file://`` URL.
        pattern: glob that objects must match: by base name, or by the path below the source if it has a slash.
        recursive: whether folders below a prefix are listed too. Does not apply to a glob or a brace range.
        retry: policy for transient errors, for each page of a listing.
        storage_options: for the store, in fsspec's vocabulary.

    Yields:
        RemoteUrl: a str with ``size`` (bytes) and ``etag`` if the listing has them.

    Raises:
        EmptyListingError: if a source has no objects, or none that match; names URL and pattern.
        UrlError: for a scheme without a transport, or a URL without a bucket. When the pipe is built, for a ``str``
            in place of a list: ``IterableWrapper("/data/x/")``.
        ObjectNotFoundError: if there is no such bucket.
        ManifestError: for a manifest that is damaged, or names a shard outside its folder or twice.
        AccessDeniedError: if these credentials may not list.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/zoo/ape/1.jpg": b"12", "/zoo2/2.jpg": b"3"})
        >>> [(url, url.size) for url in ListRemote(IterableWrapper(["memory://zoo"]), pattern="*.jpg")]
        [('memory://zoo/ape/1.jpg', 2)]
    """

    gives_urls = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | os.PathLike[str]],
        *,
        pattern: str | None = None,
        recursive: bool = True,
        retry: RetryPolicy | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.source_datapipe = pipe_of(source_datapipe, of="list_remote")
        self.pattern = check.text_or_none("pattern", pattern, example="*.tar")
        self.recursive = check.flag("recursive", recursive)
        self._storage_options = StorageOptions(storage_options)
        self._retry = policy_of(retry)
        self._skipped = Skipped()
        self._takes_tars = False
        self._split: Split | None = None

    def take_tars(self) -> ListRemote:
        """Hook of recipes: without a pattern, only tars of folders, of any compression. Returns this pipe."""
        self._takes_tars = self.pattern is None
        return self

    def warn_of_shared_keys(self, split: Split) -> None:
        """Hook of recipes: warn of files that have the same key."""
        self._split = split

    def __iter__(self) -> Iterator[RemoteUrl]:
        end_worker_with_trainer()
        require_split(self, lists_only=True)
        self._skipped, on_page = Skipped(), shared_keys(self._split)
        for source in self.source_datapipe:
            url = url_of(source, of="list_remote")
            yield from list_source(
                url,
                pattern=Tars(url) if self._takes_tars else self.pattern,
                recursive=self.recursive,
                on_skip=self._skipped.count_member,
                on_page=on_page,
                options=self._storage_options,
                retry=self._retry,
            )
