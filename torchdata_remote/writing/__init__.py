"""Write samples into tar shards, whole or not at all."""
