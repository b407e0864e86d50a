"""``file_reader``: read loose objects as samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import FetchOptions, StorageOptions
from ..core.urls import object_path, redact, split_sample_range
from ..errors import SampleError
from ..fetch.listing.source_argument import pipe_of
from ..fetch.streams import stream_objects, whole_of
from ..formats.sample import KEY, URL, Sample
from ..formats.split_name import Split, SplitName, splitter
from .datapipe import DataPipe
from .env import Env
from .passes import Pass
from .streams import InputPass, UrlsAhead, number_of, refuse_part


@functional_datapipe("file_reader")
class FileReader(DataPipe[Sample]):
    """Read each object as a sample with one member (functional name: ``file_reader``).

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are prefetched with the default
            options of ``async_prefetch``.
        split_name: how names of files are split into key and extension: at the ``"first"`` dot, as readers of shards
            do; at the ``"last"`` one (``22.05.png`` is ``22_05``); or by a function from a base name to ``(key,
            extension)``, such as ``os.path.splitext``. Dots of the key become underscores, dots before the extension
            are dropped.
        storage_options: for bare URLs, in fsspec's vocabulary.

    Yields:
        dict: ``"__key__"`` (str, path in the bucket without its extension), ``"__url__"`` (str), and the object's
        ``bytes`` under its extension in lower case.

    Raises:
        SampleError: for an object whose name has no extension.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/pets/cat/1.JPG", b"...")
        >>> list(FileReader(IterableWrapper(["memory://pets/cat/1.JPG"])))
        [{'__key__': 'pets/cat/1', '__url__': 'memory://pets/cat/1.JPG', 'jpg': b'...'}]
    """

    reads_data = keys_are_paths = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | tuple[str, Any]],
        *,
        split_name: SplitName = "first",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._split = splitter(split_name)
        self.source_datapipe = pipe_of(source_datapipe, of="file_reader")
        self._options, self._storage_options = FetchOptions(), StorageOptions(storage_options)

    def open(self, env: Env) -> Pass[Sample]:
        session = env.shared.session(self, self._options, self._storage_options)
        streams = InputPass(UrlsAhead(self, env), lambda urls, state: stream_objects(urls, session, state))
        return _FilePass(streams, self._split)


class _FilePass(Pass[Sample]):
    """The position is the number of the next object."""

    def __init__(self, streams: Pass[tuple[str, Any]], split: Split) -> None:
        super().__init__(streams)
        self._split = split
        self._latest: int | None = -1  # number of the object that was read last

    @property
    def position(self) -> Any:
        return None if self._latest is None else self._latest + 1

    def seek(self, position: Any) -> None:
        self._latest = position - 1
        self.sources[0].seek({"next": position})

    def items(self) -> Iterator[Sample]:
        for url, stream in self.sources[0]:
            try:
                whole, samples = split_sample_range(url)
                refuse_part(whole, samples, "FileReader")
                key, extension = self._split(object_path(url))
                if not key or not extension or extension in (KEY, URL):
                    fault = (
                        f"has the extension {extension!r}"
                        if key and extension
                        else f"has no {'extension' if key else 'key'}"
                    )
                    raise SampleError(
                        f"{redact(url)}: the name {fault}, so it cannot be part of "
                        "a sample. Exclude it by a pattern, as list_remote(pattern='*.jpg'). If it is a folder, "
                        "list it first: IterableWrapper([url]).list_remote().file_reader().",
                        url=redact(url),
                    )
                data = whole_of(url, stream)
                self._latest = number_of(stream)
                yield {KEY: key, URL: redact(url), extension: data}
            finally:
                stream.close()
