"""What every room stands on: URLs, options, the world of ranks, retries, threads."""
