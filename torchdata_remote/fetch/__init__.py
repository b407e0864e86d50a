"""From URLs to byte streams: listing, ranged downloads, concurrency, the disk cache."""
