"""Find runs of plain members in the bytes at hand, which are nearly all members of a shard.

Parsing a header field by field takes Python about two microseconds, as long as the rest of a small member. But nearly
all headers of a shard are alike: a short name, an octal size, no extension. So a whole window is parsed in a few vector
operations. Each 512-byte block with the word "usta" at the offset of a header's magic is a candidate, and checksum,
type, size and name of all candidates are checked together. A candidate may be data that look like a header. But if the
current block is a header, and its size leads exactly to the next candidate, then that one is a header, too, and so on.
Any other header is left to ``parser``, which handles all cases.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..byte_reader import ByteReader
from .parser import BLOCK, FILE, checksum_fits, octal, padding, text

# Fits into a processor's cache
_WINDOW_BYTES = 2 << 20
# For less the overhead of vector operations exceeds what they save
_MIN_SCAN_BYTES = 32 << 10
# Headers of members up to this size are found faster by a scan, of larger ones from header to header
_SMALL_BYTES = 16 << 10
_STEPS, _MIN_CHAIN = 16, 4

_MAGIC = int.from_bytes(b"usta", "little")
# Digits of the size and of the checksum, what ends them, and the weights of the digits: eleven, and six
_DIGITS, _ENDS = [*range(124, 135), *range(148, 154)], [135, 154, 155]
_WEIGHTS = np.zeros((17, 2))
_WEIGHTS[:11, 0], _WEIGHTS[11:, 1] = 8.0 ** np.arange(10, -1, -1), 8.0 ** np.arange(5, -1, -1)


class Run(NamedTuple):
    """Adjacent members: names, start and end of their data in the view, and where the next header begins."""

    names: list[str]
    starts: list[int]
    ends: list[int]
    after: int


class PlainMembers:
    """Finds plain members: from header to header, or, if members are small, by vectorised scans.

    Args:
        cursor: at a header whenever it is used.
        max_member_bytes: larger members are not plain.
    """

    def __init__(self, cursor: ByteReader, max_member_bytes: int) -> None:
        self._cursor, self._max_member_bytes = cursor, max_member_bytes
        self._scan: _Scan | None = None
        # Whether the members before were
        self._are_small = False

    def next_run(self) -> Run | None:
        """Return the plain members from here on, and move the cursor behind them; ``None`` if the next is not plain."""
        cursor, scan = self._cursor, self._scan
        view, position = cursor.view, cursor.position
        if scan is None or scan.part != cursor.part_offset or position >= scan.end:
            self._scan = scan = None
            if self._are_small and len(view) - position >= _MIN_SCAN_BYTES:
                self._scan = scan = _Scan(view, position, cursor.part_offset, self._max_member_bytes)
        run = None if scan is None else scan.run_from(position)
        run = run or self._by_steps(view, position)
        if run is not None:
            self._are_small = run.after - position <= len(run.names) * _SMALL_BYTES
            cursor.position = run.after
        return run

    def _by_steps(self, view: memoryview, position: int) -> Run | None:
        names: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        while len(names) < _STEPS and (start := position + BLOCK) <= len(view):
            header = view[position:start].tobytes()
            size = octal(header[124:136])
            if header[156] != FILE or header[345] or size is None or size > self._max_member_bytes:
                break
            after = start + size + padding(size)
            if after > len(view) or not checksum_fits(header):
                break
            names.append(text(header[:100]))
            starts.append(start)
            ends.append(start + size)
            position = after
        return Run(names, starts, ends, position) if names else None


class _Scan:
    """The plain headers in a window of a part, from a header on. It holds no reference to the part."""

    def __init__(self, view: memoryview, start: int, part: int, max_member_bytes: int) -> None:
        num_blocks = min(len(view) - start, _WINDOW_BYTES) // BLOCK
        self.part, self.end, self._start = part, start + num_blocks * BLOCK, start
        words = np.ndarray((num_blocks,), "<u4", view, offset=start + 257, strides=(BLOCK,))
        blocks = np.flatnonzero(words == _MAGIC)
        all_blocks = np.frombuffer(view, np.uint8, num_blocks * BLOCK, start).reshape(num_blocks, BLOCK)
        headers = all_blocks.take(blocks, axis=0)

        digits = headers[:, _DIGITS] ^ FILE
        self._sizes, checksums = (digits.astype(float) @ _WEIGHTS).astype(np.int64).T
        plain = (digits < 8).all(axis=1) & ((headers[:, _ENDS] | 32) == 32).all(axis=1)
        headers[:, 148:156] = ord(" ")
        plain &= checksums == _sums(headers)
        plain &= (headers[:, 156] == FILE) & (self._sizes <= max_member_bytes)
        # The prefix of a long path
        plain &= headers[:, 345] == 0
        after = blocks + 1 + (self._sizes + BLOCK - 1) // BLOCK
        plain &= after <= num_blocks
        leads_on = plain[:-1] & (after[:-1] == blocks[1:])
        self._breaks: list[int] = [*np.flatnonzero(~leads_on).tolist(), len(blocks) - 1]
        self._plain = plain
        self._names = np.ascontiguousarray(headers[:, :100]).view("S100")[:, 0]
        self._data_starts, self._after = start + (blocks + 1) * BLOCK, start + after * BLOCK
        self._blocks: list[int] = blocks.tolist()

    def run_from(self, position: int) -> Run | None:
        """Return the chain of members from the header at ``position`` on; ``None`` if it is short."""
        block = (position - self._start) // BLOCK
        first = bisect_left(self._blocks, block)
        if first == len(self._blocks) or self._blocks[first] != block:
            return None
        last = self._breaks[bisect_left(self._breaks, first)]
        if last - first < _MIN_CHAIN:
            return None
        stop = last + 1 if self._plain[last] else last
        starts = self._data_starts[first:stop]
        ends = starts + self._sizes[first:stop]
        return Run(_texts(self._names[first:stop].tolist()), starts.tolist(), ends.tolist(), int(self._after[stop - 1]))


def _sums(headers: npt.NDArray[np.uint8]) -> Any:
    """Return the sum of the bytes of each header. Most bytes are the same in all: to compare takes less than to add."""
    words = headers.view(np.uint64)
    differ = np.flatnonzero(np.bitwise_or.reduce(words ^ words[:1]).view(np.uint8))
    others = headers[:, differ].sum(axis=1, dtype=np.int64)
    return others + np.delete(headers[:1], differ).sum(dtype=np.int64)


def _texts(names: Sequence[bytes]) -> list[str]:
    """Decode names, all in one call if possible."""
    joined = b"\n".join(names)
    if b"\0" not in joined:
        texts = joined.decode("utf-8", "surrogateescape").split("\n")
        if len(texts) == len(names):
            return texts
    return list(map(text, names))
