"""Read and write tar archives."""

from .members import (
    MemberBatch,
    MemberHeader,
    MemberOffsets,
    NestedArchive,
    first_name,
    read_archives,
    read_lazy_batches,
    read_member_batches,
    read_member_headers,
    read_member_offsets,
)
from .packing import MAX_SIZE, NAME_BYTES, is_plain, pack_header, pack_plain_members
from .parser import BLOCK, END_OF_ARCHIVE, Data, TarOptions, TarParser, is_header, padding

__all__ = [
    "BLOCK",
    "END_OF_ARCHIVE",
    "MAX_SIZE",
    "NAME_BYTES",
    "Data",
    "MemberBatch",
    "MemberHeader",
    "MemberOffsets",
    "NestedArchive",
    "TarOptions",
    "TarParser",
    "first_name",
    "is_header",
    "is_plain",
    "pack_header",
    "pack_plain_members",
    "padding",
    "read_archives",
    "read_lazy_batches",
    "read_member_batches",
    "read_member_headers",
    "read_member_offsets",
]
