"""``torchdata-remote manifest``."""

from __future__ import annotations

import argparse

from ..core.urls import redact
from ..formats.manifest import ShardInfo
from ..sharding.index_shards import index_shards
from ._bad_members import CHOICES, HELP, bad_member_choice, policy_of
from ._shared import Commands, add_command, add_storage_options, printable, say


def add(commands: Commands) -> None:
    """Tell the command line of this command."""
    parser = add_command(
        commands,
        "manifest",
        _run,
        does="write the manifest and the indexes of tar shards. Read the tar shards of a folder once; write an index "
        "beside each, and index.json, last.",
        example="manifest s3://bucket/train/",
    )
    parser.add_argument("folder", help="URL or path, such as s3://bucket/train/")
    parser.add_argument(
        "--pattern",
        default="*.tar",
        help="glob that the shards' names match (default: %(default)s; compressed ones may be called *.tgz)",
    )
    parser.add_argument("--on-bad-member", type=bad_member_choice, default="raise", metavar=CHOICES, help=HELP)
    parser.add_argument("--overwrite", action="store_true", help="replace a manifest and indexes that are there")
    add_storage_options(parser)


def say_shard(shard: ShardInfo) -> None:
    """Print a line about a finished shard."""
    say(f"{shard.num_samples:>10,} samples  {printable(redact(shard.url))}")


def say_total(shards: list[ShardInfo]) -> None:
    """Print a line about all of them."""
    num_samples, num_bytes = sum(shard.num_samples for shard in shards), sum(shard.num_bytes for shard in shards)
    say(f"{num_samples:>10,} samples in {len(shards):,} shards of {num_bytes:,} bytes: manifest written")


def _run(chosen: argparse.Namespace) -> int:
    on_bad_member, counting = policy_of(chosen.on_bad_member)
    shards = index_shards(
        chosen.folder,
        pattern=chosen.pattern,
        overwrite=chosen.overwrite,
        on_shard=say_shard,
        on_bad_member=on_bad_member,
        storage_options=chosen.storage_options,
    )
    counting.say_total()
    say_total(shards)
    return 0
