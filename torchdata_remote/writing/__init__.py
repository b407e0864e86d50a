"""Write samples into tar shards, whole or not at all."""

from .packing import pack_sample
from .shard_folder import ShardFolder, ShardTemplate, describes_shards
from .shard_writer import (
    DEFAULT_MAX_SHARD_BYTES,
    DEFAULT_MAX_SHARD_SAMPLES,
    RollingShardWriter,
    ShardLimits,
    ShardWriter,
)

__all__ = [
    "DEFAULT_MAX_SHARD_BYTES",
    "DEFAULT_MAX_SHARD_SAMPLES",
    "RollingShardWriter",
    "ShardFolder",
    "ShardLimits",
    "ShardTemplate",
    "ShardWriter",
    "describes_shards",
    "pack_sample",
]
