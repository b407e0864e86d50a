"""The benchmarks' store, which is the tests' nginx server: benchmarks import nothing else from ``tests``.

Run a command with such a store as its S3 server; the folders in FOLDER are the buckets:

    python benchmarks/slow_store.py FOLDER torchdata-remote bench s3://bucket/
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.servers.slow_store import SlowStore, StoreNotInstalledError, nginx_path, slow_store, takes_connections
from tests.support.ports import free_port

__all__ = ["SlowStore", "StoreNotInstalledError", "free_port", "nginx_path", "slow_store", "takes_connections"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command with an S3 server that answers late.")
    parser.add_argument("--latency-ms", type=float, default=20.0, help="before each answer (default: %(default)g)")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folders in it are the buckets")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="and its arguments")
    options = parser.parse_args()
    with slow_store(options.folder, latency_s=options.latency_ms / 1e3) as store:
        return subprocess.run(options.command, env={**os.environ, **store.environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
