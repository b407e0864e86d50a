"""Read zip members in one pass. Strict: data are returned only if length and CRC-32 match the directory."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest

from ...errors import ShardReadError
from ..byte_reader import ByteReader, join_chunks
from ..limits import FREE_BYTES, MAX_MEMBER_BYTES, MAX_RATIO
from ..position import ReadPosition
from .directory import STORED, Entry, check_flags, fault, widened

_PIECE_BYTES = 64 << 10
_INFLATED_BYTES = 256 << 10
_LOCAL = struct.Struct("<4s5H3L2H")
_SIGNATURE = b"PK\3\4"
_HAS_DESCRIPTOR = 1 << 3


class _ExactReader(ByteReader):
    """Reads exactly the requested bytes, or raises."""

    def __init__(self, parts: Iterable[bytes | memoryview], url: str, offset: int) -> None:
        super().__init__(parts, offset)
        self.url = url

    def take_all(self, num_bytes: int, what: str) -> bytes:
        """Return the next bytes, which are those of ``what``."""
        data = self.take(num_bytes)
        if len(data) < num_bytes:
            raise self.ended(num_bytes - len(data), what)
        return data

    def pieces_of(self, num_bytes: int, what: str) -> Iterator[memoryview]:
        """Yield the next bytes, in pieces of at most 64 KiB."""
        for piece in self.pieces(num_bytes):
            num_bytes -= len(piece)
            for start in range(0, len(piece), _PIECE_BYTES):
                yield piece[start : start + _PIECE_BYTES]
        if num_bytes:
            raise self.ended(num_bytes, what)

    def ended(self, num_missing: int, what: str) -> ShardReadError:
        """Create the error for bytes that end early."""
        advice = "The download was cut short: read it once more, or write"
        message = f"the bytes end {num_missing:,} before the end of {what}"
        return fault(self.url, self.offset, message, advice=advice)


def read_members(
    parts: Iterable[bytes | memoryview],
    entries: list[Entry],
    *,
    url: str,
    max_member_bytes: int = MAX_MEMBER_BYTES,
    max_ratio: int = MAX_RATIO,
    on_skip: Callable[[str], object] = lambda kind: None,
    position: ReadPosition | None = None,
) -> Iterator[tuple[str, bytes]]:
    """Yield path and data of each regular file in an archive, in the order of their offsets.

    Bytes before the first member (a self-extracting program), between members and after the last one (padding, data
    descriptors, remains of deleted members) are skipped, unless they contain the signature of a local header: that is a
    member without a directory entry, and an error. Members must not overlap, which refuses the bombs of Fifield, "A
    better zip bomb" (2019). Besides the current part, memory is allocated for one member and about 1 MiB.

    Args:
        parts: the archive's bytes, in consecutive parts of any length. Those from the directory on are not
            requested.
        entries: all of the members, as ``read_directory`` returned them.
        url: for error messages.
        max_member_bytes: a member that claims more is an error, before memory is allocated for it.
        max_ratio: a member that claims more than 16 MiB and this many times its compressed length is an error.
        on_skip: called with ``"directory"`` or ``"link"`` for each member that is skipped.
        position: the byte at which ``parts`` and reading start; set to where each member begins.

    Raises:
        ShardReadError: for a member that differs from its directory entry, and bytes that end early. The message has
            the offset.
    """
    position = position or ReadPosition()
    cursor = _ExactReader(parts, url, position.start.byte)
    if position.start.byte:
        entries = [entry for entry in entries if entry.header_offset >= position.start.byte]
    for entry in _each(cursor, entries, max_member_bytes, max_ratio):
        data = _take_data(cursor, entry)
        _compare_sum(entry, zlib.crc32(data), url)
        if entry.kind == "file":
            position.batch_offset = entry.header_offset
            yield entry.path, data
        elif entry.kind == "link" and (not data or b"\0" in data):
            raise fault(url, entry.header_offset, f"link {entry.path!r:.200} has the target {data!r:.40}")
        else:
            on_skip(entry.kind)
        del data  # or it would be kept while the next one is read


def read_pieces(
    parts: Iterable[bytes | memoryview],
    entries: list[Entry],
    *,
    url: str,
    max_member_bytes: int,
    max_ratio: int = MAX_RATIO,
) -> Iterator[tuple[Entry, Iterator[bytes | memoryview]]]:
    """Like :func:`read_members`, for members that may be too large for memory.

    Yields:
        tuple: the directory entry of a member of any kind, and its data in pieces, all of which must be consumed before
        the next member is requested.

    Raises:
        ShardReadError: as :func:`read_members`; for a wrong checksum, after the last piece.
    """
    cursor = _ExactReader(parts, url, 0)
    for entry in _each(cursor, entries, max_member_bytes, max_ratio):
        yield entry, _summed(cursor, entry)


def _summed(cursor: _ExactReader, entry: Entry) -> Iterator[bytes | memoryview]:
    found = 0
    stored = entry.method == STORED
    for piece in cursor.pieces_of(entry.num_bytes, f"{entry.path!r:.200}") if stored else _inflate(cursor, entry):
        found = zlib.crc32(piece, found)
        yield piece
    _compare_sum(entry, found, cursor.url)


def _each(cursor: _ExactReader, entries: list[Entry], max_member_bytes: int, max_ratio: int) -> Iterator[Entry]:
    """Yield each member when the reader is at its data, which the caller must consume."""
    url = cursor.url
    for entry in entries[:1]:
        _pass_gap(cursor, entry.header_offset - cursor.offset, None)
    for entry, following in zip_longest(entries, islice(entries, 1, None)):
        stops = entry.directory_offset if following is None else following.header_offset
        _check_claims(entry, max_member_bytes, max_ratio, url)
        _check_local_header(cursor, entry)
        if cursor.offset + entry.compressed_bytes > stops:
            what = f"member {entry.path!r:.200} takes {entry.compressed_bytes:,} bytes"
            raise fault(url, cursor.offset, f"{what}, and overlaps what begins at byte {stops:,}")
        yield entry
        _pass_gap(cursor, stops - cursor.offset, entry)


def _compare_sum(entry: Entry, found: int, url: str) -> None:
    if found != entry.crc32:
        what = f"member {entry.path!r:.200} has the CRC-32 {found:08x}, the directory says {entry.crc32:08x}"
        raise fault(url, entry.header_offset, what)


def _check_claims(entry: Entry, max_member_bytes: int, max_ratio: int, url: str) -> None:
    limit = min(max_member_bytes, FREE_BYTES + max_ratio * entry.compressed_bytes)
    if entry.num_bytes > limit:
        what = f"member {entry.path!r:.200} claims {entry.num_bytes:,} bytes for {entry.compressed_bytes:,}"
        limits = f"max_member_bytes={max_member_bytes:,}, max_ratio={max_ratio:,}"
        advice = "Raise the limit if you trust it, or write"
        raise fault(url, entry.header_offset, f"{what} compressed ones (at most {limit:,}: {limits})", advice=advice)


def _check_local_header(cursor: _ExactReader, entry: Entry) -> None:
    """Compare the header before a member's data with the directory."""
    url, start, what = cursor.url, entry.header_offset, f"the header of member {entry.path!r:.200}"
    if cursor.offset != start:
        raise fault(url, start, f"{what} overlaps the member before it, which ends at byte {cursor.offset:,}")
    fields = _LOCAL.unpack(cursor.take_all(_LOCAL.size, what))
    signature, _, flags, method, _, _, crc32, narrow_compressed, narrow_bytes, name_length, extra_length = fields
    if signature != _SIGNATURE:
        raise fault(url, start, f"{what} begins with {signature!r} instead of {_SIGNATURE!r}")
    name = cursor.take_all(name_length, what)
    extra = cursor.take_all(extra_length, what)
    if (name, method) != (entry.raw_name, entry.method):
        found, expected = f"{name!r:.100}, method {method}", f"{entry.raw_name!r:.100}, method {entry.method}"
        raise fault(url, start, f"{what} says {found}, the directory says {expected}")
    check_flags(flags, name, url, start)
    # With a descriptor, the writer did not know these values yet
    if not flags & _HAS_DESCRIPTOR:
        num_bytes, compressed_bytes = widened((narrow_bytes, narrow_compressed), extra)
        local = crc32, compressed_bytes, num_bytes
        expected_values = entry.crc32, entry.compressed_bytes, entry.num_bytes
        if local != expected_values:
            names = "CRC-32, compressed and uncompressed bytes"
            raise fault(url, start, f"{what} says {local} ({names}), the directory says {expected_values}")


