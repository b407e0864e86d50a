"""Read the central directory of a zip archive: names, offsets and checksums of its members.

Fields and offsets are those of PKWARE's APPNOTE.TXT 6.3.10. Strict where readers differ: one end record, at
the end of the object, and the directory right before it. (``zipfile`` takes the last of several, and guesses offsets.)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import ShardReadError
from ..text_instead import text_instead

MAX_DIRECTORY_BYTES = 256 << 20
MAX_TARGET_BYTES = 4096  # PATH_MAX of Linux
STORED, DEFLATED = 0, 8

_TAIL_BYTES = 66 << 10  # room for the longest comment (65,535 bytes) and the three end records (98)
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCAL_BYTES = 30  # of the header before each member, without the name
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_NARROW_LIMITS = (0xFFFF,) * 4 + (0xFFFFFFFF,) * 2  # of fields of the end record that are in zip64's instead
_ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13
_PATCH = 1 << 5
_UTF8 = 1 << 11
_FILE_TYPES = (0, 8)  # the upper 4 bits of a Unix mode; 0 if the writer has no modes
_DIRECTORY_TYPE, _LINK_TYPE = 4, 10


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of the directory.

    Args:
        path: the name, as text.
        raw_name: the name's bytes, which the member's own header repeats.
        header_offset: byte at which the member's own header begins.
        compressed_bytes: length of the data in the archive.
        num_bytes: length of the data.
        crc32: checksum of the data.
        method: 0 (stored) or 8 (deflated).
        kind: ``"file"``, ``"directory"`` or ``"link"``.
        directory_offset: byte at which the directory begins, and the members end.
    """

    path: str
    raw_name: bytes
    header_offset: int
    compressed_bytes: int
    num_bytes: int
    crc32: int
    method: int
    kind: str
    directory_offset: int


def fault(url: str, offset: int, what: str, *, advice: str = "It is damaged or not a zip: write") -> ShardReadError:
    """Create the error for a fault at a byte offset of an archive."""
    return ShardReadError(f"{url}: at byte {offset:,}: {what}. {advice} the archive again.", url=url)


def check_flags(flags: int, name: bytes, url: str, offset: int) -> None:
    """Refuse members that cannot be read: encrypted ones, and patches to other files."""
    if flags & (_ENCRYPTED | _PATCH):
        what = "is encrypted" if flags & _ENCRYPTED else "is a patch to another file"
        advice = "That cannot be read: write the members plainly, and"
        raise fault(url, offset, f"member {name!r:.200} {what} (flags {flags:#06x})", advice=advice)


def widened(values: tuple[int, ...], extra: bytes) -> list[int]:
    """Replace the values that are all ones, in order, by those of the zip64 field (tag 1) among the extra fields."""
    wide: tuple[int, ...] = ()
    position = 0
    while position + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, position)
        if tag == 1:
            field = extra[position + 4 : position + 4 + length]
            wide = struct.unpack_from(f"<{len(field) // 8}Q", field)
            break
        position += 4 + length
    left = iter(wide)
    return [next(left, value) if value == 0xFFFFFFFF else value for value in values]


def read_directory(read_range: Callable[[int, int], bytes], num_bytes: int, *, url: str) -> list[Entry]:
    """Return the members of an archive, sorted by offset.

    This takes one ranged read of the last 66 KiB, and a second one for a directory that is larger. A name is UTF-8 if
    its flag (bit 11) says so or its bytes are valid UTF-8, and cp437 otherwise. A name that ends with a slash is a
    directory. A member with the Unix mode of a link is a link. No checksum covers that mode, so a link with a file's
    permissions (not executable by its owner) is an error: it may be a file with a flipped bit.

    Args:
        read_range: called with start and end byte (exclusive); returns exactly those bytes.
        num_bytes: length of the object.
        url: for error messages.

    Raises:
        ShardReadError: for an archive that is incomplete, surrounded by bytes that its end record does not count, split
            over disks, or ambiguous, and for unsupported members. The message has the offset.
    """
    source = _RangeReader(read_range, num_bytes, url)
    count, size, start = _find_directory(source)
    directory = source.read(start, start + size)
    entries = []
    position = 0
    while position < size:
        entry, position = _parse_entry(directory, position, start, url)
        entries.append(entry)
    if len(entries) != count:
        raise fault(url, start, f"the directory holds {len(entries):,} members, the end record counts {count:,}")
    entries.sort(key=lambda entry: entry.header_offset)
    return entries


