"""A store in memory that is read through an empty disk cache, and counts its requests."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.cache_folder import IN_MEMORY
from torchdata_remote.core.options import FetchOptions, RetryPolicy, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import TransientStorageError
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage import Answer, Entry

AT_ONCE = RetryPolicy(first_wait_s=0, max_wait_s=0)


class CountingStore:
    """Objects in a dict, sent in chunks; ``faults`` are what becomes of the next answers."""

    def __init__(self, objects: dict[str, bytes], chunk_bytes: int = 4) -> None:
        self.objects, self.chunk_bytes = objects, chunk_bytes
        self.may_ignore_ranges = False
        self.maps_files = False
        self.has_etags = True
        self.gets = self.heads = 0
        self.faults: list[str] = []
        self.lock = threading.Lock()
        self.before_stat: Callable[[], None] = lambda: None

    def etag(self, path: str) -> str | None:
        return f'"{hash(self.objects[path])}"' if self.has_etags else None

    def stat(self, path: str) -> Entry:
        self.heads += 1
        self.before_stat()
        return Entry(path, len(self.objects[path]), self.etag(path))

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        with self.lock:
            self.gets += 1
            fault = self.faults.pop(0) if self.faults else ""
        data = self.objects[path]
        if fault == "listing":  # the response to another request, through a proxy that mixes them up
            return Answer(0, 10, 10, None, self.chunks(b"<Listing/>", ""))
        if fault == "whole" or self.may_ignore_ranges:
            start, end = 0, None
        body = data[start:end]
        return Answer(start, start + len(body), len(data), self.etag(path), self.chunks(body, fault))

    def chunks(self, body: bytes, fault: str) -> Generator[memoryview, None, None]:
        cut = len(body) // 2 if fault in ("cut", "reset") else len(body)
        for at in range(0, cut, self.chunk_bytes):
            yield memoryview(body)[at : min(at + self.chunk_bytes, cut)]
        if fault == "reset":
            raise TransientStorageError("reset")


@contextmanager
def cached(objects: dict[str, bytes], **more: Any) -> Iterator[tuple[CountingStore, str]]:
    """Let every URL be read from this store; also yields an empty folder for the cache."""
    store = CountingStore(objects, **more)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchdata_remote.fetch.object_download.open_store", lambda url, *rest: (store, str(url)))
        yield store, folder


def options(folder: str, cache_bytes: int = 1 << 40, **more: Any) -> FetchOptions:
    chosen: dict[str, Any] = {"max_in_flight": 3, "part_bytes": 10, "max_buffer_bytes": 1_000, "retry": AT_ONCE} | more
    return FetchOptions(cache_dir=folder, cache_bytes=cache_bytes, **chosen)


def epoch(store: CountingStore, chosen: FetchOptions, *, listed: bool) -> dict[str, bytes]:
    urls = [RemoteUrl(url, len(data), store.etag(url)) if listed else url for url, data in store.objects.items()]
    return {str(url): stream.read() for url, stream in stream_objects(urls, FetchSession(chosen, StorageOptions()))}
