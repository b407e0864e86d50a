"""Any data set into shuffled tar shards: listed, indexed, planned, gathered and written, by one process or many.

``listing`` says what a source is made of, ``archives`` where the samples of archives lie, ``plan`` what goes into which
shard, ``samples`` brings it, ``task`` writes one shard. ``job`` goes through all of that and keeps a ``journal``.
"""

from .shard_dataset import shard_dataset

__all__ = ["shard_dataset"]
