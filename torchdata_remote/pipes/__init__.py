"""Pipes: what is read, as a chain of descriptions; importing this package registers their functional names."""

from .bucket import Bucket
from .chain import show
from .counts import FlatMap, RepeatEpochs, Skip, Take
from .datapipe import DataPipe
from .decode_image import DecodeImage
from .env import Env
from .file_reader import FileReader
from .join import join
from .listing import ListRemote, ListRowGroups, Select, ShuffleShards
from .maps import DecodeSample, LabelFromPath, ParallelMap, ToTuple
from .mix import Mixed, Stop, mix
from .pack import Pack
from .passes import Pass
from .recipes import stream_files, stream_shards
from .shuffle import ShuffleSamples
from .split import EqualizeRanks, ShardingFilterRank
from .streams import AsyncPrefetch
from .table_reader import TableReader
from .tar_reader import ShardTarReader
from .typed import IterableWrapper, IterDataPipe
from .write_shards import WriteShards
from .zip_reader import ShardZipReader

__all__ = [
    "AsyncPrefetch",
    "Bucket",
    "DataPipe",
    "DecodeImage",
    "DecodeSample",
    "Env",
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
    "Pass",
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
    "show",
    "stream_files",
    "stream_shards",
]
