"""Inspect datasets: contents of a shard, verification against the manifest, the service's page, statistics, plots."""
