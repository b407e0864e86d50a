"""Worker processes that write shards."""
