"""Zip archives: their directory (``directory``), and their bytes to members (``read``)."""

from .directory import Entry, read_directory
from .members import read_members, read_pieces

__all__ = ["Entry", "read_directory", "read_members", "read_pieces"]
