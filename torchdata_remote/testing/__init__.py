"""Helpers for tests of packages that use this one: small datasets, and a store that fails on purpose."""

from ._resuming import assert_resumes_everywhere
from .faults import Faults
from .faulty_store import FaultyStore, SeenRequest
from .small_shards import all_worlds, write_small_shards

__all__ = ["Faults", "FaultyStore", "SeenRequest", "all_worlds", "assert_resumes_everywhere", "write_small_shards"]
