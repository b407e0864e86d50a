"""``torchdata-remote inspect``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from statistics import median
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..fetch.listing.shard_set import ShardSet, find_shards
from ..inspection import ShardContents, draw_contents, inspect_shard, require_plot, save_plot
from ._inspect_text import print_set, print_shard
from ._shared import Commands, add_command, add_storage_options, count_or_none, print_line, printable


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "inspect",
        _run,
        description="inspect a tar shard: members, keys, sizes, classes, first samples. Only headers are read, by "
        "ranged requests; a compressed shard is read as a whole. For a folder or a manifest the first "
        "shard is inspected, and the manifest is summarized. Classes have the names of classes.json beside the shard.",
        example="inspect --samples 3 s3://bucket/train/000000.tar",
    )
    parser.add_argument("url", help="shard, folder of shards, or manifest")
    parser.add_argument(
        "--samples", type=count_or_none, default=5, metavar="N", help="first samples to show (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document: url, set, shard")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the histograms of classes and of sizes; the extension is the format"
    )
    add_storage_options(parser)


def _run(args: argparse.Namespace) -> int:
    if args.plot:
        require_plot(args.plot)
    found = find_shards(args.url, StorageOptions(args.storage_options), RetryPolicy())
    contents = inspect_shard(found.shards[0], num_samples=args.samples, storage_options=args.storage_options)
    if args.json:
        _print_json(args.url, found, contents)
    else:
        if found.manifest_url is not None or len(found.shards) > 1:
            print_set(_summary(found))
        print_shard(contents)
    if args.plot:
        save_plot(draw_contents(contents, title=printable(contents.url)), args.plot)
    return 0


def _print_json(url: str, found: ShardSet, contents: ShardContents) -> None:
    extensions = {name: one._asdict() for name, one in contents.extensions.items()}
    shard = {**dataclasses.asdict(contents), "extensions": extensions}
    print_line(json.dumps({"url": redact(url), "set": _summary(found), "shard": shard}, indent=1))


def _summary(found: ShardSet) -> dict[str, Any]:
    """Summarize all shards without reading one."""
    sizes = [one.size for one in found.shards if one.size is not None]
    samples = [one.num_samples for one in found.shards if one.num_samples is not None]
    return {
        "manifest_url": None if found.manifest_url is None else redact(found.manifest_url),
        "num_shards": len(found.shards),
        "num_bytes": sum(sizes) if len(sizes) == len(found.shards) else None,
        "num_samples": sum(samples) if len(samples) == len(found.shards) else None,
        "shard_bytes": _spread(sizes),
        "shard_samples": _spread(samples),
    }


def _spread(numbers: list[int]) -> dict[str, float] | None:
    return {"min": min(numbers), "median": median(numbers), "max": max(numbers)} if numbers else None
