"""``async_prefetch``, and the input of the readers: bare URLs, which are opened here, or streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import chain
from typing import Any

from ..core import arguments as check
from ..core.iter_datapipe import IterDataPipe, StreamWrapper, functional_datapipe
from ..core.options import MIB, Backend, FetchOptions, RetryPolicy, StorageOptions, policy_of
from ..core.urls import LineRange, VirtualUrl, redact
from ..errors import RemoteDataError, StateError
from ..fetch.jumps import stream_by_jumps
from ..fetch.listing.source_argument import url_of
from ..fetch.streams import StreamsState, stream_objects
from .chain import all_pipes
from .datapipe import SourcePipe
from .env import Ahead, Env
from .passes import Pass

Streams = Generator[tuple[str, Any], None, None]


@functional_datapipe("async_prefetch")
class AsyncPrefetch(SourcePipe[tuple[str, StreamWrapper]]):
    """Open URLs as byte streams and prefetch the next ones (functional name: ``async_prefetch``).

    Large objects are fetched in ranged parts, in parallel and yielded in order, so the first sample of a shard is
    available after its first part. A small object costs one request. Requests start with the iterator and stop with
    it; streams that were yielded stay readable.

    Args:
        source_datapipe: URLs (str); a ``RemoteUrl`` from ``list_remote`` saves a request.
        max_in_flight: maximum number of concurrent requests.
        max_buffer_bytes: bound on the bytes that are fetched or being fetched and not yet consumed. All streams of a
            ``Resumable`` in one process share it, as they share ``max_in_flight``; passes at the same time do not.
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

    reads_data = True

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
        super().__init__(source_datapipe)
        self._options = FetchOptions(
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
        self._storage_options = StorageOptions(storage_options)

    @property
    def has_cache(self) -> bool:
        """Whether complete objects are stored on a local disk."""
        return self._options.cache_dir is not None

    def open(self, env: Env) -> Pass[tuple[str, StreamWrapper]]:
        session = env.shared.session(self, self._options, self._storage_options)
        opened = stream_by_jumps if env.by_jumps else stream_objects
        source = UrlsAhead(self, env)
        return StreamPass(source, lambda urls, state: opened(urls, session, state), wraps=True)

    def require_resumable(self) -> None:
        if not self._options.in_order:
            raise StateError("async_prefetch(in_order=False) has an order that cannot be repeated. Use in_order=True.")


Opened = Callable[[Iterable[str], StreamsState | None], Streams]


class UrlsAhead(Pass[Any]):
    """The source of a pipe that opens URLs ahead. What was taken up to each of them is kept until it is handed out.

    Args:
        pipe: that opens them.
        env: of the pass.
    """

    def __init__(self, pipe: Any, env: Env) -> None:
        super().__init__(env.open(pipe.source_datapipe))
        self._ahead, self._is_saved = Ahead(pipe, env), env.shared.is_saved
        self._taken: dict[int, Any] = {}
        self.first = 0
        """Number of the URLs that were handed out before the state was saved."""

    def items(self) -> Iterator[Any]:
        if not self._is_saved:
            yield from self.sources[0]
            return
        for number, url in enumerate(self.sources[0], 1):
            if number >= self.first:
                self._taken[number] = self._ahead.taken()
            yield url

    def handed_out(self, number: int | None) -> None:
        """Note the marks of a URL whose stream is handed out, by its number from 0."""
        if number is not None and (taken := self._taken.get(max(number + 1, self.first))) is not None:
            self._ahead.handed_out(taken)
            for other in [before for before in self._taken if self.first < before <= number]:
                del self._taken[other]


class _OpeningPass(Pass[tuple[str, Any]]):
    """Base of passes that open URLs: their first stream can be begun before it is asked for.

    Args:
        source: of the URLs.
        opened: opens them.
    """

    def __init__(self, source: UrlsAhead, opened: Opened) -> None:
        super().__init__(source)
        self._source, self._opened = source, opened
        self._state: Any = None
        self._begun: Streams | None = None

    def _streams(self) -> Streams:
        """Open the streams, from the state on."""
        raise NotImplementedError

    def start(self) -> None:
        if self._begun is None:
            self._begun = _begun(self._streams())

    def close(self) -> None:
        super().close()
        if self._begun is not None:
            self._begun.close()


class StreamPass(_OpeningPass):
    """Streams of URLs. The position is the number of the next one, and the first bytes of earlier ones that are open.

    Args:
        source: of the URLs.
        opened: opens them.
        wraps: whether streams are in torch's wrapper.
    """

    def __init__(self, source: UrlsAhead, opened: Opened, *, wraps: bool = False) -> None:
        super().__init__(source, opened)
        self._wraps, self._next = wraps, 0

    def _streams(self) -> Streams:
        return self._opened(self._source, self._state)

    def items(self) -> Iterator[tuple[str, Any]]:
        with closing(self._begun or self._streams()) as streams:
            for url, stream in streams:
                if stream.number is not None:
                    self._next = max(self._next, stream.number + 1)
                    self._source.handed_out(stream.number)
                yield url, StreamWrapper(stream) if self._wraps else stream

    @property
    def position(self) -> Any:
        return self._next

    def seek(self, position: Any) -> None:
        self._state = position if isinstance(position, dict) else {"next": position}
        self._next = self._source.first = self._state["next"]


def _begun(streams: Streams) -> Streams:
    """Open the first stream, which starts prefetching, without waiting for bytes; return all streams."""
    first = next(streams, None)

    def with_first() -> Streams:
        with closing(streams):
            try:
                yield "", None  # it is begun here, so that closing it closes the streams
            except GeneratorExit:
                if first is not None:
                    first[1].close()
                raise
            if first is not None:
                yield first
            yield from streams

    begun = with_first()
    next(begun)
    return begun


class InputPass(_OpeningPass):
    """The ``(url, file_like)`` pairs that a reader reads: those of its source, or those of the URLs that it yields."""

    def seek(self, position: Any) -> None:
        """Continue at streams: ``next``, and ``again``, those before it that are not read to their ends."""
        self._state = position
        self._source.first = position["next"]
        if (owner := _stream_pass_of(self._source.sources[0])) is not None:
            owner.seek(position)

    def items(self) -> Iterator[tuple[str, Any]]:
        with closing(self._begun or self._streams()) as streams:
            yield from streams

    def _streams(self) -> Streams:
        source = iter(self._source)
        for first in source:
            if isinstance(first, (str, os.PathLike)):
                for url, stream in self._opened(_only_urls(chain([first], source)), self._state):
                    self._source.handed_out(number_of(stream))
                    yield url, stream
            else:
                pairs = _only_pairs(chain([first], source))
                yield from pairs if self._state is None else _in_state(pairs, self._state)


def _stream_pass_of(source: Pass[Any]) -> StreamPass | None:
    """The pass that has opened streams, behind torch's ``map`` and ``filter``."""
    while not isinstance(source, StreamPass):
        if type(source).position is not Pass.position or len(source.sources) != 1:
            return None
        source = source.sources[0]
    return source


def refuse_cache(pipe: IterDataPipe[Any]) -> None:
    """Refuse a cache for objects that are not read from the first to the last byte.

    Raises:
        ValueError: names the arguments.
    """
    if any(isinstance(found, AsyncPrefetch) and found.has_cache for found in all_pipes(pipe)):
        raise check.marked(
            ValueError(
                "lazy members are read where they are needed, and the cache of async_prefetch(cache_dir=) stores whole "
                "shards. Leave out cache_dir= and cache_bytes=, or lazy=."
            )
        )


def _only_urls(items: Iterable[Any]) -> Iterator[str]:
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise RemoteDataError(f"Expected a URL, as the items before it, got {type(item).__name__}: {item!r:.200}")
        yield url_of(item)


def _only_pairs(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for item in items:
        if not (isinstance(item, tuple) and len(item) == 2 and hasattr(item[1], "read")):
            raise RemoteDataError(
                f"Expected a URL or a (url, file_like) pair, got {type(item).__name__}: {item!r:.200}."
                + (" The samples are read already: use one reader in a chain." if isinstance(item, dict) else "")
            )
        yield item


def number_of(stream: Any) -> int | None:
    """Number of a stream among those of its pipe; ``None`` for streams that this package did not open."""
    number: int | None = getattr(stream, "number", None)
    return number


def refuse_part(url: VirtualUrl, reader: str) -> None:
    """Refuse what a reader cannot read.

    Args:
        url: of a view of shards, or of a part of one.
        reader: name of its class.

    Raises:
        RemoteDataError: always.
    """
    shown = redact(url)
    if isinstance(url, LineRange):
        raise RemoteDataError(f"{shown} stands for lines, which line_reader() reads, and not {reader}.", url=shown)
    if url.view is not None:
        raise RemoteDataError(
            f"{shown} stands for selected samples, and {reader} reads whole objects only. Read it by "
            "shard_tar_reader(), or leave out select() and join().",
            url=shown,
        )
    raise RemoteDataError(
        f"{shown} was split by samples, because there are fewer objects than readers or equalize_ranks asks for it, "
        f"and {reader} reads whole objects only. Use fewer readers, or shard_tar_reader().",
        url=shown,
    )


def _in_state(pairs: Iterator[tuple[str, Any]], state: StreamsState) -> Iterator[tuple[str, Any]]:
    """Yield the pairs, and check that none of them was read completely before."""
    reopened = {number for number, _ in state.get("again", [])}
    for url, stream in pairs:
        number = number_of(stream)
        if number is not None and number < state["next"] and number not in reopened:
            raise StateError(
                f"{redact(str(url))} was read before the state was saved, and is yielded again: a pipe between "
                "async_prefetch() and the reader did not resume. Between them, use map() and filter() only."
            )
        yield url, stream
