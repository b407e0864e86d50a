"""``file_reader``: read loose objects as samples."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import FetchOptions, StorageOptions
from ..core.processes.parent_watch import end_worker_with_trainer
from ..core.urls import object_path, redact, split_sample_range
from ..errors import SampleError
from ..fetch.listing.source_argument import pipe_of
from ..fetch.session import FetchSession
from ..fetch.streams import whole_of
from ..formats.sample import KEY, URL, Sample
from ..formats.split_name import SplitName, splitter
from .base.datapipe import StatefulPipe
from .base.input_streams import number_of, open_first, refuse_part, require_number, streams_of
from .base.split_guard import SplitReader, require_split


@functional_datapipe("file_reader")
class FileReader(SplitReader[Sample], StatefulPipe[Sample]):
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

    state_fields = ("next",)
    keys_are_paths = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | tuple[str, Any]],
        *,
        split_name: SplitName = "first",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._split = splitter(split_name)
        self.source_datapipe = pipe_of(source_datapipe, of="file_reader")
        self._session = FetchSession(FetchOptions(), StorageOptions(storage_options))
        self._warmed_up: Generator[tuple[str, Any], None, None] | None = None
        self._latest: int | None = -1  # number of the object that was read last

    def warm_up(self) -> Iterator[None]:
        require_split(self)
        self._warmed_up = open_first(streams_of(self.source_datapipe, self._session, self._loaded))
        return iter(())

    def forget_start(self) -> None:
        super().forget_start()
        if self._warmed_up is not None:
            self._warmed_up.close()
            self._warmed_up = None

    def __iter__(self) -> Iterator[Sample]:
        end_worker_with_trainer()
        require_split(self)
        state = self._take_loaded()
        self._latest = -1 if state is None else state["next"] - 1
        warmed_up, self._warmed_up = self._warmed_up, None
        for url, stream in warmed_up or streams_of(self.source_datapipe, self._session, state):
            try:
                whole, samples = split_sample_range(url)
                refuse_part(whole, samples, type(self).__name__)
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

    def _state(self) -> Any:
        return {"next": require_number(self._latest) + 1}

    def prepare_copy(self, num_streams: int) -> None:
        self._session = self._session.for_lanes(num_streams)
