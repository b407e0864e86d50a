"""Read what says where the row groups of a file are: the footer of Parquet, the blocks of Arrow's two formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import ShardReadError
from .flatbuffer import (
    DICTIONARY_BATCH,
    RECORD_BATCH,
    Message,
    head_bytes_at,
    parse_blocks,
    parse_message,
    schema_message,
)
from .library import damaged, reading

TAIL_BYTES = 64 << 10  # of the first request: most footers are shorter
_WINDOW_BYTES = 256 << 10  # of each request that looks for the messages of a stream
MAX_FOOTER_BYTES = 256 << 20

PARQUET, ARROW = b"PAR1", b"ARROW1"
_ENCRYPTED = b"PARE"
_STREAM = b"\xff\xff\xff\xff"

Ints = npt.NDArray[np.int64]


class Bytes(Protocol):
    """Reads ranges of one object."""

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive)."""


class Blocks(NamedTuple):
    """Messages of an Arrow file: first byte, the byte after the last one, and number of rows of each."""

    starts: Ints
    stops: Ints
    counts: Ints


class Footer(NamedTuple):
    """What the row groups of a file are found by.

    Args:
        data: the footer of Parquet, with its length and the mark after it; the schema message of Arrow.
        num_bytes: of the file.
        batches: the record batches of Arrow; ``None`` for Parquet.
        dictionaries: the dictionary batches of Arrow, in order.
        is_stream: whether it is an Arrow stream, whose dictionaries may be replaced.
    """

    data: bytes
    num_bytes: int
    batches: Blocks | None = None
    dictionaries: Blocks | None = None
    is_stream: bool = False

    @property
    def memory_bytes(self) -> int:
        """Bytes that it takes."""
        blocks = sum(len(found.starts) for found in (self.batches, self.dictionaries) if found is not None)
        return len(self.data) + 24 * blocks


def read_footer(source: Bytes, num_bytes: int, url: str) -> Footer:
    """Read the footer of a Parquet or Arrow file, which differ in their last bytes.

    The last 64 KiB of a file are read first, and the rest of a longer footer then. Arrow files and streams also need
    the head of each record batch, which are read one after the other, by 256 KiB.

    Args:
        source: of bytes.
        num_bytes: of the file.
        url: as errors may show it.

    Raises:
        ShardReadError: if it is neither, or damaged.
    """
    with reading(url, "the footer"):
        tail = source.read(max(0, num_bytes - TAIL_BYTES), num_bytes)
        if tail.endswith(PARQUET):
            return Footer(_with_rest(source, num_bytes, tail, PARQUET, url), num_bytes)
        if tail.endswith(ARROW):
            return _arrow_file(source, num_bytes, tail, url)
        head = tail if len(tail) == num_bytes else source.read(0, 8)
        if head.startswith(_STREAM):
            return _arrow_stream(source, num_bytes, url)
    raise _neither(url, head, tail)


def _neither(url: str, head: bytes, tail: bytes) -> ShardReadError:
    if tail.endswith(_ENCRYPTED):
        return ShardReadError(f"{url}: the footer is encrypted, which table_reader cannot read.", url=url)
    if head.startswith((PARQUET, ARROW)):
        return damaged(url, "the footer", f"the file ends with {tail[-8:]!r} in place of a footer")
    return ShardReadError(
        f"{url} is neither a Parquet nor an Arrow file: it begins with {head[:8]!r} and ends with {tail[-8:]!r}. "
        "Select the tables by a pattern, as list_remote(pattern='*.parquet').",
        url=url,
    )


def _with_rest(source: Bytes, num_bytes: int, tail: bytes, mark: bytes, url: str) -> bytes:
    """Return the footer, its length and the mark, from the file's last bytes and a second request if need be."""
    after = 4 + len(mark)
    length = int.from_bytes(tail[-after:][:4], "little")
    total = length + after
    if not 0 < length <= min(num_bytes - after - len(mark), MAX_FOOTER_BYTES):
        raise damaged(url, "the footer", f"its length is given as {length:,} bytes, in a file of {num_bytes:,} bytes")
    if total <= len(tail):
        return tail[-total:]
    return source.read(num_bytes - total, num_bytes - len(tail)) + tail


