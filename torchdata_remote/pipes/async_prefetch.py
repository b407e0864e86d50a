"""``async_prefetch``: open URLs as byte streams, prefetching the next ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.arguments import check
from ..core.iter_datapipe import IterDataPipe, StreamWrapper, functional_datapipe
from ..core.options import MIB, Backend, FetchOptions, RetryPolicy, StorageOptions, policy_of
from ..core.processes.parent_watch import end_worker_with_trainer
from ..errors import StateError
from ..fetch.jumps import stream_by_jumps
from ..fetch.listing.source_argument import pipe_of
from ..fetch.session import FetchSession
from ..fetch.streams import stream_objects
from .base.datapipe import StatefulPipe
from .base.split_guard import SplitReader, require_split


@functional_datapipe("async_prefetch")
class AsyncPrefetch(SplitReader[tuple[str, StreamWrapper]], StatefulPipe[tuple[str, StreamWrapper]]):
    """Open URLs as byte streams and prefetch the next ones (functional name: ``async_prefetch``).

    Large objects are fetched in ranged parts, in parallel and yielded in order, so the first sample of a shard is
    available after its first part. A small object costs one request. Requests start with the iterator and stop with
    it; streams that were yielded stay readable.

    Args:
        source_datapipe: URLs (str); a ``RemoteUrl`` from ``list_remote`` saves a request.
        max_in_flight: maximum number of concurrent requests.
        max_buffer_bytes: bound on the bytes that are fetched or being fetched and not yet consumed. All streams of a
            ``Resumable`` in one process share it, as they share ``max_in_flight``.
        part_bytes: size of the ranged parts of large objects, in bytes. ``None`` means 8 MiB, or less if
            ``max_in_flight`` of them would fill more than three quarters of ``max_buffer_bytes``, or if ``interleave``
            streams would not have room for two each.
        in_order: ``False`` yields an object when its first part is here; a small object is one part. This order differs
            from run to run and cannot be resumed.
        interleave: number of streams that will be read in turn, as by ``shard_tar_reader(interleave=4)``. Each of them
            gets its share of ``max_buffer_bytes`` from the start.
        retry: policy for transient errors.
        backend: the library that transfers the bytes; ``AUTOMATIC`` selects the fastest one that works and logs it.
        cache_dir: local folder in which complete objects are cached, shared by all processes of the host. An object
            with the same size and etag is read from there without a request.
        cache_bytes: bound on the size of the cache. What is there stays until it is not read for two epochs.
        storage_options: for the store, in fsspec's vocabulary.

    Yields:
        tuple[str, StreamWrapper]: the URL unchanged, and a binary file-like object that is not seekable, in torch's
        wrapper, so that torchdata's ``load_from_tar``, ``readlines``, ... can read it.

    Raises:
        ObjectNotFoundError, AccessDeniedError, ObjectChangedError, TransientStorageError: raised by the stream when
            its bytes are read, with URL, range, etag, attempts, seconds and cause.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/notes/1.txt", b"hello")
        >>> [(url, stream.read()) for url, stream in AsyncPrefetch(IterableWrapper(["memory://notes/1.txt"]))]
        [('memory://notes/1.txt', b'hello')]
    """

    gives_streams = True
    state_fields = ("next",)

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        *,
        max_in_flight: int = 16,
        max_buffer_bytes: int = 128 * MIB,
        part_bytes: int | None = None,
        in_order: bool = True,
        interleave: int = 1,
        retry: RetryPolicy | None = None,
        backend: Backend = Backend.AUTOMATIC,
        cache_dir: str | None = None,
        cache_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.source_datapipe = pipe_of(source_datapipe, of="async_prefetch")
        options = FetchOptions(
            max_in_flight=max_in_flight,
            max_buffer_bytes=max_buffer_bytes,
            part_bytes=part_bytes,
            in_order=in_order,
            interleave=interleave,
            retry=policy_of(retry),
            backend=backend,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        self._session = FetchSession(options, StorageOptions(storage_options))
        self._next = 0  # number of the next object
        self._by_jumps = False

    def read_by_jumps(self) -> None:
        """Called by a reader that passes over most of each object: fetch what is read, and the next beginnings.

        Raises:
            ValueError: if there is a cache, which stores what was read from the first to the last byte.
        """
        if self._session.options.cache_dir is not None:
            raise check.marked(
                ValueError(
                    "lazy members are read where they are needed, and the cache of async_prefetch(cache_dir=) stores "
                    "whole shards. Leave out cache_dir= and cache_bytes=, or lazy=."
                )
            )
        self._by_jumps = True

    def __iter__(self) -> Iterator[tuple[str, StreamWrapper]]:
        end_worker_with_trainer()
        require_split(self)
        state = self._take_loaded()
        self._next = 0 if state is None else state["next"]
        streams = stream_by_jumps if self._by_jumps else stream_objects
        for url, stream in streams(self.source_datapipe, self._session, state):
            if stream.number is not None:
                self._next = max(self._next, stream.number + 1)
            yield url, StreamWrapper(stream)

    def require_resumable(self) -> None:
        if not self._session.options.in_order:
            raise StateError("async_prefetch(in_order=False) has an order that cannot be repeated. Use in_order=True.")

    def _state(self) -> Any:
        self.require_resumable()
        return {"next": self._next}

    def prepare_copy(self, num_streams: int) -> None:
        self._session = self._session.for_lanes(num_streams)
