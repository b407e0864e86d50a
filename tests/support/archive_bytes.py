"""Archives made byte by byte, sound ones and others, for the tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterable

BLOCK = 512
END_OF_ARCHIVE = bytes(1024)


def pack_tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """The archive that the package writes: ustar, with a pax record for a name that its fields cannot hold."""
    return b"".join(pack_header(name, len(data)) + padded(data) for name, data in members) + END_OF_ARCHIVE


def pack_header(name: str, size: int) -> bytes:
    """The header, or headers, of a member of less than 8 GiB."""
    raw = name.encode("ascii", "replace")
    if name.isascii() and len(raw) <= 100:
        return make_header(raw, octal_size(size))
    slash = raw.find(b"/", len(raw) - 101)
    if name.isascii() and len(raw) <= 256 and 0 < slash <= 155 and slash + 1 < len(raw):
        return make_header(raw[slash + 1 :], octal_size(size), prefix=raw[:slash])
    return make_member(b"pax", pax_line("path", name), b"x") + make_header(raw[:100], octal_size(size))


def header_sum(header: bytes, *, signed: bool = False) -> int:
    """What the checksum field should say, its own bytes counted as spaces."""
    others = header[:148] + b" " * 8 + header[156:]
    return sum(byte - 256 if signed and byte > 127 else byte for byte in others)


def octal_size(num_bytes: int) -> bytes:
    return b"%011o\0" % num_bytes


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def make_header(
    name: bytes = b"a.x",
    size: bytes = octal_size(0),
    kind: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    *,
    checksum: bytes = b"%06o\0 ",
    off_by: int = 0,
    signed: bool = False,
) -> bytes:
    """A header with any fields, and a checksum that fits unless it is to be off."""
    fields = (
        name.ljust(100, b"\0"),
        b"0000644\0",
        b"0000000\0" * 2,
        size.ljust(12, b"\0"),
        b"0" * 11 + b"\0",
        b" " * 8,
        kind,
    )
    header = b"".join(fields).ljust(257, b"\0") + magic.ljust(8, b"\0")
    header = (header.ljust(329, b"\0") + b"0000000\0" * 2 + prefix).ljust(BLOCK, b"\0")
    assert len(header) == BLOCK
    field = checksum % (header_sum(header, signed=signed) + off_by)
    return header[:148] + field.ljust(8, b"\0")[:8] + header[156:]


def make_member(
    name: bytes, data: bytes, kind: bytes = b"0", *, magic: bytes = b"ustar\x0000", prefix: bytes = b""
) -> bytes:
    return make_header(name, octal_size(len(data)), kind, magic, prefix) + padded(data)


def pax_line(key: str, value: str | bytes) -> bytes:
    """A line of a pax record, its length counted another way than the package does it."""
    rest = f" {key}=".encode() + (value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value) + b"\n"
    length = next(n for n in range(len(rest), len(rest) + 9) if len(str(n)) + len(rest) == n)
    return str(length).encode() + rest
