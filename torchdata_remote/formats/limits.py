"""Default limits of the readers of shards, which writers respect, too."""

from __future__ import annotations

# Characters of a member's name, key, dot and extension together: PATH_MAX of Linux. Keys in S3 have 1,024 bytes.
MAX_NAME_LENGTH = 4096

# Bytes of one member; readers and writers have the option ``max_member_bytes``.
MAX_MEMBER_BYTES = 4 << 30

# A shard of n compressed bytes may have FREE_BYTES + n * MAX_RATIO decompressed bytes, MAX_DECOMPRESSED_BYTES at most.
FREE_BYTES = 16 << 20
MAX_RATIO = 100
MAX_DECOMPRESSED_BYTES = 1 << 40
