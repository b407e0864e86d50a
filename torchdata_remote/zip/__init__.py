"""Zip archives: their directory (``directory``), and their bytes to members (``read``)."""

from .directory import Entry, read_directory
from .read import DEFAULT_MAX_MEMBER_BYTES, read_members, read_pieces

__all__ = ["DEFAULT_MAX_MEMBER_BYTES", "Entry", "read_directory", "read_members", "read_pieces"]
