"""Write any dataset into shuffled tar shards, by one process or many, resumably.

``source_listing`` lists a source, ``archive_index`` finds the samples of archives, ``source`` joins both.
``job`` assigns samples to shards, and each shard is a ``task``, for one of the ``workers``.
"""

from .index_shards import index_shards
from .shard_dataset import shard_dataset

__all__ = ["index_shards", "shard_dataset"]
