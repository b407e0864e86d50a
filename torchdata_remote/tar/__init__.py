"""Tar bytes to members (``read``), and members to tar bytes (``header``)."""

from .header import BLOCK, pack_header, padding
from .read import Inner, Run, read_archives, read_members, read_runs
from .walk import TarOptions

END_OF_ARCHIVE = bytes(2 * BLOCK)

__all__ = [
    "BLOCK",
    "END_OF_ARCHIVE",
    "Inner",
    "Run",
    "TarOptions",
    "pack_header",
    "padding",
    "read_archives",
    "read_members",
    "read_runs",
]
