"""``torchdata-remote``: what is done with shards from a shell."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from .errors import RemoteDataError
from .indexing import index_shards


def _options(text: str) -> dict[str, Any]:
    options = json.loads(text)
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the process' exit status."""
    parser = argparse.ArgumentParser(prog="torchdata-remote", description="Data sets in object stores.")
    commands = parser.add_subparsers(dest="command", required=True)
    manifest = commands.add_parser(
        "manifest",
        help="write the manifest and the indexes of tar shards",
        description="Read the tar shards of a folder once; write an index beside each, and index.json, last.",
    )
    manifest.add_argument("folder", help="URL or path, such as s3://bucket/train/")
    manifest.add_argument(
        "--pattern",
        default="*.tar",
        help="glob that the shards' names match (default: %(default)s; compressed ones may be called *.tgz)",
    )
    manifest.add_argument("--overwrite", action="store_true", help="replace a manifest and indexes that are there")
    manifest.add_argument(
        "--storage-options", type=_options, default={}, metavar="JSON", help="for the store, in fsspec's vocabulary"
    )
    chosen = parser.parse_args(arguments)
    try:
        shards = index_shards(
            chosen.folder,
            pattern=chosen.pattern,
            overwrite=chosen.overwrite,
            on_shard=lambda shard: print(f"{shard.num_samples:>10,} samples  {shard.url}"),
            storage_options=chosen.storage_options,
        )
    except RemoteDataError as error:
        print(f"torchdata-remote: {error}", file=sys.stderr)
        return 1
    num_samples, num_bytes = sum(shard.num_samples for shard in shards), sum(shard.num_bytes for shard in shards)
    print(f"{num_samples:>10,} samples in {len(shards):,} shards of {num_bytes:,} bytes: manifest written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
