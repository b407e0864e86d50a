"""Write samples into tar shards, whole or not at all."""

from .claim import BEAT_S, CLAIM_NAME, LEASE_S, Claim
from .packed_sample import pack_sample
from .rolling_writer import RollingShardWriter
from .shard_folder import UNFINISHED, ShardFolder
from .shard_writer import DEFAULT_MAX_SHARD_BYTES, DEFAULT_MAX_SHARD_SAMPLES, ShardWriter
from .template import ShardTemplate

__all__ = [
    "BEAT_S",
    "CLAIM_NAME",
    "DEFAULT_MAX_SHARD_BYTES",
    "DEFAULT_MAX_SHARD_SAMPLES",
    "LEASE_S",
    "UNFINISHED",
    "Claim",
    "RollingShardWriter",
    "ShardFolder",
    "ShardTemplate",
    "ShardWriter",
    "pack_sample",
]
