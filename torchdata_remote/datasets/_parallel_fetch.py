"""Fetch complete objects concurrently, and decode them in threads while others are fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from torch.utils.data import get_worker_info

from ..core.processes.processors import num_processors
from ..core.stats.counters import DECODE, FETCH, timed
from ..core.threads.ordered_map import Task, ordered_map
from ..core.urls import redact
from ..errors import DecodeError, RemoteDataError
from ..fetch.session import FetchSession
from ..fetch.streams import stream_objects

T = TypeVar("T")


@dataclass(frozen=True)
class Fetched(Generic[T]):
    """Result of an object: its value, or the error."""

    url: str
    value: T | None
    error: RemoteDataError | None = None


def fetch_objects(
    urls: Iterable[str], session: FetchSession, decode: Callable[[bytes], T] | None
) -> Generator[Fetched[T], None, None]:
    """Fetch and decode objects, and yield the results in order.

    Args:
        urls: read ahead, in the thread that iterates.
        session: for the requests.
        decode: called in worker threads; may raise anything. ``None`` yields the bytes.

    Yields:
        Fetched: also for an object that failed.
    """
    with closing(_tasks(urls, session, decode)) as tasks:
        if decode is None:
            yield from (task(_wait) for task in tasks)
            return
        with closing(ordered_map(tasks, max_threads=_num_threads())) as results:
            yield from timed(results, DECODE, within=FETCH, elsewhere=True)


def _wait(seconds: float) -> None:
    """No-op wait, for tasks that run in the calling thread."""


def _tasks(
    urls: Iterable[str], session: FetchSession, decode: Callable[[bytes], T] | None
) -> Generator[Task[Fetched[T]], None, None]:
    """Yield one task per object, once its bytes are available."""
    with closing(stream_objects(urls, session)) as streams:
        while True:
            try:
                url, stream = next(streams)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001  # raised in order, after the results before it
                yield partial(_raised, error)
                return
            with stream:
                try:
                    data = stream.read()
                except RemoteDataError as error:
                    yield partial(_failed, url, error)
                else:
                    yield partial(_decoded, url, data, decode)


def _raised(error: Exception, wait: object) -> NoReturn:
    raise error


def _failed(url: str, error: RemoteDataError, wait: object) -> Fetched[T]:
    return Fetched(url, None, error)


def _decoded(url: str, data: bytes, decode: Callable[[bytes], Any] | None, wait: object) -> Fetched[Any]:
    if decode is None:
        return Fetched(url, data)
    began_s = time.perf_counter()
    try:
        return Fetched(url, decode(data))
    except Exception as cause:  # noqa: BLE001  # a damaged file or a user's decoder may raise anything
        shown = redact(url)
        error = DecodeError(
            f"{shown}: its {len(data):,} bytes cannot be decoded: {type(cause).__name__}: {cause}", url=shown
        )
        error.__cause__ = cause
        return Fetched(url, None, error)
    finally:
        DECODE.worked(began_s, len(data), items=1)


def _num_threads() -> int:
    """Number of decoding threads: this process's share of the processors."""
    worker = get_worker_info()
    return max(1, num_processors() // (1 if worker is None else worker.num_workers))
