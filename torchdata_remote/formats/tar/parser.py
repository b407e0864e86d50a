"""Walk through a tar, one member at a time, with every field checked.

The formats are POSIX ustar and pax, GNU, and v7; fields and offsets are those of their manuals. An archive without its
end-of-archive blocks is an error. (Python's ``tarfile`` takes a damaged header for the end of the archive.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from zlib import adler32

from ...errors import MissingEndError, ShardReadError
from ..byte_reader import ByteReader
from ..limits import MAX_MEMBER_BYTES, MAX_NAME_LENGTH
from ..text_instead import text_instead

BLOCK = 512
END_OF_ARCHIVE = bytes(2 * BLOCK)
FILE = ord("0")
Data = bytes | memoryview

_ZERO_BLOCK = bytes(BLOCK)
_FILE_TYPES = frozenset(b"0\x007")
_SKIPPED_TYPES = {**dict.fromkeys(b"12", "link"), **dict.fromkeys(b"346", "device"), ord("5"): "directory"}
_SYMBOLIC, _SPARSE_TYPE, _GLOBAL, _LONG_NAME, _LONG_LINK = b"2SgLK"
_EXTENDED_TYPES = frozenset(b"xgLK")
_MAX_RECORD_BYTES = _ZEROS_BYTES = 1 << 20
_MAX_DIGITS = 19
_CUT_SHORT = "The upload was cut short: write"
_SPARSE = "a sparse file, of which only the pieces that are not zeros are stored; pack it without --sparse"


@dataclass(frozen=True)
class TarOptions:
    """Options for reading an archive.

    Args:
        num_bytes: length of the archive, if it is known.
        first_byte: offset in the archive of the first byte that is read, which begins a header.
        last_byte: offset in the archive after the last byte that is read, if that is between two members.
        max_member_bytes: a member that claims more is an error, before memory is allocated for it.
        copy: whether data are ``bytes``; otherwise they are slices, which keep the parts in memory.
        on_skip: called with ``"directory"``, ``"link"`` or ``"device"`` for each member that is not a regular file.
        on_link: called for each link with its name, the path in it, and whether that is a symbolic link's: below the
            link's folder; a hard link's is the name of a member.
        on_missing_end: called with the error if the archive ends after a member, without its end-of-archive blocks;
            returns whether it is accepted.
    """

    num_bytes: int | None = None
    first_byte: int = 0
    last_byte: int | None = None
    max_member_bytes: int = MAX_MEMBER_BYTES
    copy: bool = True
    on_skip: Callable[[str], object] = lambda kind: None
    on_link: Callable[[str, str, bool], object] = lambda name, path, is_symbolic: None
    on_missing_end: Callable[[ShardReadError], object] = lambda error: False


def padding(size: int) -> int:
    """Return the number of zero bytes after ``size`` bytes of data."""
    return -size % BLOCK


def octal(field: bytes) -> int | None:
    """Parse octal digits between spaces and NULs; ``None`` if there are other characters. An empty field is 0."""
    digits = field.strip(b"\0 ")
    try:
        return int(digits, 8) if digits.isdigit() else None if digits else 0
    except ValueError:  # 8 or 9
        return None


def decoded(data: bytes) -> str:
    """Decode a name; bytes that are not UTF-8 become surrogates."""
    return data.decode("utf-8", "surrogateescape")


def text(field: bytes) -> str:
    """Decode a name that ends with a NUL or the field."""
    return decoded(field.partition(b"\0")[0])


def name_field(header: bytes) -> str:
    """Return the path of the member in a header, with ustar's prefix."""
    name = text(header[:100])
    return f"{text(header[345:500])}/{name}" if header[345] and header[257:263] == b"ustar\0" else name


def checksum_fits(header: bytes) -> bool:
    """Return whether the checksum field is the sum of the header's bytes, with that field counted as spaces.

    The lower half of Adler-32 is 1 + that sum modulo 65521, which 512 ASCII characters do not reach, at the speed of C.
    """
    expected = _expected_sum(header[148:156])
    if header.isascii():
        return (adler32(header) & 0xFFFF) - 1 == expected
    # Some old writers add signed bytes
    return expected in (sum(header), sum(header) - 256 * sum(byte > 127 for byte in header))


@lru_cache(4096)
def _expected_sum(field: bytes) -> int | None:
    checksum = octal(field) if field.strip(b"\0 ") else None
    return None if checksum is None else checksum - 8 * ord(" ") + sum(field)


