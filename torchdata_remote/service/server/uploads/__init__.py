"""Receive files: bodies, parts, batches."""
