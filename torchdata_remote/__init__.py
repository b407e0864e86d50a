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
    from . import errors, loaders, pipes, testing
    from .core.options import Backend, RetryPolicy, StorageOptions
    from .core.recording import record_stats, stats
    from .core.urls import RemoteUrl
    from .core.world import World
    from .datasets import RemoteFiles, RemoteImageFolder, ShardedDataset
    from .fetch.listing.patterns import escape_url
    from .fetch.selections.snapshots import Snapshot, write_snapshot
    from .formats import decoders, encoders, labels
    from .formats.error_policy import Skipped, accept_missing_end, raise_error, skip_with_warning
    from .formats.manifest import ShardInfo
    from .inspection.training_stats import RecordedStats
    from .loaders import (
        PrefetchingLoader,
        Resumable,
        merge_node_states,
        merge_states,
        mix_report,
        stateful_loader,
        thread_loader,
        to_node,
    )
    from .pipes import (
        IterableWrapper,
        IterDataPipe,
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
    "Backend",
    "IterDataPipe",
    "IterableWrapper",
    "PrefetchingLoader",
    "RecordedStats",
    "RemoteFiles",
    "RemoteImageFolder",
    "RemoteUrl",
    "Resumable",
    "RetryPolicy",
    "ShardInfo",
    "ShardWriter",
    "ShardedDataset",
    "Skipped",
    "Snapshot",
    "StorageOptions",
    "TransferProgress",
    "Transferred",
    "World",
    "accept_missing_end",
    "decoders",
    "encoders",
    "errors",
    "escape_url",
    "index_shards",
    "join",
    "labels",
    "loaders",
    "merge_node_states",
    "merge_states",
    "mix",
    "mix_report",
    "pipes",
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
    ".core.recording": "record_stats stats",
    ".core.urls": "RemoteUrl",
    ".core.world": "World",
    ".datasets": "RemoteFiles RemoteImageFolder ShardedDataset",
    ".fetch.listing.patterns": "escape_url",
    ".fetch.selections.snapshots": "Snapshot write_snapshot",
    ".formats.error_policy": "Skipped accept_missing_end raise_error skip_with_warning",
    ".formats.manifest": "ShardInfo",
    ".inspection.training_stats": "RecordedStats",
    ".loaders": (
        "PrefetchingLoader Resumable merge_node_states merge_states mix_report stateful_loader thread_loader to_node"
    ),
    ".pipes": "IterDataPipe IterableWrapper join mix show stream_files stream_lines stream_shards stream_tables",
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
    "loaders": ".loaders",
    "pipes": ".pipes",
    "testing": ".testing",
}

# Functional names, which are registered before their pipes are imported
_PIPES = (
    "async_prefetch", "bucket", "decode_image", "decode_sample", "equalize_ranks", "file_reader", "flat_map",
    "label_from_path", "line_reader", "list_line_ranges", "list_remote", "list_row_groups", "pack", "parallel_map",
    "repeat_epochs", "select", "shard_tar_reader", "shard_zip_reader", "sharding_filter_rank", "shuffle_samples",
    "shuffle_shards", "skip", "table_reader", "take", "to_tuple", "write_shards",
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
