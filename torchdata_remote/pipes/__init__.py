"""Pipes: what is read, as a chain of descriptions; importing this package registers their functional names."""

from ..fetch.selections.selection import IndexedSample
from .batching import Bucket, Pack
from .chain import show
from .counts import FlatMap, RepeatEpochs, Skip, Take
from .datapipe import DataPipe
from .env import Env
from .images import DecodeImage
from .join import join
from .lines import LineReader, ListLineRanges
from .listing import ListRemote, ListRowGroups, Select, ShuffleShards
from .maps import DecodeSample, LabelFromPath, ParallelMap, ToTuple
from .mix import Mixed, Stop, mix
from .other_readers import FileReader, ShardZipReader, TableReader
from .passes import Pass
from .recipes import stream_files, stream_lines, stream_shards, stream_tables
from .shuffle import ShuffleSamples
from .split import EqualizeRanks, ShardingFilterRank
from .streams import AsyncPrefetch
from .tar_reader import ShardTarReader
from .typed import IterableWrapper, IterDataPipe
from .write_shards import WriteShards

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
    "IndexedSample",
    "IterDataPipe",
    "IterableWrapper",
    "LabelFromPath",
    "LineReader",
    "ListLineRanges",
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
    "stream_lines",
    "stream_shards",
    "stream_tables",
]
