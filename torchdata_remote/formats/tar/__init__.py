"""Read and write tar archives."""

from .header import BLOCK, is_header, pack_header, padding
from .member_headers import MemberHeader, read_member_headers
from .member_offsets import MemberOffsets, first_name, read_member_offsets
from .members import MemberBatch, NestedArchive, read_archives, read_member_batches
from .parser import TarOptions, TarParser

END_OF_ARCHIVE = bytes(2 * BLOCK)

__all__ = [
    "BLOCK",
    "END_OF_ARCHIVE",
    "MemberBatch",
    "MemberHeader",
    "MemberOffsets",
    "NestedArchive",
    "TarOptions",
    "TarParser",
    "first_name",
    "is_header",
    "pack_header",
    "padding",
    "read_archives",
    "read_member_batches",
    "read_member_headers",
    "read_member_offsets",
]
