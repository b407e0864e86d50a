"""A store in memory whose requests a test counts, delays or breaks: a filesystem of fsspec, as a user may have one."""

from __future__ import annotations

import contextlib
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

import torchdata_remote as tdr

AT_ONCE = tdr.RetryPolicy(first_wait_s=0, max_wait_s=0)


class Read(NamedTuple):
    """A request: name of the object, first byte, and the byte after the last one."""

    name: str
    start: int
    end: int


class ScriptedStore:
    """Objects by name. ``before_read`` may block, count or raise; it is called in the thread of the request."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.url = f"scripted://{uuid.uuid4().hex}/"
        self.reads: list[Read] = []
        self.listings = 0
        self.lock = threading.Lock()
        self.running = self.most = 0
        self.before_read: Callable[[str, int], None] = lambda name, start: None
        self.before_stat: Callable[[str], None] = lambda name: None
        self.has_etags = True

    def etag(self, name: str) -> str | None:
        return f"{zlib.crc32(self.objects[name]):08x}-{len(self.objects[name])}" if self.has_etags else None

    def urls(self, *, listed: bool = True) -> list[str]:
        """URLs of all objects, with size and etag if they are listed."""
        if not listed:
            return [self.url + name for name in self.objects]
        return [tdr.RemoteUrl(self.url + name, len(data), self.etag(name)) for name, data in self.objects.items()]

    def read(self, name: str, start: int, end: int) -> bytes:
        with self.lock:
            self.reads.append(Read(name, start, end))
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            self.before_read(name, start)
            return self.objects[name][start:end]
        finally:
            with self.lock:
                self.running -= 1

    def open(
        self, urls: Iterable[str] | None = None, *, listed: bool = True, **options: Any
    ) -> Iterator[tuple[str, Any]]:
        """Name and stream of each object, by ``async_prefetch``; small limits and repetitions at once by default."""
        source = tdr.IterableWrapper(self.urls(listed=listed) if urls is None else urls, deepcopy=False)
        pipe = tdr.pipes.AsyncPrefetch(source, **{"max_in_flight": 4, "part_bytes": 10, "retry": AT_ONCE, **options})
        for url, stream in pipe:
            yield url.removeprefix(self.url), stream

    def read_all(self, *, listed: bool = True, **options: Any) -> dict[str, bytes]:
        return {name: stream.read() for name, stream in self.open(listed=listed, **options)}


_STORES: dict[str, ScriptedStore] = {}


class ScriptedFileSystem(MemoryFileSystem):  # type: ignore[misc]  # which several threads may use
    """Reads what the stores of this process hold."""

    protocol = "scripted"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("scripted://").strip("/")

    def _found(self, path: str) -> tuple[ScriptedStore, str]:
        store, _, name = self._strip_protocol(path).partition("/")
        return _STORES[store], name

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        store, name = self._found(path)
        store.before_stat(name)
        if name in store.objects:
            known = {"name": self._strip_protocol(path), "size": len(store.objects[name]), "type": "file"}
            return {**known, "ETag": store.etag(name)}
        if any(other.startswith(f"{name}/") for other in store.objects):
            return {"name": self._strip_protocol(path), "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
        store, folder = self._found(path)
        store.listings += 1
        start = f"{folder}/" if folder else ""
        below = {name[len(start) :].partition("/")[0] for name in store.objects if name.startswith(start)}
        host = self._strip_protocol(path).partition("/")[0]
        found = [self.info(f"{host}/{start}{name}") for name in sorted(below)]
        return found if detail else [one["name"] for one in found]

    def find(self, path: str, maxdepth: int | None = None, **more: Any) -> dict[str, Any]:
        store, folder = self._found(path)
        store.listings += 1
        host, start = self._strip_protocol(path).partition("/")[0], f"{folder}/" if folder else ""
        below = [name for name in sorted(store.objects) if name.startswith(start)]
        below = [name for name in below if maxdepth is None or "/" not in name[len(start) :]]
        return {f"{host}/{name}": self.info(f"{host}/{name}") for name in below}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        store, name = self._found(path)
        if name not in store.objects:
            raise FileNotFoundError(path)
        size = len(store.objects[name])
        return store.read(name, start or 0, size if end is None else min(end, size))


fsspec.register_implementation("scripted", ScriptedFileSystem, clobber=True)


@contextlib.contextmanager
def store_of(objects: dict[str, bytes]) -> Iterator[ScriptedStore]:
    """A new store with a URL of its own."""
    store = ScriptedStore(objects)
    host = store.url.split("/")[2]
    _STORES[host] = store
    try:
        yield store
    finally:
        del _STORES[host]


def numbered(count: int, num_bytes: int) -> dict[str, bytes]:
    """Objects ``0``, ``1``, ... of this length, each of other bytes."""
    return {f"{number}": bytes([number % 251]) * num_bytes for number in range(count)}


def held_by(gate: threading.Event | threading.Barrier) -> Callable[[str, int], None]:
    """A ``before_read`` that waits."""

    def before_read(name: str, start: int) -> None:
        assert gate.wait(60) is not False, "waited in vain"

    return before_read