def _arrow_file(source: Bytes, num_bytes: int, tail: bytes, url: str) -> Footer:
    footer = _with_rest(source, num_bytes, tail, ARROW, url)[: -4 - len(ARROW)]
    blocks, schema = parse_blocks(footer), schema_message(footer)
    heads = [_ranges(found, num_bytes) for found in blocks]
    batches = [block for block, _ in heads[1]]
    read = _windowed(source, num_bytes, max(0, num_bytes - len(tail)), tail)
    counts = [parse_message(read(start, stop)).num_rows for start, stop in batches]
    return Footer(schema, num_bytes, _blocks(heads[1], counts), _blocks(heads[0], [0] * len(heads[0])))


def _ranges(blocks: npt.NDArray[np.void], num_bytes: int) -> list[tuple[tuple[int, int], int]]:
    """Return the range of each block's head, and the end of its body."""
    found = []
    for offset, head_bytes, _, body_bytes in blocks.tolist():
        end = offset + head_bytes + body_bytes
        if min(offset, head_bytes, body_bytes) < 0 or end > num_bytes:
            raise ValueError(f"a record batch at bytes {offset:,} to {end:,} of {num_bytes:,}")
        found.append(((offset, offset + head_bytes), end))
    return found


def _blocks(heads: list[tuple[tuple[int, int], int]], counts: list[int]) -> Blocks:
    starts, stops = [head[0] for head, _ in heads], [end for _, end in heads]
    return Blocks(*(np.array(column, np.int64) for column in (starts, stops, counts)))


def _arrow_stream(source: Bytes, num_bytes: int, url: str) -> Footer:
    window = source.read(0, min(num_bytes, _WINDOW_BYTES))
    begin, length = head_bytes_at(window[:8])
    end = begin + length
    if not 0 < length <= min(num_bytes, MAX_FOOTER_BYTES):
        raise ValueError(f"a schema of {length:,} bytes")
    schema = window[:end] if end <= len(window) else source.read(0, end)
    found: dict[int, list[tuple[int, int, int]]] = {RECORD_BATCH: [], DICTIONARY_BATCH: []}
    for start, stop, message in _messages(source, num_bytes, len(schema)):
        if stop > num_bytes:
            raise damaged(url, f"record batch {len(found[RECORD_BATCH])}", f"the file ends before byte {stop:,}")
        if message.kind not in found:
            raise ValueError(f"a message of type {message.kind} at byte {start:,}")
        found[message.kind].append((start, stop, message.num_rows))
    batches, dictionaries = (
        Blocks(*np.array(found[kind], np.int64).reshape(-1, 3).T) for kind in (RECORD_BATCH, DICTIONARY_BATCH)
    )
    return Footer(schema, num_bytes, batches, dictionaries, is_stream=True)


def _messages(source: Bytes, num_bytes: int, at: int) -> Iterator[tuple[int, int, Message]]:
    """Yield the messages of a stream: first byte, the byte after the body, and the head."""
    read = _windowed(source, num_bytes)
    while at + 8 <= num_bytes:
        begin, length = head_bytes_at(read(at, at + 8))
        if not length:
            return
        message = parse_message(read(at, min(num_bytes, at + begin + length)))
        stop = at + begin + length + message.body_bytes
        yield at, stop, message
        at = stop


def _windowed(source: Bytes, num_bytes: int, first: int = 0, data: bytes = b"") -> Callable[[int, int], bytes]:
    """Return a function that reads small ranges, forwards, by few requests. The bytes from the first on are known."""

    def read(start: int, stop: int) -> bytes:
        nonlocal first, data
        if not first <= start <= stop <= first + len(data):
            first, data = start, source.read(start, min(num_bytes, max(stop, start + _WINDOW_BYTES)))
        return data[start - first : stop - first]

    return read
