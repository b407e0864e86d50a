"""Statistics of the stages of a process: items, bytes, seconds, requests."""
