"""One DataPipe a module; importing this package registers their functional names."""

from .async_prefetch import AsyncPrefetch
from .base.typed import IterableWrapper, IterDataPipe
from .bucket import Bucket
from .compose.join import join
from .compose.mix import mix
from .compose.mixed import Mixed, Stop
from .compose.recipes import stream_files, stream_shards
from .decode_image import DecodeImage
from .decode_sample import DecodeSample
from .equalize_ranks import EqualizeRanks
from .file_reader import FileReader
from .flat_map import FlatMap
from .label_from_path import LabelFromPath
from .list_remote import ListRemote
from .list_row_groups import ListRowGroups
from .pack import Pack
from .parallel_map import ParallelMap
from .repeat_epochs import RepeatEpochs
from .select import Select
from .shard_tar_reader import ShardTarReader
from .shard_zip_reader import ShardZipReader
from .sharding_filter_rank import ShardingFilterRank
from .shuffle_samples import ShuffleSamples
from .shuffle_shards import ShuffleShards
from .skip import Skip
from .table_reader import TableReader
from .take import Take
from .to_tuple import ToTuple
from .write_shards import WriteShards

__all__ = [
    "AsyncPrefetch",
    "Bucket",
    "DecodeImage",
    "DecodeSample",
    "EqualizeRanks",
    "FileReader",
    "FlatMap",
    "IterDataPipe",
    "IterableWrapper",
    "LabelFromPath",
    "ListRemote",
    "ListRowGroups",
    "Mixed",
    "Pack",
    "ParallelMap",
    "RepeatEpochs",
    "Select",
    "ShardTarReader",
    "ShardZipReader",
    "ShardingFilterRank",
    "ShuffleSamples",
    "ShuffleShards",
    "Skip",
    "Stop",
    "TableReader",
    "Take",
    "ToTuple",
    "WriteShards",
    "join",
    "mix",
    "stream_files",
    "stream_shards",
]
