"""What readers of shards take at most by default, and therefore what writers write at most."""

from __future__ import annotations

# Characters of a member's name, key, dot and extension together: PATH_MAX of Linux. Keys in S3 have 1,024 bytes.
MAX_NAME_LENGTH = 4096

# Bytes of one member; readers and writers take another limit as ``max_member_bytes``.
MAX_MEMBER_BYTES = 4 << 30

# A compressed shard may become FREE_BYTES + MAX_RATIO bytes for each of its own, and MAX_DECOMPRESSED_BYTES in all.
FREE_BYTES = 16 << 20
MAX_RATIO = 100
MAX_DECOMPRESSED_BYTES = 1 << 40
