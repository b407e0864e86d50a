"""Tar bytes to members (``read``), and members to tar bytes (``header``)."""

from .header import BLOCK, is_header, pack_header, pack_member, padding
from .member_headers import MemberHeader, read_member_headers
from .member_offsets import MemberOffsets, first_name, read_member_offsets
from .members import NestedArchive, Run, read_archives, read_member_batches, read_members
from .parser import TarOptions, TarParser

END_OF_ARCHIVE = bytes(2 * BLOCK)

__all__ = [
    "BLOCK",
    "END_OF_ARCHIVE",
    "MemberHeader",
    "MemberOffsets",
    "NestedArchive",
    "Run",
    "TarOptions",
    "TarParser",
    "first_name",
    "is_header",
    "pack_header",
    "pack_member",
    "padding",
    "read_archives",
    "read_member_batches",
    "read_member_headers",
    "read_member_offsets",
    "read_members",
]
