"""One DataPipe a module; importing this package registers their functional names."""

from .async_prefetch import AsyncPrefetch
from .base.typed import IterableWrapper, IterDataPipe
from .compose.mix import mix
from .compose.mixed import Mixed, Stop
from .compose.recipes import stream_files, stream_shards
from .decode_image import DecodeImage
from .decode_sample import DecodeSample
from .equalize_ranks import EqualizeRanks
from .file_reader import FileReader
from .label_from_path import LabelFromPath
from .list_remote import ListRemote
from .parallel_map import ParallelMap
from .shard_tar_reader import ShardTarReader
from .shard_zip_reader import ShardZipReader
from .sharding_filter_rank import ShardingFilterRank
from .shuffle_samples import ShuffleSamples
from .shuffle_shards import ShuffleShards
from .to_tuple import ToTuple
from .write_shards import WriteShards

__all__ = [
    "AsyncPrefetch",
    "DecodeImage",
    "DecodeSample",
    "EqualizeRanks",
    "FileReader",
    "IterDataPipe",
    "IterableWrapper",
    "LabelFromPath",
    "ListRemote",
    "Mixed",
    "ParallelMap",
    "ShardTarReader",
    "ShardZipReader",
    "ShardingFilterRank",
    "ShuffleSamples",
    "ShuffleShards",
    "Stop",
    "ToTuple",
    "WriteShards",
    "mix",
    "stream_files",
    "stream_shards",
]