class _RangeReader:
    """Reads ranges of an object, and keeps its tail."""

    def __init__(self, read_range: Callable[[int, int], bytes], num_bytes: int, url: str) -> None:
        self._read_range, self.num_bytes, self.url = read_range, num_bytes, url
        self.tail_start = num_bytes
        self.tail = b""
        start = max(0, num_bytes - _TAIL_BYTES)
        self.tail = self.read(start, num_bytes)
        self.tail_start = start

    def read(self, start: int, end: int) -> bytes:
        if start >= self.tail_start:
            return self.tail[start - self.tail_start : end - self.tail_start]
        data = self._read_range(start, end)
        if len(data) != end - start:
            raise fault(self.url, start, f"{len(data):,} bytes were received where {end - start:,} were requested")
        return data


def _find_end(source: _RangeReader) -> int:
    """Return the offset of the only end record whose comment ends the object."""
    tail, found, seen = source.tail, [], None
    position = tail.find(b"PK\5\6")
    while 0 <= position <= len(tail) - _END.size:
        seen = _END.size + _END.unpack_from(tail, position)[-1] - (len(tail) - position)
        if seen == 0:
            found.append(source.tail_start + position)
        position = tail.find(b"PK\5\6", position + 1)
    if len(found) > 1:
        raise fault(source.url, found[0], f"{len(found)} end records, of which each could be the archive's")
    if not found:
        where = "no end record (PK\\5\\6)" if seen is None else f"an end record whose comment ends {seen:+,} bytes off"
        what = f"the object ends with {where}{'' if source.tail_start else text_instead(tail[:512])}"
        raise fault(source.url, source.num_bytes, what, advice="The upload was cut short, or it is not a zip: write")
    return found[0]


def _find_directory(source: _RangeReader) -> tuple[int, int, int]:
    """Return number of members, length and first byte of the directory, from the end records."""
    url, end = source.url, _find_end(source)
    fields: tuple[int, ...] = _END.unpack_from(source.tail, end - source.tail_start)[1:-1]
    stops = end
    locator = source.read(end - _LOCATOR.size, end) if end >= _LOCATOR.size else b""
    if locator.startswith(b"PK\6\7"):
        _, disk, stops, num_disks = _LOCATOR.unpack(locator)
        if disk or num_disks > 1 or stops + _END64.size > end - _LOCATOR.size:
            raise fault(url, end - _LOCATOR.size, f"a zip64 record at byte {stops:,} of disk {disk} of {num_disks}")
        signature, length, _, _, *wide = _END64.unpack(source.read(stops, stops + _END64.size))
        if signature != b"PK\6\6" or stops + 12 + length != end - _LOCATOR.size:
            what = f"a zip64 end record {signature!r} of {length:,} bytes, which is not one or not all"
            raise fault(url, stops, what)
        if any(a not in (b, limit) for a, b, limit in zip(fields, wide, _NARROW_LIMITS, strict=True)):
            raise fault(url, stops, f"the end records disagree: {tuple(wide)} for zip64, {fields} in the other")
        fields = tuple(wide)
    disk, directory_disk, disk_count, count, size, start = fields
    if disk or directory_disk or disk_count != count:
        what = f"the archive is split: disk {disk}, with {disk_count:,} of {count:,} members"
        raise fault(url, end, what, advice="Put the volumes together (zip -s 0): write")
    if start + size != stops:
        what = f"the directory should end at byte {stops:,}, but is {size:,} bytes at byte {start:,}"
        raise fault(url, end, f"{what}. Something was cut out, or put before the archive (zip -A mends the latter)")
    if (
        size > MAX_DIRECTORY_BYTES
        or count * _CENTRAL.size > size
        or count * _LOCAL_BYTES > start
        or (start and not count)
    ):
        what = (
            f"a directory of {size:,} bytes for {count:,} members in {start:,} bytes (at most {MAX_DIRECTORY_BYTES:,}"
        )
        raise fault(url, end, f"{what} in all, at least {_CENTRAL.size} for each member)")
    return count, size, start


