"""The benchmarks' store, which is the tests' nginx server: the only import from ``tests``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.servers.slow_store import SlowStore, StoreNotInstalledError, nginx_path, slow_store

__all__ = ["SlowStore", "StoreNotInstalledError", "nginx_path", "slow_store"]
