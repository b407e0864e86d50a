"""Composable DataPipes that stream datasets from object storage into PyTorch.

Importing registers the functional names: ``IterableWrapper(["s3://b/train/"]).list_remote().async_prefetch()...``
"""

from . import errors, labels, testing
from .core.iter_datapipe import IterableWrapper
from .core.options import Backend, RetryPolicy, StorageOptions
from .core.partition import EqualizeMode
from .core.stats.recording import record_stats
from .core.stats.report import Stats, stats
from .core.urls import RemoteUrl
from .core.world import World
from .datasets import PrefetchingLoader, RemoteFiles, RemoteImageFolder, ShardedDataset
from .fetch.listing.patterns import escape_url
from .formats import decoders, encoders
from .formats.error_policy import Skipped, accept_missing_end, raise_error, skip_with_warning
from .formats.manifest import ShardInfo
from .inspection import RecordedStats
from .loaders import Resumable, StatefulLoader, merge_node_states, merge_states, stateful_loader, to_node
from .pipes import (
    AsyncPrefetch,
    DecodeSample,
    EqualizeRanks,
    FileReader,
    LabelFromPath,
    ListRemote,
    Mixed,
    ShardingFilterRank,
    ShardTarReader,
    ShardZipReader,
    ShuffleSamples,
    ShuffleShards,
    Stop,
    ToTuple,
    WriteShards,
    mix,
    stream_files,
    stream_shards,
)
from .service.transfer import TransferProgress, Transferred, pull, push
from .sharding import index_shards, shard_dataset
from .writing import ShardWriter

__all__ = [
    "AsyncPrefetch",
    "Backend",
    "DecodeSample",
    "EqualizeMode",
    "EqualizeRanks",
    "FileReader",
    "IterableWrapper",
    "LabelFromPath",
    "ListRemote",
    "Mixed",
    "PrefetchingLoader",
    "RecordedStats",
    "RemoteFiles",
    "RemoteImageFolder",
    "RemoteUrl",
    "Resumable",
    "RetryPolicy",
    "ShardInfo",
    "ShardTarReader",
    "ShardWriter",
    "ShardZipReader",
    "ShardedDataset",
    "ShardingFilterRank",
    "ShuffleSamples",
    "ShuffleShards",
    "Skipped",
    "StatefulLoader",
    "Stats",
    "Stop",
    "StorageOptions",
    "ToTuple",
    "TransferProgress",
    "Transferred",
    "World",
    "WriteShards",
    "accept_missing_end",
    "decoders",
    "encoders",
    "errors",
    "escape_url",
    "index_shards",
    "labels",
    "merge_node_states",
    "merge_states",
    "mix",
    "pull",
    "push",
    "raise_error",
    "record_stats",
    "shard_dataset",
    "skip_with_warning",
    "stateful_loader",
    "stats",
    "stream_files",
    "stream_shards",
    "testing",
    "to_node",
]

__version__ = "0.1.0"
