"""Processes that write shards."""