def _take_data(cursor: _ExactReader, entry: Entry) -> bytes:
    if entry.method == STORED:
        return cursor.take_all(entry.num_bytes, f"member {entry.path!r:.200}")
    return join_chunks(_inflate(cursor, entry), entry.num_bytes)


def _inflate(cursor: _ExactReader, entry: Entry) -> Iterator[bytes]:
    """Yield exactly the bytes that the member claims, in chunks, or raise."""
    url, start, what = cursor.url, entry.header_offset, f"member {entry.path!r:.200}"
    inflater = zlib.decompressobj(-15)
    left, unread = entry.num_bytes, entry.compressed_bytes
    for piece in cursor.pieces_of(unread, what):
        source: bytes | memoryview = piece
        unread -= len(piece)
        more = True
        while more:
            limit = min(_INFLATED_BYTES, left + 1)
            try:
                chunk = inflater.decompress(source, limit)
            except zlib.error as error:
                raise fault(url, start, f"{what} cannot be inflated ({error})") from error
            left -= len(chunk)
            if left < 0:
                raise fault(url, start, f"{what} holds more than the {entry.num_bytes:,} bytes that it claims")
            yield chunk
            source = inflater.unconsumed_tail
            more = not inflater.eof and (len(source) > 0 or len(chunk) == limit)  # zlib may hold output back
        if inflater.eof and (inflater.unused_data or unread):
            raise fault(url, start, f"{what} has bytes after the end of its deflated data")
    if left or (entry.compressed_bytes and not inflater.eof):
        received = entry.num_bytes - left
        raise fault(url, start, f"{what} ends after {received:,} of {entry.num_bytes:,} bytes, or without its end mark")


def _pass_gap(cursor: _ExactReader, count: int, entry: Entry | None) -> None:
    """Skip ``count`` bytes, which include the data descriptor of the member before them."""
    what = "the bytes between members"
    tail = cursor.take_all(min(count, 24), what)
    if count and entry is not None:
        tail = tail[_descriptor_length(entry, tail) :]
    left = count - min(count, 24)
    lost = _SIGNATURE in tail
    for piece in cursor.pieces_of(left, what):
        look = tail[-3:] + piece
        lost = lost or _SIGNATURE in look
        tail = look
    if lost:
        what = f"among the {count:,} bytes before this is a local header (PK\\3\\4) that the directory does not name"
        raise fault(cursor.url, cursor.offset, what)


def _descriptor_length(entry: Entry, gap: bytes) -> int:
    """Return the length of the data descriptor at the start of a gap: 32 or 64-bit sizes, with or without signature."""
    wide = struct.pack("<L2Q", entry.crc32, entry.compressed_bytes, entry.num_bytes)
    for descriptor in (wide, wide[:8] + wide[12:16]):
        for signature in (b"PK\7\b", b""):
            if gap.startswith(signature + descriptor):
                return len(signature + descriptor)
    return 0
