"""Composable DataPipes that stream datasets from object storage into PyTorch.

Importing registers the functional names: ``IterableWrapper(["s3://b/train/"]).list_remote().async_prefetch()...``
It imports neither torch nor the modules of this package: each name is imported when it is first used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .core.functional_names import import_first, register_when_imported
from .core.stats import record_if_asked

if TYPE_CHECKING:
    from . import errors, testing
    from .core.options import Backend, RetryPolicy, StorageOptions
    from .core.partition import EqualizeMode
    from .core.recording import Stats, record_stats, stats
    from .core.urls import RemoteUrl
    from .core.world import World
    from .datasets import RemoteFiles, RemoteImageFolder, ShardedDataset
    from .fetch.listing.patterns import escape_url
    from .fetch.selections.selection import IndexedSample
    from .fetch.selections.snapshots import Snapshot, write_snapshot
    from .formats import decoders, encoders, labels
    from .formats.error_policy import Skipped, accept_missing_end, raise_error, skip_with_warning
    from .formats.manifest import ShardInfo
    from .inspection.training_stats import RecordedStats
    from .loaders import (
        MixPhase,
        MixReport,
        PrefetchingLoader,
        Resumable,
        StatefulLoader,
        ThreadLoader,
        merge_node_states,
        merge_states,
        mix_report,
        stateful_loader,
        thread_loader,
        to_node,
    )
    from .pipes import (
        AsyncPrefetch,
        Bucket,
        DecodeImage,
        DecodeSample,
        EqualizeRanks,
        FileReader,
        FlatMap,
        IterableWrapper,
        IterDataPipe,
        LabelFromPath,
        LineReader,
        ListLineRanges,
        ListRemote,
        ListRowGroups,
        Mixed,
        Pack,
        ParallelMap,
        RepeatEpochs,
        Select,
        ShardingFilterRank,
        ShardTarReader,
        ShardZipReader,
        ShuffleSamples,
        ShuffleShards,
        Skip,
        Stop,
        TableReader,
        Take,
        ToTuple,
        WriteShards,
        join,
        mix,
        show,
        stream_files,
        stream_lines,
        stream_shards,
        stream_tables,
    )
    from .service.transfer import TransferProgress, Transferred, pull, push
    from .sharding import index_shards, shard_dataset
    from .writing import ShardWriter

__all__ = [
    "AsyncPrefetch",
    "Backend",
    "Bucket",
    "DecodeImage",
    "DecodeSample",
    "EqualizeMode",
    "EqualizeRanks",
    "FileReader",
    "FlatMap",
    "IndexedSample",
    "IterDataPipe",
    "IterableWrapper",
    "LabelFromPath",
    "LineReader",
    "ListLineRanges",
    "ListRemote",
    "ListRowGroups",
    "MixPhase",
    "MixReport",
    "Mixed",
    "Pack",
    "ParallelMap",
    "PrefetchingLoader",
    "RecordedStats",
    "RemoteFiles",
    "RemoteImageFolder",
    "RemoteUrl",
    "RepeatEpochs",
    "Resumable",
    "RetryPolicy",
    "Select",
    "ShardInfo",
    "ShardTarReader",
    "ShardWriter",
    "ShardZipReader",
    "ShardedDataset",
    "ShardingFilterRank",
    "ShuffleSamples",
    "ShuffleShards",
    "Skip",
    "Skipped",
    "Snapshot",
    "StatefulLoader",
    "Stats",
    "Stop",
    "StorageOptions",
    "TableReader",
    "Take",
    "ThreadLoader",
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
    "join",
    "labels",
    "merge_node_states",
    "merge_states",
    "mix",
    "mix_report",
    "pull",
    "push",
    "raise_error",
    "record_stats",
    "shard_dataset",
    "show",
    "skip_with_warning",
    "stateful_loader",
    "stats",
    "stream_files",
    "stream_lines",
    "stream_shards",
    "stream_tables",
    "testing",
    "thread_loader",
    "to_node",
    "write_snapshot",
]

__version__ = "0.1.0"

# Module -> the public names that are imported from it
_HOMES = {
    ".core.options": "Backend RetryPolicy StorageOptions",
    ".core.partition": "EqualizeMode",
    ".core.recording": "Stats record_stats stats",
    ".core.urls": "RemoteUrl",
    ".core.world": "World",
    ".datasets": "RemoteFiles RemoteImageFolder ShardedDataset",
    ".fetch.listing.patterns": "escape_url",
    ".fetch.selections.selection": "IndexedSample",
    ".fetch.selections.snapshots": "Snapshot write_snapshot",
    ".formats.error_policy": "Skipped accept_missing_end raise_error skip_with_warning",
    ".formats.manifest": "ShardInfo",
    ".inspection.training_stats": "RecordedStats",
    ".loaders": (
        "MixPhase MixReport PrefetchingLoader Resumable StatefulLoader ThreadLoader merge_node_states merge_states "
        "mix_report stateful_loader thread_loader to_node"
    ),
    ".pipes": (
        "AsyncPrefetch Bucket DecodeImage DecodeSample EqualizeRanks FileReader FlatMap IterDataPipe IterableWrapper "
        "LabelFromPath LineReader ListLineRanges ListRemote ListRowGroups Mixed Pack ParallelMap RepeatEpochs Select "
        "ShardTarReader ShardZipReader ShardingFilterRank ShuffleSamples ShuffleShards Skip Stop TableReader Take "
        "ToTuple WriteShards join mix show stream_files stream_lines stream_shards stream_tables"
    ),
    ".service.transfer": "TransferProgress Transferred pull push",
    ".sharding": "index_shards shard_dataset",
    ".writing": "ShardWriter",
}
_IMPORT_TORCH = (".datasets", ".loaders", ".pipes", ".testing")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
_MODULES = {
    "decoders": ".formats.decoders",
    "encoders": ".formats.encoders",
    "errors": ".errors",
    "labels": ".formats.labels",
    "testing": ".testing",
}

# Functional names, which are registered before their pipes are imported
_PIPES = (
    "async_prefetch", "bucket", "decode_image", "decode_sample", "equalize_ranks", "file_reader", "flat_map",
    "label_from_path", "list_remote", "list_row_groups", "pack", "parallel_map", "repeat_epochs", "select",
    "shard_tar_reader", "shard_zip_reader", "sharding_filter_rank", "shuffle_samples", "shuffle_shards", "skip",
    "table_reader", "take", "to_tuple", "write_shards",
)  # fmt: skip

register_when_imported(_PIPES, lambda: import_first(".pipes", __name__, after_torch=True))
record_if_asked()

# Type checkers know the names above, and refuse others
if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name when it is first used."""
        home = _MODULES.get(name) or _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        module = import_first(home, __name__, after_torch=home in _IMPORT_TORCH)
        value = module if name in _MODULES else getattr(module, name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
