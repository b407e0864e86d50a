"""Write any dataset into shuffled tar shards, by one process or many, resumably.

``source_listing`` lists a source, ``archive_index`` finds the samples of archives, ``plan`` assigns samples to shards,
``planned_samples`` reads them, ``task`` writes one shard. ``job`` runs these steps and keeps the ``journal``.
"""

from .index_shards import index_shards
from .shard_dataset import shard_dataset

__all__ = ["index_shards", "shard_dataset"]
