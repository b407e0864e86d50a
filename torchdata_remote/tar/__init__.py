"""Tar bytes to members (``read``), and members to tar bytes (``header``)."""

from .header import BLOCK, pack_header, padding
from .read import DEFAULT_MAX_MEMBER_BYTES, read_members

END_OF_ARCHIVE = bytes(2 * BLOCK)

__all__ = ["BLOCK", "DEFAULT_MAX_MEMBER_BYTES", "END_OF_ARCHIVE", "pack_header", "padding", "read_members"]
