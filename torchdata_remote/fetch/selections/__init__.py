"""Which samples of shards are read: keys and members beside shards, selections, joins, snapshots."""
