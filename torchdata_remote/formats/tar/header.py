"""Parse and pack tar headers of 512 bytes.

Fields and offsets are those of POSIX ``pax`` (ustar and its extended headers) and of the manual of GNU ``tar``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from zlib import adler32

from ...errors import ShardReadError

BLOCK = 512
NAME_BYTES = 100
MAX_SIZE = 0o77777777777
CUT_SHORT = "The upload was cut short: write"


def padding(size: int) -> int:
    """Return the number of zero bytes after ``size`` bytes of data."""
    return -size % BLOCK


def fault(url: str, offset: int, what: str, *, advice: str = "It is damaged or not a tar: write") -> ShardReadError:
    """Create the error for a fault at a byte offset of an archive."""
    return ShardReadError(f"{url}: at byte {offset:,}: {what}. {advice} the shard again.", url=url)


def checksum_fits(header: bytes) -> bool:
    """Return whether the checksum field is the sum of the header's bytes, with that field counted as spaces.

    The lower half of Adler-32 is 1 + that sum modulo 65521, which 512 ASCII characters do not reach, at the speed of C.
    """
    total = (adler32(header) & 0xFFFF) - 1 if header.isascii() else sum(header)
    expected, expected_signed = _expected_sums(header[148:156])
    return total == expected or (
        expected is not None and sum(b - 256 if b > 127 else b for b in header) == expected_signed
    )


def is_header(block: bytes) -> bool:
    """Return whether a block is a header. The checksum of other data fits by chance once in 10 million."""
    return len(block) == BLOCK and block != bytes(BLOCK) and checksum_fits(block)


@lru_cache(4096)
def _expected_sums(field: bytes) -> tuple[int | None, int | None]:
    """Return the sums of unsigned and of signed bytes (some old writers) of a header with this checksum field."""
    checksum = octal(field)
    if checksum is None or not field.strip(b"\0 "):
        return None, None
    others = checksum - 8 * ord(" ")
    return others + sum(field), others + sum(b - 256 if b > 127 else b for b in field)


def octal(field: bytes) -> int | None:
    """Parse octal digits between spaces and NULs; ``None`` if there are other characters. An empty field is 0."""
    digits = field.strip(b"\0 ")
    try:
        return int(digits, 8) if digits.isdigit() else None if digits else 0
    except ValueError:  # 8 or 9
        return None


def number_field(field: bytes, url: str, start: int) -> int:
    """Parse an octal field, or one in GNU's base 256."""
    number = int.from_bytes(field[1:], "big") if field[0] == 0x80 else octal(field)
    if number is None:
        raise fault(url, start, f"a header with the size field {field!r}")
    return number


def text_field(data: bytes) -> str:
    """Decode a name; bytes that are not UTF-8 become surrogates."""
    return data.decode("utf-8", "surrogateescape")


def name_field(header: bytes) -> str:
    """Return the path of the member in a header, with ustar's prefix."""
    end = header.find(b"\0", 0, 100)
    name = header[: end if end >= 0 else 100]
    if header[345] and header[257:263] == b"ustar\0":
        name = header[345:500].rstrip(b"\0").partition(b"\0")[0] + b"/" + name
    return text_field(name)


def pax_fields(record: bytes, url: str, start: int) -> dict[str, str]:
    """Parse a pax record, lines of ``length keyword=value``, to keyword -> value."""
    fields: dict[str, str] = {}
    position = 0
    while position < len(record):
        space = record.find(b" ", position, position + 20)
        digits = record[position:space] if space > 0 else b""
        end = position + int(digits) if digits.isdigit() else -1
        equals = record.find(b"=", space, end)
        if not (space < equals < end <= len(record)) or record[end - 1 : end] != b"\n":
            raise fault(url, start, "a pax header that is not made of 'length keyword=value' lines")
        fields[text_field(record[space + 1 : equals])] = text_field(record[equals + 1 : end - 1])
        position = end
    return fields


def pack_header(name: str, size: int, records: Mapping[str, str] | None = None) -> bytes:
    """Pack the header of a regular file: mode 0644, owner 0, time 0, so that equal samples become equal bytes.

    Args:
        name: path inside the archive; one that does not fit into ustar's fields gets a pax record.
        size: bytes of data that follow, padded to 512.
        records: further pax records, keyword -> value.

    Returns:
        bytes: 512 bytes, or at least 1,536 with a pax record.
    """
    split = _split_name(name)
    fields = dict(records or {})
    if split is None:
        fields["path"] = name
        split = b"", _ascii(name)[:NAME_BYTES]
    if size > MAX_SIZE:
        fields["size"] = str(size)
    record = _pax_record(fields)
    extended = _ustar(b"", b"pax", len(record), b"x") + record + bytes(padding(len(record))) if record else b""
    return extended + _ustar(*split, size if "size" not in fields else 0, b"0")


def plain_header(name: bytes, size: int) -> bytes:
    """Pack the header of a regular file whose name and size fit into ustar's fields."""
    return _ustar(b"", name, size, b"0")


def _split_name(name: str) -> tuple[bytes, bytes] | None:
    """Split a name into ustar's prefix and name fields; ``None`` if it does not fit."""
    raw = _ascii(name)
    if raw.decode("ascii") != name or len(raw) > 256:
        return None
    if len(raw) <= NAME_BYTES:
        return b"", raw
    slash = raw.find(b"/", len(raw) - 101)
    if slash <= 0 or slash > 155 or slash + 1 == len(raw):
        return None
    return raw[:slash], raw[slash + 1 :]


def _ascii(name: str) -> bytes:
    return name.encode("ascii", "replace")


def _pax_record(fields: dict[str, str]) -> bytes:
    record = b""
    for key, value in sorted(fields.items()):
        rest = f" {key}=".encode() + value.encode("utf-8", "surrogateescape") + b"\n"
        length = len(rest) + 1
        while length != len(rest) + len(str(length)):
            length = len(rest) + len(str(length))
        record += str(length).encode() + rest
    return record


def _ustar(prefix: bytes, name: bytes, size: int, kind: bytes) -> bytes:
    header = b"".join(
        (
            name.ljust(100, b"\0"),
            b"0000644\x00",  # mode
            b"0000000\x00",  # uid
            b"0000000\x00",  # gid
            b"%011o\x00" % size,
            b"00000000000\x00",  # mtime
            b"        ",  # checksum, counted as spaces
            kind,
            bytes(100),
            b"ustar\x00" + b"00",
            bytes(64),
            b"0000000\x00",  # device numbers
            b"0000000\x00",
            prefix.ljust(155, b"\0"),
            bytes(12),
        )
    )
    return header[:148] + b"%06o\x00 " % sum(header) + header[156:]
