"""Download an object in parts, each by one request at a time, from its store or the disk cache."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial

from ..core.urls import RemoteUrl
from ..formats.nested import is_archive_name
from .cache.cached_object import CachedObject
from .engine import Download, Lane, Part
from .ranges import ObjectVersion

FIRST_BYTES = 1 << 20  # of an object of unknown size that is no shard


def first_bytes_of(path: str) -> int:
    """Return how many bytes of an object of unknown size are asked for first, at most: a tar is no small object."""
    return sys.maxsize if is_archive_name(path) else FIRST_BYTES


class ObjectDownload(Download):
    """One object, or a range of it.

    Attributes:
        reader: of its bytes.

    Args:
        lane: downloads it.
        url: a ``RemoteUrl`` brings size and etag.
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the object's end.
        checked: whether checksums that a manifest has are verified: parts are whole blocks then.
    """

    def __init__(self, lane: Lane, url: str, start: int = 0, stop: int | None = None, *, checked: bool = True) -> None:
        self.reader = reader = lane.reader(url, checked=checked)
        super().__init__(start, stop, reader.size, reader.checksums)
        self.url, cache, self._cached = reader.plain_url, lane.running.cache, None
        if cache is not None:
            whole, server = (start, stop) == (0, None), lane.session.storage_options.for_url(url).server()
            self._cached = CachedObject(
                reader.store, cache, self.url, reader.listed_size, reader.etag, keep=whole, server=server
            )
            reader.source, reader.on_damage = self._cached, self._cached.distrust
        self.mapped = reader.store.maps_files and cache is None
        if not self.mapped:
            self.first_bytes = first_bytes_of(reader.path)

    def fetch(self, part: Part, lane: Lane) -> None:
        at, cached, pool = part.start, self._cached, lane.running.pool
        sleep = partial(pool.sleep, is_closed=lambda: self.closed)
        found = partial(self._found, part, lane)
        with closing(self.reader.pieces(at, part.end, sleep=sleep, on_found=found)) as pieces:
            for piece in pieces:
                if cached is not None:
                    cached.keep(at, piece)
                    at += len(piece)
                part.pieces.put(piece)
                if self.closed:
                    return
                pool.check()

    def _found(self, part: Part, lane: Lane, version: ObjectVersion) -> None:
        if (version.size, version.end) != (self.size, part.end):
            lane.learn(self, part, version)

    def place_of(self, byte: int) -> tuple[RemoteUrl, int, int]:
        return self.reader.version, byte, sys.maxsize

    def close(self) -> None:
        super().close()
        if self._cached is not None:
            self._cached.close()
