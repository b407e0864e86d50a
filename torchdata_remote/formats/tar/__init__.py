"""Tar bytes to members (``read``), and members to tar bytes (``header``)."""

from .header import BLOCK, is_header, pack_header, pack_member, padding
from .member_headers import Head, read_heads
from .member_offsets import MemberPlaces, first_name, read_member_places
from .members import Inner, Run, read_archives, read_members, read_runs
from .parser import TarOptions, Walk

END_OF_ARCHIVE = bytes(2 * BLOCK)

__all__ = [
    "BLOCK",
    "END_OF_ARCHIVE",
    "Head",
    "Inner",
    "MemberPlaces",
    "Run",
    "TarOptions",
    "Walk",
    "first_name",
    "is_header",
    "pack_header",
    "pack_member",
    "padding",
    "read_archives",
    "read_heads",
    "read_member_places",
    "read_members",
    "read_runs",
]
