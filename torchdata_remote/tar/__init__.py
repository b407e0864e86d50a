"""Tar bytes to members (``read``), and members to tar bytes (``header``)."""

from .entries import Entries, first_name, read_entries
from .header import BLOCK, pack_header, pack_member, padding
from .heads import Head, read_heads
from .read import Inner, Run, read_archives, read_members, read_runs
from .walk import TarOptions

END_OF_ARCHIVE = bytes(2 * BLOCK)

__all__ = [
    "BLOCK",
    "END_OF_ARCHIVE",
    "Entries",
    "Head",
    "Inner",
    "Run",
    "TarOptions",
    "first_name",
    "pack_header",
    "pack_member",
    "padding",
    "read_archives",
    "read_entries",
    "read_heads",
    "read_members",
    "read_runs",
]