def is_header(block: bytes) -> bool:
    """Return whether a block is a header. The checksum of other data fits by chance once in 10 million."""
    return len(block) == BLOCK and block != _ZERO_BLOCK and checksum_fits(block)


class TarParser:
    """Parser of one archive. The caller reads or skips the data of each member before it asks for the next.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        options: limits.
    """

    def __init__(self, parts: Iterable[Data], url: str, options: TarOptions) -> None:
        self.cursor = ByteReader(parts, options.first_byte)
        self._url, self._options = url, options
        # First byte of the current header
        self._start = 0
        # First byte of the current member, extended headers included
        self.member_start = 0
        # Pax records of the current member, keyword -> value
        self.records: dict[str, str] = {}

    def next_member(self) -> tuple[str, int] | None:
        """Return name and size of the next regular file; ``None`` at the archive's end.

        Raises:
            ShardReadError: if the archive is damaged or incomplete.
        """
        options = self._options
        while (header := self._next_header()) is not None:
            # A pax path may be empty: the name is in the member's own header then
            kind, name = header[156], self.records.get("path") or name_field(header)
            if kind in _FILE_TYPES and not (kind == 0 and name.endswith("/")):
                size = int(self.records.get("size", self._size(header)))
                self._check_size(name, size)
                return name, size
            if kind not in _SKIPPED_TYPES and kind != 0:
                what = _SPARSE if kind == _SPARSE_TYPE else "which cannot be read as a stream"
                raise self._fault(f"member {name!r:.200} of type {chr(kind)!r}, {what}")
            # Links and directories have no data: their size field may be that of the target, or a quota
            skipped = _SKIPPED_TYPES.get(kind, "directory")
            if skipped == "link":
                options.on_link(name, self.records.get("linkpath") or text(header[157:257]), kind == _SYMBOLIC)
            options.on_skip(skipped)
        return None

    def _next_header(self) -> bytes | None:
        """Return the next member's own header, behind extended ones; ``None`` at the archive's end."""
        self.records = {}
        kinds = b""
        while True:
            self._start = start = self.cursor.offset
            if not kinds:
                self.member_start = start
            header = self.cursor.take(BLOCK)
            if len(header) < BLOCK or header == _ZERO_BLOCK:
                self._end(header, follows_extended=bool(kinds))
                return None
            if not checksum_fits(header):
                what = f"a header whose checksum field says {header[148:156]!r}, which does not fit its bytes"
                raise self._fault(what if start else what + text_instead(header))
            kind = header[156]
            if kind not in _EXTENDED_TYPES:
                return header
            fields = self._extended(kind, self._size(header))
            if kind == _GLOBAL:
                if fields.keys() & {"path", "size"}:
                    raise self._fault("a global header that sets the name or the size of all members")
                continue
            if kind in kinds:
                raise self._fault(f"two extended headers of type {chr(kind)!r} for one member")
            if fields.keys() & self.records.keys() & {"path"}:
                raise self._fault("two names for one member")
            self.records |= fields
            kinds += bytes([kind])

    def _fault(self, what: str, *, advice: str = "It is damaged or not a tar: write") -> ShardReadError:
        return ShardReadError(f"{self._url}: at byte {self._start:,}: {what}. {advice} the shard again.", url=self._url)

    def _size(self, header: bytes) -> int:
        """Parse an octal field, or one in GNU's base 256."""
        field = header[124:136]
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else octal(field)
        if size is None:
            raise self._fault(f"a header with the size field {field!r}")
        return size

    def _extended(self, kind: int, size: int) -> dict[str, str]:
        """Read the fields that an extended header sets for the next member."""
        if size > _MAX_RECORD_BYTES:
            raise self._fault(f"a {size:,} byte extended header (limit {_MAX_RECORD_BYTES:,})")
        record = self.take(size, "an extended header")
        if kind == _LONG_LINK:
            return {"linkpath": decoded(record.rstrip(b"\0"))}
        fields = {"path": decoded(record.rstrip(b"\0"))} if kind == _LONG_NAME else self._pax_fields(record)
        if any(key.startswith("GNU.sparse") for key in fields):
            raise self._fault(_SPARSE)
        if len(name := fields.get("path", "")) > MAX_NAME_LENGTH:
            raise self._fault(f"a name of {len(name):,} characters (limit {MAX_NAME_LENGTH:,})")
        digits = fields.get("size", "0")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
            raise self._fault(f"a pax size of {digits!r:.40}")
        return fields

    def _pax_fields(self, record: bytes) -> dict[str, str]:
        """Parse lines of ``length keyword=value``."""
        fields: dict[str, str] = {}
        position = 0
        while position < len(record):
            space = record.find(b" ", position, position + 20)
            digits = record[position:space] if space > 0 else b""
            end = position + int(digits) if digits.isdigit() else -1
            equals = record.find(b"=", space, end)
            if not (space < equals < end <= len(record)) or record[end - 1 : end] != b"\n":
                raise self._fault("a pax header that is not made of 'length keyword=value' lines")
            fields[decoded(record[space + 1 : equals])] = decoded(record[equals + 1 : end - 1])
            position = end
        return fields

    def _check_size(self, name: str, size: int) -> None:
        limit, num_bytes = self._options.max_member_bytes, self._options.num_bytes
        if size > limit:
            what = f"member {name!r:.200} claims {size:,} bytes (max_member_bytes={limit:,})"
            raise self._fault(what, advice="Raise that limit, or write smaller members into")
        if num_bytes is not None and self.cursor.offset + size > num_bytes:
            left = f"{num_bytes - self.cursor.offset:,}"
            what = f"member {name!r:.200} claims {size:,} bytes where the object has {left} left"
            raise self._fault(what, advice=_CUT_SHORT)

    def take(self, size: int, what: str) -> bytes:
        """Return the data of the current member, and skip its padding.

        Raises:
            ShardReadError: if the archive ends within them. The message names ``what`` was read.
        """
        data = self.cursor.take(size)
        self._finish(size, size - len(data), what)
        return data

    def pass_over(self, size: int, what: str) -> None:
        """Skip the data of the current member, and its padding.

        Raises:
            ShardReadError: as :meth:`take`.
        """
        self._finish(size, size - self.cursor.skip(size), what)

    def pieces(self, size: int, what: str, *, taken: int = 0) -> Iterator[memoryview]:
        """Yield the data of the current member as they arrive, from byte ``taken`` on; then skip its padding."""
        left = size - taken
        for piece in self.cursor.pieces(left):
            left -= len(piece)
            yield piece
        self._finish(size, left, what)

    def _finish(self, size: int, missing: int, what: str) -> None:
        if missing:
            raise self._fault(f"{what} holds {size - missing:,} of {size:,} bytes", advice=_CUT_SHORT)
        if self.cursor.skip(padding(size)) < padding(size):
            raise self._fault(f"the archive ends in the padding of {what}", advice=_CUT_SHORT)

    def _end(self, header: bytes, *, follows_extended: bool) -> None:
        """Require that the archive may end here: with a zero block, or fewer bytes."""
        start = self._start
        if follows_extended:
            raise self._fault("the archive ends after an extended header without a member", advice=_CUT_SHORT)
        if len(header) == BLOCK:
            self._expect_zeros()
        elif start == self._options.last_byte:
            return
        elif not start:
            what = f"the archive ends in a header{text_instead(header)}" if header else "the file has no byte"
            raise self._fault(what, advice="It is not a tar, or the upload was cut short: write")
        elif header:
            raise self._fault("the archive ends in a header", advice=_CUT_SHORT)
        else:
            error = MissingEndError(
                f"{self._url}: at byte {start:,}: the archive ends without its end-of-archive blocks. The upload was "
                "cut short: write the shard again; or, if its writer leaves them out, pass "
                "on_bad_shard=accept_missing_end.",
                url=self._url,
            )
            try:
                if not self._options.on_missing_end(error):
                    raise error
            finally:
                del error  # or error and frame would keep each other

    def _expect_zeros(self) -> None:
        """After the first zero block, expect another one, and nothing but zeros after it."""
        is_first, self._start = not self._start, self.cursor.offset
        zeros = self.cursor.take(BLOCK)
        if len(zeros) < BLOCK:
            raise self._fault("the archive ends between its two end-of-archive blocks", advice=_CUT_SHORT)
        while zeros:
            if zeros.strip(b"\0"):
                raise self._fault("data after the end of the archive; tars cannot be put together by appending")
            self._start = self.cursor.offset
            zeros = self.cursor.take(_ZEROS_BYTES)
        # Without a member, an archive is its two end-of-archive blocks, or a record of 20 blocks
        if is_first and self._start not in (1_024, 10_240):
            what = (
                f"{self._start:,} zero bytes, as a crashed disk leaves them; a tar without a member has 1,024 or 10,240"
            )
            self._start = 0
            raise self._fault(what, advice="Remove it, or write")
