"""Disk cache of whole objects."""
