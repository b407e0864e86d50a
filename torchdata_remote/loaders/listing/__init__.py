"""List once for all processes of a rank, or for all ranks."""
