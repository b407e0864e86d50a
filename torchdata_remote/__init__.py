"""Train PyTorch models from data in object stores, by DataPipes that chain.

Importing registers the functional names: ``IterableWrapper(["s3://b/train/"]).list_remote().async_prefetch()...``
"""

from . import decoders, encoders, errors, labels, testing
from .manifest import ShardInfo
from .options import Backend, RetryPolicy
from .pipes import (
    AsyncPrefetch,
    DecodeSample,
    FileReader,
    LabelFromPath,
    ListRemote,
    ShardingFilterRank,
    ShardTarReader,
    ShardZipReader,
    ShuffleShards,
    ToTuple,
    WriteShards,
)
from .policies import Skipped, accept_missing_end, raise_error, skip_with_warning
from .recipes import stream_files, stream_shards
from .urls import RemoteUrl
from .world import World
from .writer import ShardWriter

__all__ = [
    "AsyncPrefetch",
    "Backend",
    "DecodeSample",
    "FileReader",
    "LabelFromPath",
    "ListRemote",
    "RemoteUrl",
    "RetryPolicy",
    "ShardInfo",
    "ShardTarReader",
    "ShardWriter",
    "ShardZipReader",
    "ShardingFilterRank",
    "ShuffleShards",
    "Skipped",
    "ToTuple",
    "World",
    "WriteShards",
    "accept_missing_end",
    "decoders",
    "encoders",
    "errors",
    "labels",
    "raise_error",
    "skip_with_warning",
    "stream_files",
    "stream_shards",
    "testing",
]

__version__ = "0.1.0"
