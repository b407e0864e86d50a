"""Save the index of a source's archives in the folder of the shards, so that a resumed job need not read them again."""

from __future__ import annotations

import hashlib
import io
import logging
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.urls import RemoteUrl, redact
from ..fetch.sample_table import Int64s, SampleTable
from ..formats.decoders import npz
from ..writing import UNFINISHED, ShardFolder

_MAGIC = b"torchdata_remote index 4\n"
_DIGEST_BYTES = 16
_LEVEL = 1  # names and differences shrink to a seventh already, at 150 MB/s
_log = logging.getLogger("torchdata_remote")


def dump_index(table: SampleTable, archives: Sequence[RemoteUrl], scratch: str) -> bytes:
    """Encode a table: about 10 bytes for each sample, and a digest of all.

    It holds no URL, as one may contain a signature: an archive is its place in the listing, a temporary object
    its name.

    Args:
        table: of the samples of ``archives``.
        archives: as listed.
        scratch: URL prefix of temporary objects.
    """
    places = {str(url): number for number, url in enumerate(archives)}
    names: list[str] = []
    objects = np.empty(len(table.urls), np.int64)
    for number, url in enumerate(table.urls):
        place = places.get(url)
        if place is None:
            if not names or names[-1] != url.removeprefix(scratch):
                names.append(url.removeprefix(scratch))
            place = -len(names)
        objects[number] = place
    columns: dict[str, Any] = {name: _small(column) for name, column in table.columns().items()}
    text = "\0".join(names).encode("utf-8", "surrogateescape")
    buffer = io.BytesIO()
    np.savez(buffer, urls=_small(objects), scratch=np.frombuffer(text, np.uint8), **columns)
    body = zlib.compress(buffer.getvalue(), _LEVEL)
    return _MAGIC + _digest(body) + body


def read_index(folder: ShardFolder, name: str, archives: Sequence[RemoteUrl]) -> SampleTable | None:
    """Read the index of these archives from a folder of shards; ``None`` if there is none, or it is damaged."""
    data = folder.read(name)
    try:
        return None if data is None else load_index(data, archives, folder.template.folder + UNFINISHED)
    except ValueError as error:
        url = redact(folder.template.folder + name)
        _log.warning("%s is damaged, so the source is indexed again: %s", url, error)
        return None


def load_index(data: bytes, archives: Sequence[RemoteUrl], scratch: str) -> SampleTable:
    """Decode the table of these archives, as :func:`dump_index` wrote it.

    Raises:
        ValueError: if it is damaged, or of another version.
    """
    try:
        body = data[len(_MAGIC) + _DIGEST_BYTES :]
        if not data.startswith(_MAGIC + _digest(body)):
            raise ValueError("its version or digest does not match")
        found = npz(zlib.decompress(body))
        columns = {name: array if name == "names.data" else _whole(array) for name, array in found.items()}
        names = found["scratch"].tobytes().decode("utf-8", "surrogateescape").split("\0")
        urls = [archives[place] if place >= 0 else RemoteUrl(scratch + names[-1 - place]) for place in columns["urls"]]
        return SampleTable.from_columns(columns, urls)
    except Exception as error:  # of numpy, zipfile and zlib, which document none
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _small(column: Any) -> Any:
    """Differences of integers, in as few bytes as the largest one takes; other columns as they are."""
    if column.dtype != np.int64:
        return column
    steps = np.diff(column, prepend=0)
    widest = max(-int(steps.min(initial=0)), int(steps.max(initial=0)))
    return steps.astype(next(kind for kind in (np.int8, np.int16, np.int32, np.int64) if widest <= np.iinfo(kind).max))


def _whole(steps: Any) -> Int64s:
    return np.cumsum(steps, dtype=np.int64)
