"""``torchdata-remote manifest``."""

from __future__ import annotations

import argparse

from ..core.urls import redact
from ..formats.manifest import ShardInfo
from ..sharding import index_shards
from ._bad_members import CHOICES, HELP, bad_member_choice, policy_of
from ._shared import Commands, add_command, add_quiet, add_storage_options, print_line, printable


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "manifest",
        _run,
        description="write the manifest, the indexes and the keys of tar shards. Each shard of a folder is read once; "
        "an index and a file of keys are written beside it, and index.json last.",
        example="manifest s3://bucket/train/",
    )
    parser.add_argument("folder", help="URL or path, such as s3://bucket/train/")
    parser.add_argument(
        "--pattern",
        help="glob that the shards' names match (default: all tars, in any case and compression)",
    )
    parser.add_argument("--on-bad-member", type=bad_member_choice, default="raise", metavar=CHOICES, help=HELP)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing manifest, indexes and files of keys"
    )
    add_quiet(parser, "no progress bar, and no line for each shard")
    add_storage_options(parser)


def print_shard(shard: ShardInfo) -> None:
    """Print a line about a finished shard."""
    print_line(f"{shard.num_samples:>10,} samples  {printable(redact(shard.url))}")


def print_total(shards: list[ShardInfo]) -> None:
    """Print a line about all shards."""
    num_samples, num_bytes = sum(shard.num_samples for shard in shards), sum(shard.num_bytes for shard in shards)
    print_line(f"{num_samples:>10,} samples in {len(shards):,} shards of {num_bytes:,} bytes: manifest written")


def _run(args: argparse.Namespace) -> int:
    on_bad_member, counter = policy_of(args.on_bad_member)
    shards = index_shards(
        args.folder,
        pattern=args.pattern,
        overwrite=args.overwrite,
        on_shard=(lambda shard: None) if args.quiet else print_shard,
        progress=not args.quiet,
        on_bad_member=on_bad_member,
        storage_options=args.storage_options,
    )
    counter.print_total()
    print_total(shards)
    return 0