def _parse_entry(directory: bytes, position: int, directory_offset: int, url: str) -> tuple[Entry, int]:
    """Parse the entry at a position of the directory; return it and the position after it."""
    where = directory_offset + position
    names_at = position + _CENTRAL.size
    if names_at > len(directory) or not directory.startswith(b"PK\1\2", position):
        raise fault(url, where, f"{directory[position : position + 4]!r} where the directory's next entry should be")
    fields = _CENTRAL.unpack_from(directory, position)
    _, _, _, flags, method, _, _, crc32, narrow_compressed, narrow_bytes, name_length, extra_length = fields[:12]
    comment_length, disk, _, attributes, narrow_offset = fields[12:]
    extra_at = names_at + name_length
    after = extra_at + extra_length + comment_length
    if after > len(directory):
        raise fault(url, where, f"an entry that ends {after - len(directory):,} bytes after the directory")
    name = directory[names_at:extra_at]
    extra = directory[extra_at : extra_at + extra_length]
    num_bytes, compressed_bytes, offset = widened((narrow_bytes, narrow_compressed, narrow_offset), extra)

    check_flags(flags, name, url, where)
    if method not in (STORED, DEFLATED):
        advice = "Only 0 (stored) and 8 (deflated) can be read: use one of them, and write"
        raise fault(url, where, f"member {name!r:.200} is compressed with method {method}", advice=advice)
    if method == STORED and compressed_bytes != num_bytes:
        raise fault(url, where, f"stored member {name!r:.200} of {num_bytes:,} bytes that takes {compressed_bytes:,}")
    if disk or offset >= directory_offset:
        raise fault(url, where, f"member {name!r:.200} at byte {offset:,} of disk {disk}, beyond the members' end")
    path = _text(name, flags, url, where)
    kind = _kind(path, attributes >> 16, num_bytes, url, where)
    entry = Entry(path, name, offset, compressed_bytes, num_bytes, crc32, method, kind, directory_offset)
    return entry, after


def _text(name: bytes, flags: int, url: str, where: int) -> str:
    if b"\0" in name:
        raise fault(url, where, f"member {name!r:.200} has a NUL in its name")
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError as error:
        if flags & _UTF8:
            raise fault(
                url, where, f"member {name!r:.200} has a name that is not UTF-8, although it says so"
            ) from error
        return name.decode("cp437")  # which has a character for each byte


def _kind(path: str, mode: int, num_bytes: int, url: str, where: int) -> str:
    kind, permissions = mode >> 12, mode & 0o777
    if path.endswith("/") and num_bytes == 0:
        return "directory"
    if path.endswith("/"):
        raise fault(url, where, f"directory {path!r:.200} with {num_bytes:,} bytes of data")
    if kind in _FILE_TYPES:
        return "file"
    if kind == _LINK_TYPE and (permissions & 0o100 or not permissions) and num_bytes <= MAX_TARGET_BYTES:
        return "link"
    what = {_LINK_TYPE: "link", _DIRECTORY_TYPE: "directory without a slash"}.get(kind, "device")
    raise fault(url, where, f"member {path!r:.200} is a {what} of mode {mode:#o} with {num_bytes:,} bytes of data")
