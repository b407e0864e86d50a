"""Tar bytes to members. Strict: an archive ends at its end-of-archive blocks, or it is an error.

Read are POSIX ustar and pax, GNU, and v7. (Python's ``tarfile`` takes a damaged header for the end of the archive.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .header import BLOCK, fault, name_field, number_field, padding, pax_fields, text_field, verify_checksum

MAX_RECORD_BYTES = 1 << 20  # of a pax header or a GNU long name
DEFAULT_MAX_MEMBER_BYTES = 4 << 30

_ZERO_BLOCK = bytes(BLOCK)
_FILE_TYPES = frozenset(b"0\x007")
_EXTENDED_TYPES = frozenset(b"xgLK")
_GLOBAL = ord("g")
_SKIPPED_TYPES = frozenset(b"123456")  # links, devices, directories, fifos


class _Cursor:
    """A position in an archive that arrives in parts of any length."""

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self._parts = iter(parts)
        self.view = memoryview(b"")
        self.position = 0
        self._before = 0  # bytes in the parts before this one

    @property
    def offset(self) -> int:
        return self._before + self.position

    def next_part(self) -> bool:
        for part in self._parts:
            self._before += len(self.view)
            self.view, self.position = memoryview(part), 0
            if len(self.view):
                return True
        return False

    def take_block(self) -> bytes:
        """The next 512 bytes, or fewer where the archive ends."""
        position, after = self.position, self.position + BLOCK
        if after > len(self.view):
            return self.take(BLOCK)
        self.position = after
        return self.view[position:after].tobytes()

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes, or fewer where the archive ends."""
        pieces: list[memoryview] = []
        while count:
            piece = self.view[self.position : self.position + count]
            self.position += len(piece)
            count -= len(piece)
            pieces.append(piece)
            if count and not self.next_part():
                break
        return b"".join(pieces)

    def skip(self, count: int) -> int:
        """Pass over ``count`` bytes; returns how many were there."""
        left = count
        while left:
            step = min(left, len(self.view) - self.position)
            self.position += step
            left -= step
            if left and not self.next_part():
                break
        return count - left


class _Extended:
    """What extended headers say of the member after them: one of each kind at the most."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.kinds = b""
        self.name: str | None = None
        self.size: int | None = None

    def add(self, kind: int, record: bytes, start: int) -> None:
        if kind in self.kinds and kind != _GLOBAL:
            raise fault(self._url, start, f"two extended headers of type {chr(kind)!r} for one member")
        self.kinds += bytes([kind])
        if kind == ord("L"):
            self._set_name(text_field(record.rstrip(b"\0")), start)
        elif kind == _GLOBAL:
            if {"path", "size"} & set(pax_fields(record, self._url, start)):
                raise fault(self._url, start, "a global header that names all members, or tells the size of all")
        elif kind == ord("x"):
            fields = pax_fields(record, self._url, start)
            if any(key.startswith("GNU.sparse") for key in fields):
                raise fault(self._url, start, "a sparse file, which cannot be read as a stream; write it plainly")
            if fields.get("path"):  # an empty one leaves the name to the member's own header
                self._set_name(fields["path"], start)
            if "size" in fields:
                if not (fields["size"].isascii() and fields["size"].isdigit() and len(fields["size"]) < 20):
                    raise fault(self._url, start, f"a pax size of {fields['size']!r:.40}")
                self.size = int(fields["size"])

    def applied(self, name: str, size: int) -> tuple[str, int]:
        """Name and size of the member, whose own header says ``name`` and ``size``."""
        return name if self.name is None else self.name, size if self.size is None else self.size

    def _set_name(self, name: str, start: int) -> None:
        if self.name is not None:
            raise fault(self._url, start, "two names for one member")
        self.name = name


def read_members(  # the inner loop of every epoch: a call for each branch would cost its speed
    parts: Iterable[bytes | memoryview],
    *,
    url: str,
    num_bytes: int | None = None,
    max_member_bytes: int = DEFAULT_MAX_MEMBER_BYTES,
) -> Iterator[tuple[str, bytes]]:
    """Name and data of each regular file in an archive, in order.

    Directories, links and devices are passed over.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        num_bytes: length of the archive where it is known.
        max_member_bytes: a member that claims more is an error, before memory is taken for it.

    Raises:
        ShardReadError: for a header that is damaged, a member type that cannot be read rightly (sparse files,
            volumes), an archive that ends early, or data after its end. Says where.
    """
    cursor = _Cursor(parts)
    extended = _Extended(url)
    while True:
        start = cursor.offset
        header = cursor.take_block()
        if header == _ZERO_BLOCK:
            return _expect_end(cursor, extended, url)
        if len(header) < BLOCK:
            where = "in a header" if header else "without its end-of-archive blocks"
            raise fault(url, start, f"the archive ends {where}", cut_short=True)
        verify_checksum(header, url, start)
        kind = header[156]
        size = number_field(header[124:136], url, start)

        if kind in _EXTENDED_TYPES:
            if size > MAX_RECORD_BYTES:
                raise fault(url, start, f"a {size:,} byte extended header (limit {MAX_RECORD_BYTES:,})")
            extended.add(kind, _take_data(cursor, size, url, start, "an extended header"), start)
            continue
        name = name_field(header)
        if extended.kinds:
            name, size = extended.applied(name, size)
            extended = _Extended(url)
        if kind in _SKIPPED_TYPES or (kind == 0 and name.endswith("/")):
            continue  # without data, whatever size the header tells: of a link's target, of a directory's quota
        if kind not in _FILE_TYPES:
            raise fault(url, start, f"member {name!r} of type {chr(kind)!r}, which cannot be read as a stream")
        if size > max_member_bytes:
            raise fault(url, start, f"member {name!r} claims {size:,} bytes (max_member_bytes={max_member_bytes:,})")
        if num_bytes is not None and cursor.offset + size > num_bytes:
            left = f"{num_bytes - cursor.offset:,}"
            what = f"member {name!r} claims {size:,} bytes where the object has {left} left"
            raise fault(url, start, what, cut_short=True)
        position = cursor.position
        after = position + size + padding(size)
        if after <= len(cursor.view):
            cursor.position = after
            yield name, cursor.view[position : position + size].tobytes()
        else:
            yield name, _take_data(cursor, size, url, start, f"member {name!r}")


def _take_data(cursor: _Cursor, size: int, url: str, start: int, what: str) -> bytes:
    data = cursor.take(size)
    if len(data) < size:
        raise fault(url, start, f"{what} holds {len(data):,} of {size:,} bytes", cut_short=True)
    if cursor.skip(padding(size)) < padding(size):
        raise fault(url, start, f"the archive ends in the padding of {what}", cut_short=True)
    return data


def _expect_end(cursor: _Cursor, extended: _Extended, url: str) -> None:
    """After the first zero block: another one, then nothing but zeros."""
    start = cursor.offset
    if extended.kinds.strip(b"g"):  # a global header alone is an archive without members
        raise fault(url, start, "an extended header without a member")
    second = cursor.take(BLOCK)
    if len(second) < BLOCK:
        raise fault(url, start, "the archive ends between its two end-of-archive blocks", cut_short=True)
    while True:
        if second.strip(b"\0"):
            raise fault(url, start, "data after the end of the archive; archives cannot be put together by appending")
        start = cursor.offset
        second = cursor.take(1 << 20)
        if not second:
            return
