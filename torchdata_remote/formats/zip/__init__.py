"""Read zip archives: the central directory, and the members."""

from .directory import Entry, read_directory
from .members import read_members, read_pieces

__all__ = ["Entry", "read_directory", "read_members", "read_pieces"]
