"""Bytes to members, samples and values, and back; no network."""
