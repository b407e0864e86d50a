"""Compress and decompress streams."""
